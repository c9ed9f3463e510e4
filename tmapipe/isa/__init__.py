"""The instruction set. Here: how an operation is declared, with the kinds of its operands, and a closed vocabulary of effects.

`ops` has the interface `Isa` through which bodies use the operations, and all of these.
"""

from __future__ import annotations

import collections
import enum
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import attrs

from tmapipe.errors import ScopeError

# ---- operands --------------------------------------------------------------------------------------------------------
#
# Operands of operations: of which kind each one is, as annotations.


ALL_LANES = 0xFFFFFFFF
ELECTED = 1  # lane 0: the same lane each time


class Kind(enum.Enum):
    """What an operand is."""

    BAR = "an mbarrier of the CTA, by its flat number; the same one `stages` slots later in its ring"
    SLOT = "a slot of shared memory, by its flat number; the same one `stages` slots later in its ring"
    PARITY = "the parity of a phase, 0 or 1"
    LANES = "lanes of the warp, one bit each"
    MASK = "CTAs of the cluster, one bit each; None: the own CTA"
    BYTES = "bytes"
    COUNT = "arrivals that complete a phase"
    PENDING = "groups that may be incomplete"
    NAME = "a part of the plan, by its name"
    BARRIER_ID = "a hardware barrier of the CTA; 0 is the CTA's own"
    THREADS = "threads that take part"
    SCOPE = 'how far earlier accesses are released: "cta", "cluster", or "relaxed" for not at all'
    PROXY = '"generic" or "async"'
    AT = "what only data depends on, such as coordinates: not compared between programs"
    NUMBER = "a number"
    FLAG = "yes or no"
    WHERE = 'the source line, "file:line", if it was asked for: not compared between programs'


Bar = Annotated[int, Kind.BAR]
Slot = Annotated[int, Kind.SLOT]
Parity = Annotated[int, Kind.PARITY]
Lanes = Annotated[int, Kind.LANES]
Mask = Annotated[int, Kind.MASK]
Bytes = Annotated[int, Kind.BYTES]
Count = Annotated[int, Kind.COUNT]
Pending = Annotated[int, Kind.PENDING]
Name = Annotated[str, Kind.NAME]
BarrierId = Annotated[int, Kind.BARRIER_ID]
Threads = Annotated[int, Kind.THREADS]
ScopeName = Annotated[str, Kind.SCOPE]
ProxyName = Annotated[str, Kind.PROXY]
At = Annotated[tuple[int, ...], Kind.AT]
Data = Annotated[int, Kind.AT]
Number = Annotated[int, Kind.NUMBER]
Flag = Annotated[bool, Kind.FLAG]
Where = Annotated["str | None", Kind.WHERE]


# ---- effects ---------------------------------------------------------------------------------------------------------
#
# What operations do, in a closed vocabulary of effects, and the declaration that holds them.
#
# An operation is a `NamedTuple` of operands. Its declaration (`Declared`) says of which kind each operand is, what
# the operation does (its effects, in order), which PTX it stands for, and the sentence that reports use. Effects name
# operands by their names.
#
# The recorder, the vector clocks, the comparison of programs, reports, mutants and the manual page read declarations.
# Two things are written by hand and never read them: the transitions of the machine, and the exhaustive oracle. The
# table is tested against both.


class Scope(enum.Enum):
    """How far an arrival releases what its thread did before. An effect that has the name of an operand instead takes that."""

    CTA = "cta"
    CLUSTER = "cluster"
    RELAXED = "relaxed"


class Proxy(enum.Enum):
    """How memory is reached: by ordinary loads and stores of threads, or by TMA and wgmma."""

    GENERIC = "generic"
    ASYNC = "async"


class Group(enum.Enum):
    """What asynchronous work is waited for by: groups of a thread's bulk copies, or of a warpgroup's wgmmas."""

    BULK = "bulk"
    WGMMA = "wgmma"


def _names(kind: Kind, default: Any) -> Any:
    """A field that holds the name of an operand of this kind, or (empty) of none."""
    return attrs.field(default=default, metadata={"kind": kind})


@attrs.frozen
class Until:
    """When started work is over. group: when its group, which is that of `thread` (one lane) or of the warpgroup, is waited
    for; else when its `nbytes` bytes, or the arrivals of its `lanes`, are counted on `bar`."""

    group: Group | None = None
    thread: str = _names(Kind.LANES, "")
    bar: str = _names(Kind.BAR, "")
    nbytes: str = _names(Kind.BYTES, "")
    lanes: str = _names(Kind.LANES, "")


