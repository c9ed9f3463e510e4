"""What can be wrong at one place: an operation dropped, doubled, moved past the next, or with an operand changed.

All of it follows from the table of operations: what an operation orders or counts can be missing or come twice, and each
operand can be wrong as its kind allows. So a new operation has its mutants by its declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.oracle.mutant_sites import Change, Program, Site, array_of, is_second
from tmapipe import isa as effects
from tmapipe.isa import ALL_LANES, Declared, Effect, Group, Kind, Use, declared
from tmapipe.model.layout import Layout

__all__ = ["CHANGES", "THINGS", "changed", "changes_at", "rule_of", "thing_of"]

Ops = Sequence[Any]
STAGES = "stages"  # in place of an operand: all barriers and slots of the operation

#: What effects are called in rules; "" for those that order and count nothing by themselves.
THINGS: dict[type, str] = {
    effects.Init: "init",
    effects.FenceInit: "init",
    effects.Wait: "wait",
    effects.Arrive: "arrive",
    effects.Arm: "arrive",
    effects.ArriveAt: "sync",
    effects.WaitAt: "sync",
    effects.SyncLanes: "sync",
    effects.FenceProxy: "fence",
    effects.Start: "copy",
    effects.EndGroup: "commit",
    effects.AwaitGroup: "group wait",
    effects.SetRegisters: "registers",
    effects.AwaitGrid: "grid wait",
    effects.Access: "",
    effects.Accumulators: "",
    effects.Tile: "",
    effects.Global: "",
    effects.Return: "",
}


def thing_of(effect: Effect) -> str:
    """What an effect is called in rules, or "" if only the result changes when it is missing."""
    if isinstance(effect, effects.Start) and effect.until.group is Group.WGMMA:
        return "wgmma"
    if isinstance(effect, effects.Accumulators) and effect.use is Use.FENCE:
        return "wgmma fence"
    return THINGS[type(effect)]


def rule_of(change: Change) -> str:
    """The rule in the table of kill rates, e.g. "drop arrive", "flip parity", "move tail"."""
    site, how = change.site, change.how
    if how not in ("drop", "double", "move", "shift stage"):
        return how
    if site.tail:
        return f"{how} tail"
    if site.role == "set-up":
        return f"{how} init"
    return f"{how} {next(filter(None, map(thing_of, declared(site.op).effects)), 'access')}"


# ---- making changes ---------------------------------------------------------------------------------------------------


def changed(program: Program, change: Change, executions: Sequence[tuple[int, int]], layout: Layout) -> tuple[Any, ...]:
    """A warp's operations with a change at these executions of its site, given as in `Program.sites`."""
    at = dict(executions)
    found: list[Any] = []
    held: Ops = ()  # an instruction that is to come after the next one
    for i, ops in enumerate(program.instructions):
        before, held = held, ()
        if i not in at:
            found += ops
        elif change.how == "move":
            held = ops
        else:
            found += CHANGES[change.how](ops, at[i], change, layout)
        found += before
    return (*found, *held)


Value = Callable[[Any, str, int, Layout], Any]  # (operation, operand, by, layout) -> the wrong value
Rewrite = Callable[[Ops, int, Change, Layout], Ops]  # (an instruction, which of its operations, ...) -> the wrong one


def _drop(ops: Ops, at: int, change: Change, layout: Layout) -> Ops:
    """The whole instruction; or its second half alone, so that ``bar.sync`` becomes ``bar.arrive``."""
    return [op._replace(**dict.fromkeys(declared(type(op)).named(Kind.FLAG), False)) for op in ops[:at]]


def _double(ops: Ops, at: int, change: Change, layout: Layout) -> Ops:
    return [*ops, *ops]


def _later(ops: Ops, at: int, change: Change, layout: Layout) -> Ops:
    return ops  # `changed` puts it elsewhere


def _operand(value: Value) -> Rewrite:
    """Changes an operand in each operation of the instruction that has it."""

    def rewrite(ops: Ops, at: int, change: Change, layout: Layout) -> Ops:
        names = _staged(declared(change.site.op)) if change.operand == STAGES else [change.operand]
        return [
            op._replace(**{n: value(op, n, change.by, layout) for n in names if n in declared(type(op)).operands})
            for op in ops
        ]

    return rewrite


def _mask(ops: Ops, at: int, change: Change, layout: Layout) -> Ops:
    """by 0: without its lowest CTA, 1: the lowest only, 2: the mask of the next CTA, 3: a CTA outside the cluster too."""
    mask, ctas = getattr(ops[at], change.operand), layout.ctas
    if mask is None:
        return ops
    low = mask & -mask
    other = (mask ^ low, low, (mask << 1 | mask >> (ctas - 1)) & ((1 << ctas) - 1), mask | 1 << ctas)[change.by]
    return [op._replace(**{change.operand: other}) for op in ops] if other else ()


def _shift(op: Any, operand: str, by: int, layout: Layout) -> int:
    return int(getattr(op, operand)) + by


