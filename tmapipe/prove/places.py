"""What variables of a traced program are for: which are still read from a place on, and which are positions in rings."""

from __future__ import annotations

import functools
from itertools import chain
from typing import Any

from tmapipe.isa import Init, Kind, declared
from tmapipe.isa.fragment import ClusterExchange, SlotRef
from tmapipe.model.layout import Layout
from tmapipe.plan.rings import Barrier
from tmapipe.program.expressions import Assigned, Call, Expr, If, Let, Var, While, resolve
from tmapipe.prove.symbols import variables

# ---- liveness --------------------------------------------------------------------------------------------------------
#
# Which variables of a traced program are still read from a place on: the others are left out of a state.


class Liveness:
    """Which variables the nodes of a program read and give values to, each node looked at once."""

    def __init__(self) -> None:
        self._live: dict[Any, set[Any]] = {}
        self._read = functools.cache(self._read_by)
        self._given = functools.cache(self._given_by)

    def live(self, frames: list[tuple[Any, ...]]) -> set[Any]:
        """The variables that a warp at these frames still reads. Each is given its value at one place of the program."""
        key = tuple([(f[0], id(f[1]), f[2] if f[0] in ("block", "arm") else 0) if len(f) > 1 else f for f in frames])
        if key not in self._live:
            self._live[key] = self._at(frames)
        return self._live[key]

    def _at(self, frames: list[tuple[Any, ...]]) -> set[Any]:
        found: set[Any] = set()
        for frame, inner in zip(frames, (*frames[1:], ("",)), strict=False):
            kind = "head" if inner[0] == "iterated" else frame[0]  # then it carries what the next iteration has
            if kind == "block":
                rest = frame[1][frame[2] :]
                found = found.union(*map(self._read, rest)).difference(*map(self._given, rest))
            elif kind == "arm":
                found = (found - {*frame[1].given}) | _values(frame[1].assigned[not frame[2]])
            elif kind in ("joint", "for", "one", "head"):
                node = frame[1]
                before, each, after = node.assigned
                found -= {variable for variable, _ in after}
                again = variables(node.test).union(_values(each), *map(self._read, node.body))
                own = {getattr(node, "index", None), *(variable for variable, _ in before)}
                found |= again.difference(own, *map(self._given, node.body))
                if kind == "head":
                    found |= {variable for variable, _ in before}
                else:
                    found |= _values(each) | (variables(node.test) if type(node) is While else set())
        return found

    def _read_by(self, node: Any) -> frozenset[Any]:
        found = variables((node.args, node.named)) if type(node) is Call else variables(node.test)
        return frozenset(found).union(_values(*node.assigned), *map(self._read, node.inside))

    def _given_by(self, node: Any) -> frozenset[Any]:
        return frozenset({*node.given, getattr(node, "index", None)}).union(*map(self._given, node.inside))


def _values(*assigned: Assigned) -> set[Any]:
    """The variables in values that are assigned."""
    return variables([x for each in assigned for _, x in each])


# ---- places ----------------------------------------------------------------------------------------------------------
#
# Which variables are positions in which arrays of barriers and slots.
#
# States that differ only in how far all warps are around a ring are one state, as long as the program uses a position only
# as the number of a barrier or slot, to go on to the next one (`next`, `flipped`), as a parity, to keep it for later, or to
# ask whether there is one (`>= 0`). An array with another use, such as ``slot == 2``, is *pinned*: its positions count.


_FINITE = {"next", "flipped", "xor", "or", "and", "not", "eq", "ne", "lt", "le", "gt", "ge", "select", "mod", "lshift"}