@attrs.frozen
class Init:
    """Initializes `bar` with `count` arrivals a phase."""

    bar: str = _names(Kind.BAR, "bar")
    count: str = _names(Kind.COUNT, "arrivals")


@attrs.frozen
class FenceInit:
    """Releases the thread's initializations to the cluster and to the async proxy."""


@attrs.frozen
class Wait:
    """Blocks until the phase of `parity` of `bar` has completed, and acquires what its arrivals released."""

    bar: str = _names(Kind.BAR, "bar")
    parity: str = _names(Kind.PARITY, "parity")


@attrs.frozen
class Arrive:
    """Arrives at `bar`: once by each of `lanes`, or, with a `mask`, once at each CTA in it. Releases at `scope`."""

    bar: str = _names(Kind.BAR, "bar")
    lanes: str = _names(Kind.LANES, "")
    mask: str = _names(Kind.MASK, "")
    scope: Scope | str = _names(Kind.SCOPE, Scope.CTA)  # noqa: RUF009


@attrs.frozen
class Arm:
    """Raises the bytes that the present phase of `bar` waits for by `nbytes`."""

    bar: str = _names(Kind.BAR, "bar")
    nbytes: str = _names(Kind.BYTES, "nbytes")


@attrs.frozen
class ArriveAt:
    """Arrives at a barrier of warps: the hardware barrier `barrier` of so many `threads`, or the cluster's where it is empty.
    Releases at `scope`. sync: whether the warp waits for it next."""

    barrier: str = _names(Kind.BARRIER_ID, "")
    threads: str = _names(Kind.THREADS, "")
    sync: str = _names(Kind.FLAG, "")
    scope: Scope | str = _names(Kind.SCOPE, Scope.CTA)  # noqa: RUF009


@attrs.frozen
class WaitAt:
    """Blocks until the barrier of warps that the warp has arrived at is complete; acquires what was released there."""

    barrier: str = _names(Kind.BARRIER_ID, "")


@attrs.frozen
class SyncLanes:
    """Orders the accesses of the warp's lanes among themselves."""


@attrs.frozen
class FenceProxy:
    """Orders generic accesses of `lanes` before later accesses through the async proxy. space: "shared" or "global"."""

    space: str = "shared"
    lanes: str = _names(Kind.LANES, "lanes")


@attrs.frozen
class Access:
    """Reads, or if `write` overwrites, `slot`, or part `part` of `parts` of it, which `cut` has made, and has done so when the
    operation is over. mask: in which CTA."""

    slot: str = _names(Kind.SLOT, "slot")
    write: bool = False
    proxy: Proxy | str = _names(Kind.PROXY, Proxy.GENERIC)  # noqa: RUF009
    mask: str = _names(Kind.MASK, "")
    part: str = _names(Kind.NUMBER, "")
    parts: str = _names(Kind.NUMBER, "")
    cut: str = _names(Kind.NAME, "")


@attrs.frozen
class Start:
    """Starts to read, or if `write` to overwrite, `slot`. mask: in which CTAs; share, shares: only this one of so many
    disjoint parts of the slot; reduces: the written values are combined with the slot's, in any order with other such writes.
    A slot that is read lies in the own CTA; then the mask says on whose `bar` the end is counted."""

    slot: str = attrs.field(metadata={"kind": Kind.SLOT})
    until: Until
    write: bool = False
    mask: str = _names(Kind.MASK, "")
    share: str = _names(Kind.NUMBER, "")
    shares: str = _names(Kind.NUMBER, "")
    reduces: bool = False

    @property
    def proxy(self) -> Proxy:
        """Copies by threads, after which these arrive, go through the generic one."""
        return Proxy.GENERIC if self.until.lanes else Proxy.ASYNC


@attrs.frozen
class Tile:
    """Moves a tile of the tensor that the load or store `part` is bound to, from element `at` on, or of the rows `numbers`.
    inside: whether a load starts inside the tensor, unless `anywhere`; nbytes: how many bytes, where no mbarrier counts them.
    """

    part: str = attrs.field(metadata={"kind": Kind.NAME})
    at: str = _names(Kind.AT, "at")
    anywhere: str = _names(Kind.FLAG, "")
    numbers: str = _names(Kind.AT, "")
    nbytes: str = _names(Kind.BYTES, "")
    inside: bool = True