def _stage(op: Any, operand: str, by: int, layout: Layout) -> int:
    number: int = getattr(op, operand)
    array, stage = array_of(layout, declared(type(op)).operands[operand], number)
    return number - stage + (stage + by) % array.stages


def _flip(op: Any, operand: str, by: int, layout: Layout) -> int:
    return int(getattr(op, operand)) ^ 1


def _pending(op: Any, operand: str, by: int, layout: Layout) -> int:
    return max(0, getattr(op, operand) + by)


def _not(op: Any, operand: str, by: int, layout: Layout) -> bool:
    return not getattr(op, operand)


def _lanes(op: Any, operand: str, by: int, layout: Layout) -> int:
    return ALL_LANES


def _share(op: Any, operand: str, by: int, layout: Layout) -> int:
    return int(getattr(op, operand) + by) % int(getattr(op, _start_of(type(op)).shares))


def _scope(op: Any, operand: str, by: int, layout: Layout) -> str:
    """by 0: none instead of the cluster's, 1: the CTA's."""
    now = str(getattr(op, operand))
    return "cta" if by else "relaxed" if now == "cluster" else now


CHANGES: dict[str, Rewrite] = {
    "drop": _drop,
    "double": _double,
    "move": _later,
    "shift stage": _operand(_stage),
    "shift count": _operand(_shift),
    "shift bytes": _operand(_shift),
    "shift id": _operand(_shift),
    "shift threads": _operand(_shift),
    "flip parity": _operand(_flip),
    "shift pending": _operand(_pending),
    "swap read": _operand(_not),
    "all lanes": _operand(_lanes),
    "shift mask": _mask,
    "shift share": _operand(_share),
    "shift scope": _operand(_scope),
    "shift registers": _operand(_shift),
}

# ---- which there are --------------------------------------------------------------------------------------------------


def changes_at(site: Site, ops: Ops, layout: Layout) -> Iterator[tuple[str, str, int]]:
    """(how, operand, by) of everything that can be wrong at *site*. ops: that come there."""
    of = declared(site.op)
    if is_second(site.op):
        # The second half of an instruction changes with the first. By itself it can be missing (bar.arrive instead of
        # bar.sync), but neither come twice, nor later, nor alone: there are no such instructions.
        yield "drop", "", 0
        return
    if any(map(thing_of, of.effects)):
        yield "drop", "", 0
        yield "double", "", 0
    yield "move", "", 0
    staged = [
        n for n in _staged(of) if any(array_of(layout, of.operands[n], getattr(op, n))[0].stages > 1 for op in ops)
    ]
    for name in [*staged, STAGES] if len(staged) > 1 else staged:
        yield "shift stage", name, 1
    for name in of.operands:
        yield from ((how, name, by) for how, by in _of_kind(of, name, [getattr(op, name) for op in ops]))
    for effect in of.effects:
        yield from _of_effect(effect, ops)


def _of_kind(of: Declared, name: str, values: Ops) -> Iterator[tuple[str, int]]:
    """(how, by) that an operand can be wrong by its kind."""
    kind = of.operands[name]
    if kind is Kind.COUNT:
        yield from (("shift count", by) for by in (-1, 1) if min(values) + by >= 0)
    elif kind is Kind.PARITY:
        yield "flip parity", 0
    elif kind is Kind.BARRIER_ID and min(values) > 0:  # the CTA's own barrier has no id and no number of threads
        yield "shift id", 1
    elif kind is Kind.THREADS and min(values) > 0:
        yield from (("shift threads", by) for by in (-32, 32))
    elif kind is Kind.MASK and any(value is not None for value in values):
        yield from (("shift mask", by) for by in range(4))
    elif kind is Kind.SCOPE:
        yield "shift scope", 0
        if of.effect(effects.ArriveAt) is None:  # barrier.cluster.arrive is .release or .relaxed, at no other scope
            yield "shift scope", 1


def _of_effect(effect: Effect, ops: Ops) -> Iterator[tuple[str, str, int]]:
    """(how, operand, by) that the operands of an effect can be wrong."""
    if isinstance(effect, effects.Arm):
        yield from (("shift bytes", effect.nbytes, by) for by in (-16, 16))
    elif isinstance(effect, effects.Arrive) and effect.lanes:
        yield "all lanes", effect.lanes, 0
    elif isinstance(effect, effects.AwaitGroup):
        yield "shift pending", effect.pending, 1
        if max(getattr(op, effect.pending) for op in ops) > 0:
            yield "shift pending", effect.pending, -1
        if effect.read:
            yield "swap read", effect.read, 0
    elif isinstance(effect, effects.Start) and effect.share and max(getattr(op, effect.shares) for op in ops) > 1:
        yield "shift share", effect.share, 1
    elif isinstance(effect, effects.SetRegisters):
        yield from (("shift registers", effect.registers, by) for by in (-8, 8))


def _staged(of: Declared) -> list[str]:
    return of.named(Kind.BAR, Kind.SLOT)


def _start_of(op: type) -> effects.Start:
    """The start of a share of a slot."""
    return next(start for start in declared(op).all(effects.Start) if start.shares)