class Places:
    """The positions in a program.

    finite: variables with few values, which need not be followed as formulas; offsets: by slot variable, (kind, array, what is
    added to the variable) with kind "bar" or "slot"; partner: parity variable -> slot variable; pinned: arrays whose positions
    are told apart; pinned_parities: arrays whose phases are.
    """

    def __init__(self, layout: Layout, nodes: list[Any]):
        self.layout = layout
        self._parent: dict[Any, Any] = {}
        self._uses: dict[Any, set[tuple[str, str, Any]]] = {}  # by variable
        self._bad: set[Any] = set()
        self._flipped: set[Any] = set()  # parities that change at each use, and not with a lap of the slot
        self.partner: dict[Any, Any] = {}
        self._fixed: set[str] = set()
        self.pinned_parities: set[str] = set()
        self._finite_steps: dict[Any, list[Any]] = {}
        self._together: list[list[tuple[Any, Any]]] = []  # assignments that happen at once
        self._before = True  # whether no loop has been entered, so that nodes run once, before all boundaries
        self.turns: dict[Any, tuple[str, Any]] = {}  # parity variable -> (array, stage), of barriers used at one stage
        self._walk(nodes)
        self._find_partners()
        self._find_finite()
        groups: dict[Any, list[Any]] = {}
        for var in (*self._parent, *self._uses, *self.partner, *self.partner.values()):
            groups.setdefault(self._root(var), []).append(var)
        self.offsets: dict[Any, tuple[Any, ...]] = {}
        pinned = set(self._fixed)
        for members in groups.values():
            uses = set().union(*(self._uses.get(v, set()) for v in members))
            own = {self.turns[v] for v in members if v in self.turns}
            if own and (len(own) > 1 or any(v in self._bad for v in members)):
                self.pinned_parities |= {array for array, _ in own}
            elif own:
                self.turns.update(dict.fromkeys(members, next(iter(own))))
            elif any(v in self._flipped for v in members):
                for v in members:
                    self._bad.add(v)
                    slot = self.partner.pop(v, None)
                    self.pinned_parities |= {array for _, array, _ in self._uses.get(slot, ())}
                    pinned |= {array for _, array, _ in self._uses.get(slot, ())}
            if any(v in self._bad for v in members):
                pinned |= {array for _, array, _ in uses}
            else:
                for v in members:
                    self.offsets[v] = tuple(uses)
        self.pinned = pinned

    def _root(self, var: Any) -> Any:
        while self._parent.get(var, var) is not var:
            var = self._parent[var]
        return var

    def _join(self, a: Any, b: Any) -> None:
        a, b = self._root(a), self._root(b)
        self._parent.setdefault(a, a)
        self._parent[b] = a

    # ---- one look at all nodes ----------------------------------------------------------------------------------------

    def _walk(self, nodes: list[Any]) -> None:
        for node in nodes:
            kind = type(node)
            if kind is Call:
                self._call(node)
            elif kind is not Let:
                self._condition(node.test)
                self._together += node.assigned
                for variable, x in chain.from_iterable(node.assigned):
                    self._flows(variable, x)
                before = self._before = self._before and kind is If
                self._walk(node.then if kind is If else node.body)
                if kind is If:
                    after, self._before = self._before, before
                    self._walk(node.other)
                    self._before = before if is_role(node) else self._before and after

    def _call(self, node: Call) -> None:
        if node.method == "skip":
            slot, parity, slots, _ = node.args
            for result, x in zip(node.results, (slot, parity), strict=True):
                self._flows(result, x)
            self.partner[node.results[1]] = node.results[0]
            self._condition(slots)
            return
        if node.ops:
            for op in node.ops:
                self._op(op)
            self._condition(node.named.get("when", True))
            return
        if node.method == "cp_async":
            load, stage, _, barrier, *_ = node.args
            self._slot(load.buffer, stage)
            self._used("bar", barrier.name, barrier.stages, stage)
            return
        slots = [x for x in node.args if isinstance(x, SlotRef)]
        for x in (*node.args, *node.named.values()):
            barrier = x.full if isinstance(x, ClusterExchange) else x
            if isinstance(barrier, Barrier):
                self._used("bar", barrier.name, barrier.stages, slots[0].stage)
            else:
                self._argument(x)

    def _op(self, op: Any) -> None:
        of = declared(type(op))
        if of.effect(Init) is not None and self._before:
            return  # all stages are alike once they are initialized
        stages = []
        for name in of.named(Kind.BAR):
            barrier, stage = getattr(op, name)
            self._used("bar", barrier.name, barrier.stages, stage)
            stages.append((barrier.name, stage))
        for name in of.named(Kind.SLOT):
            slot = getattr(op, name)
            self._slot(slot.buffer, slot.stage)
        for name, kind in of.operands.items():
            if kind is Kind.PARITY:
                self._parity(*stages[0], getattr(op, name))
            elif kind not in (Kind.BAR, Kind.SLOT, Kind.AT, Kind.WHERE, Kind.NAME):
                self._argument(getattr(op, name))

    def _argument(self, x: Any) -> None:
        x = resolve(x)
        if isinstance(x, SlotRef):
            self._slot(x.buffer, x.stage)
        elif isinstance(x, Expr):
            self._condition(x)
        elif isinstance(x, (list, tuple)):
            for each in x:
                self._argument(each)
        elif isinstance(x, dict):
            for each in x.values():
                self._argument(each)

    def _slot(self, buffer: Any, stage: Any) -> None:
        around = buffer.stages // buffer.owners
        for i in range(buffer.owners):
            array = f"slots of {buffer.name}" + (f" of owner {i}" if buffer.owners > 1 else "")
            self._used("slot", array, around, resolve(stage))

    def _used(self, kind: str, array: str, around: int, stage: Any) -> None:
        """Notes that an array is used at this stage: a variable or its successor, perhaps plus the number of a CTA."""
        var, offset = self._position(stage)
        if isinstance(stage := resolve(stage), int) and stage < 0:
            return  # there is none to release, which its condition says as well
        if var is None:
            if around > 1 and not self._before:
                self._fixed.add(array)
            self._condition(stage)
            return
        self._uses.setdefault(var, set()).add((kind, array, offset))

    def _position(self, x: Any) -> tuple[Any, Any]:
        """(variable, what is added to it); (None, None) if it is something else."""
        x = resolve(x)
        if isinstance(x, Var):
            return x, 0
        if isinstance(x, Expr) and x.op == "next":
            return self._position(x.args[0])
        if isinstance(x, Expr) and x.op == "add":
            found = [(i, self._position(a)) for i, a in enumerate(x.args)]
            own = [(i, each) for i, each in found if each[0] is not None]
            if len(own) == 1 and own[0][1][1] == 0:
                other = x.args[1 - own[0][0]]
                if not variables(other):
                    return own[0][1][0], other
        return None, None

    def _parity(self, array: str, stage: Any, parity: Any) -> None:
        parity, slot = resolve(parity), self._position(stage)[0]
        while isinstance(parity, Expr) and not isinstance(parity, Var):
            if (parity.op == "xor" and _is(parity.args[1], 1)) or parity.op == "flipped":
                parity = resolve(parity.args[0])
            else:
                break
        if isinstance(parity, Var) and slot is not None:
            self.partner.setdefault(parity, slot)
        elif isinstance(parity, Var) and not variables(stage):
            self.turns[parity] = array, stage
        elif not self._before:
            self._fixed.add(array)
            self.pinned_parities.add(array)
            self._condition(parity)

    def _flows(self, to: Any, x: Any) -> None:
        """A variable takes the value of *x*."""
        x = resolve(x)
        self._finite_steps.setdefault(to, []).append(x)
        if isinstance(x, Var):
            self._join(to, x)
            return
        if isinstance(x, Expr):
            if x.op in ("next", "flipped") and isinstance(base := _bare(x, x.op), Var):
                self._join(to, base)
                return
            if x.op == "xor" and isinstance(resolve(x.args[0]), Var) and _is(x.args[1], 1):
                self._join(to, resolve(x.args[0]))
                self._flipped.add(to)
                return
            if not variables(x) and _of_warp(x):
                return
            for var in variables(x):
                self._bad.add(var)
            self._bad.add(to)

    def _condition(self, x: Any) -> None:
        """Notes that the variables of *x* are used as numbers, except where it only asks whether there is a position."""
        x = resolve(x)
        if isinstance(x, Expr) and not isinstance(x, Var) and x.op in ("ge", "lt") and _is(x.args[1], 0):
            if isinstance(resolve(x.args[0]), Var):
                return
        self._bad |= variables(x)

    def _find_partners(self) -> None:
        """Finds partners of parities that take the value of a parity whose slot is known, and of slots likewise."""
        pairs_at_once = [[(to, _bare(x, "next", "flipped")) for to, x in each] for each in self._together]
        bare = [[(to, x) for to, x in pairs if isinstance(x, Var)] for pairs in pairs_at_once]
        while True:
            before = len(self.partner)
            for pairs in bare:
                by_target, by_source = dict(pairs), {x: to for to, x in pairs}
                for to, x in pairs:
                    slot = self.partner.get(to)
                    if slot in by_target:
                        self.partner.setdefault(x, by_target[slot])
                    slot = self.partner.get(x)
                    if slot in by_source:
                        self.partner.setdefault(to, by_source[slot])
            if len(self.partner) == before:
                return

    # ---- few values ---------------------------------------------------------------------------------------------------

    def _find_finite(self) -> None:
        """Finds the largest set of variables whose values are made of each other and of constants alone, by operations that
        give few different values."""
        finite = set(self._finite_steps)
        while True:
            more = {v for v in finite if not all(self._few(x, finite) for x in self._finite_steps[v])}
            if not more:
                break
            finite -= more
        self.finite = finite

    def _few(self, x: Any, finite: set[Any]) -> bool:
        x = resolve(x)
        if isinstance(x, Var):
            return x in finite
        if isinstance(x, Expr):
            if x.op == "symbol":
                return x.args[0] in ("warp", "rank")
            if not variables(x):
                return _of_warp(x)
            return x.op in _FINITE and all(self._few(a, finite) for a in x.args)
        return isinstance(x, (int, bool))


def _bare(x: Any, *ops: str) -> Any:
    """What *x* is, without operations of these names on it."""
    x = resolve(x)
    while isinstance(x, Expr) and not isinstance(x, Var) and x.op in ops:
        x = resolve(x.args[0])
    return x


def _is(x: Any, number: int) -> bool:
    return type(x) is int and x == number


def is_role(node: Any) -> bool:
    """Whether the number of the warp or CTA alone decides a branch."""
    return not variables(node.condition) and _of_warp(node.condition)


def _of_warp(x: Any) -> bool:
    x = resolve(x)
    if not isinstance(x, Expr):
        return True
    if x.op == "symbol":
        return x.args[0] in ("warp", "rank")
    return all(map(_of_warp, x.args))