@attrs.frozen
class Global:
    """Threads read or write global memory, or do both at once, through the generic proxy. how: "read", "write", "atomic";
    part: the store that a tile at `at` is written by."""

    how: str
    part: str = _names(Kind.NAME, "")
    at: str = _names(Kind.AT, "")


@attrs.frozen
class EndGroup:
    """Closes the group of what `thread`, or the warpgroup, has started since the last one."""

    group: Group
    thread: str = _names(Kind.LANES, "")


@attrs.frozen
class AwaitGroup:
    """Blocks until at most `pending` groups of `thread`, or of the warpgroup, are incomplete. read: the operand that says
    whether it is enough that their sources have been read."""

    group: Group
    thread: str = _names(Kind.LANES, "")
    pending: str = _names(Kind.PENDING, "pending")
    read: str = _names(Kind.FLAG, "")


class Use(enum.Enum):
    """What is done to an accumulator's registers."""

    WRITE = "threads write them"
    READ = "threads read them"
    FENCE = "threads' accesses are ordered before the next wgmma"
    UPDATE = "the tensor core updates them, until the group is waited for"


@attrs.frozen
class Accumulators:
    """Uses the registers of accumulators, those of `matmul`."""

    use: Use
    matmul: str = _names(Kind.NAME, "")


@attrs.frozen
class SetRegisters:
    """Sets the warp's registers a thread to `registers`; blocks, to `increase` them, until so many are free."""

    registers: str = _names(Kind.NUMBER, "registers")
    increase: str = _names(Kind.FLAG, "increase")


@attrs.frozen
class AwaitGrid:
    """Blocks until the kernels before this one in the stream have ended; acquires what they have written. No global memory
    that they write or read may be touched before."""


@attrs.frozen
class Return:
    """The warp returns: it takes part in no barrier any more, and nothing of its own may be in flight."""


Effect = (
    Init | FenceInit | Wait | Arrive | Arm | ArriveAt | WaitAt | SyncLanes | FenceProxy | Access | Start | EndGroup |
    AwaitGroup | Tile | Global | Accumulators | SetRegisters | AwaitGrid | Return
)  # fmt: skip


# ---- declarations -------------------------------------------------------------------------------------------------------

E = TypeVar("E")


class Names(typing.Protocol):
    """Names of flat numbers, for sentences."""

    def bar_name(self, bar: int) -> str: ...
    def slot_name(self, slot: int) -> str: ...
    def named_barrier_name(self, id: int) -> str: ...


Says = Callable[[Names, Any], str]


@attrs.define
class Declared:
    """The declaration of one operation.

    op: its class; ptx: the instruction that it stands for, as in the PTX ISA ("" for what has none); says: its sentence
    in reports, a verb in the third person, with operands in braces, or a function of (names, operation); effects: what it
    does, in order; operands: their kinds by name. What stands in brackets in a sentence is left out if an operand in it is
    None or False, or a count of 1.
    """

    op: type
    ptx: str
    says: str | Says
    effects: tuple[Effect, ...]
    operands: dict[str, Kind]

    def effect(self, kind: type[E]) -> E | None:
        """The first effect of this kind, or None."""
        for effect in self.effects:
            if isinstance(effect, kind):
                return effect
        return None

    def all(self, kind: type[E]) -> list[E]:
        """All effects of this kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def moved(self, op: Any) -> tuple[str, tuple[int, ...]]:
        """The load or store whose tile *op* moves, and where that starts; "" and () where it moves none."""
        effect = self.effect(Tile) or self.effect(Global)
        if effect is None or not effect.part:
            return "", ()
        return getattr(op, effect.part), getattr(op, effect.at)

    def named(self, *kinds: Kind) -> list[str]:
        """The operands of these kinds."""
        return [name for name, kind in self.operands.items() if kind in kinds]

    def sentence(self, names: Names, op: Any) -> str:
        """What an operation of this class does, e.g. ``waits for ring.full[0] (parity 1)``."""
        if not isinstance(self.says, str):
            return self.says(names, op)
        shown = {name: _shown(names, kind, name, getattr(op, name)) for name, kind in self.operands.items()}

        def said(optional: re.Match[str]) -> str:
            values = [(name, shown[name]) for name in re.findall(r"{(\w+)}", optional[1])]
            needless = any(value is None or (value == 1 and name in _COUNTS) for name, value in values)
            return "" if needless else optional[1]

        return re.sub(r"\[(.*?)\]", said, self.says).format(**shown)

    @property
    def blocks(self) -> bool:
        """Whether a warp may have to wait in it."""
        return any(isinstance(effect, (Wait, WaitAt, AwaitGroup, SetRegisters)) for effect in self.effects)

    @property
    def local(self) -> bool:
        """Whether it has no effect on barriers, shared memory or registers that others have a part in."""
        return all(
            isinstance(effect, Global) or (isinstance(effect, Tile) and not effect.inside) for effect in self.effects
        )


_COUNTS = ("lanes", "shares", "parts")  # operands of which 1 goes without saying

#: Every operation's declaration, by its class.
TABLE: dict[type, Declared] = {}


def operation(ptx: str, says: str | Says, *effects: Effect) -> Callable[[type[E]], type[E]]:
    """Declares a `NamedTuple` as an operation, which gets a last operand: `where`, the source line, if it was asked for. The
    arguments are those of `Declared`."""

    def register(op: Any) -> Any:
        kinds = {name: _kind(hint) for name, hint in typing.get_type_hints(op, include_extras=True).items()}
        fields, defaults = (*op._fields, "where"), (*op._field_defaults.values(), None)
        made: Any = collections.namedtuple(op.__name__, fields, defaults=defaults, module=op.__module__)  # type: ignore[misc]
        made.__doc__ = op.__doc__
        TABLE[made] = Declared(made, ptx, says, effects, {**kinds, "where": Kind.WHERE})
        return made

    return register


def declared(op: type) -> Declared:
    """The declaration of an operation's class."""
    return TABLE[op]


def scope_of(scope: Scope | str, op: Any) -> Scope:
    """The scope of an effect of *op*: the effect's own scope, or the scope in the operand that the effect names."""
    return scope if isinstance(scope, Scope) else Scope(getattr(op, scope))


def proxy_of(proxy: Proxy | str, op: Any) -> Proxy:
    """The same of a proxy."""
    return proxy if isinstance(proxy, Proxy) else Proxy(getattr(op, proxy))


def ranks(mask: int) -> str:
    """The CTAs in a mask, e.g. ``0, 2``."""
    return ", ".join(str(i) for i in range(mask.bit_length()) if mask >> i & 1)


def _shown(names: Names, kind: Kind, name: str, value: Any) -> Any:
    """An operand in a sentence. None: it says nothing."""
    if kind is Kind.BAR:
        return names.bar_name(value)
    if kind is Kind.SLOT:
        return names.slot_name(value)
    if kind is Kind.BARRIER_ID:
        return names.named_barrier_name(value)
    if kind is Kind.FLAG:
        return name if value else None
    if value is not None and kind is Kind.MASK:
        return ranks(value)
    return value.bit_count() if kind is Kind.LANES else value


def _kind(hint: Any) -> Kind:
    """The kind in an annotation such as ``Mask | None``."""
    for part in (hint, *typing.get_args(hint)):
        for mark in getattr(part, "__metadata__", ()):
            if isinstance(mark, Kind):
                return mark
    raise TypeError(f"{hint} names no kind of operand")


# ---- functions -------------------------------------------------------------------------------------------------------
#
# Calls of users' functions of fragments, which epilogues are.


def where_is(epilogue: Callable[..., Any] | None) -> str:
    """Its name, and the line if it says which, in reports."""
    if epilogue is None:
        return "an epilogue without a function"
    code = getattr(epilogue, "__code__", None)
    name = getattr(epilogue, "__name__", type(epilogue).__name__)
    return f"epilogue {name}" + (f" of {code.co_filename}:{code.co_firstlineno}" if code else "")


def applied(epilogue: Callable[..., Any], fragments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What *epilogue* returns. Raises `ScopeError` if it is a function of something else."""
    try:
        return epilogue(*fragments, **named)
    except TypeError as raised:
        try:
            inspect.signature(epilogue).bind(*fragments, **named)
        except (TypeError, ValueError) as error:  # ValueError: a built-in one that does not say
            given = [f"{len(fragments)} accumulator{'s' * (len(fragments) != 1)}", *named]
            why = error if isinstance(error, TypeError) else raised
            raise ScopeError(f"an epilogue is called with {', '.join(given)}: {why}.") from None
        raise
