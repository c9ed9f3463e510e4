"""The table of operations: how an operation is declared, of which kinds its operands are, and which effects it can have.

The operations themselves are in `barriers`, `copies` and `ops`. `ops` also has the interface `Isa`, through which bodies use
them.
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

# ---- operands: annotations that say of which kind an operand is ------------------------------------------------------

ALL_LANES = 0xFFFFFFFF
ELECTED = 1  # lane 0: the same lane each time


class Kind(enum.Enum):
    """What an operand stands for."""

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


# ---- effects: what an operation does ---------------------------------------------------------------------------------
#
# An operation is a `NamedTuple` of operands. Its declaration (`Declared`) says of which kind each operand is, what the
# operation does (its effects, in order), which PTX it stands for, and with which sentence reports describe it. An effect
# refers to operands by their names.
#
# The recorder, the vector clocks, the comparison of programs, reports, mutants and the manual page read declarations. The
# transitions of the machine and the exhaustive oracle do not: they are written by hand, and the table is tested against them.


class Scope(enum.Enum):
    """How far an arrival releases its thread's earlier accesses. An effect may have the name of an operand in the place of a
    scope: then the operand says the scope."""

    CTA = "cta"
    CLUSTER = "cluster"
    RELAXED = "relaxed"


class Proxy(enum.Enum):
    """The path to memory: generic for ordinary loads and stores of threads, async for TMA and wgmma."""

    GENERIC = "generic"
    ASYNC = "async"


class Group(enum.Enum):
    """Groups by which asynchronous work is waited for: of a thread's bulk copies, or of a warpgroup's wgmmas."""

    BULK = "bulk"
    WGMMA = "wgmma"


def _names(kind: Kind, default: Any) -> Any:
    """A field that holds the name of an operand of this kind; an empty name stands for no operand."""
    return attrs.field(default=default, metadata={"kind": kind})


@attrs.frozen
class Until:
    """When work that an operation has started is over. With `group`: when `thread` (one lane), or the warpgroup, waits for the
    group. Without `group`: when `bar` has counted the `nbytes` bytes of the work, or the arrivals of `lanes`."""

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
    """Releases the thread's initializations of mbarriers to the cluster and to the async proxy."""


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
    """Adds `nbytes` to the bytes that the present phase of `bar` waits for."""

    bar: str = _names(Kind.BAR, "bar")
    nbytes: str = _names(Kind.BYTES, "nbytes")


@attrs.frozen
class ArriveAt:
    """Arrives at a barrier of warps: the hardware barrier `barrier`, for which `threads` threads arrive, or the cluster's
    barrier if `barrier` is empty. Releases at `scope`. sync: whether the warp waits for the barrier next."""

    barrier: str = _names(Kind.BARRIER_ID, "")
    threads: str = _names(Kind.THREADS, "")
    sync: str = _names(Kind.FLAG, "")
    scope: Scope | str = _names(Kind.SCOPE, Scope.CTA)  # noqa: RUF009


@attrs.frozen
class WaitAt:
    """Blocks until the barrier of warps at which the warp has arrived is complete. Acquires what the others released there."""

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
    """Reads `slot`, or overwrites it if `write`, before the operation is over. With `part`, only this part of `parts` parts,
    into which `cut` says that the slot is cut. mask: the CTA in which the slot lies."""

    slot: str = _names(Kind.SLOT, "slot")
    write: bool = False
    proxy: Proxy | str = _names(Kind.PROXY, Proxy.GENERIC)  # noqa: RUF009
    mask: str = _names(Kind.MASK, "")
    part: str = _names(Kind.NUMBER, "")
    parts: str = _names(Kind.NUMBER, "")
    cut: str = _names(Kind.NAME, "")


@attrs.frozen
class Start:
    """Starts to read `slot`, or to overwrite it if `write`. The work goes on when the operation is over.

    mask: the CTAs in which the slot is written. A slot that is read lies in the own CTA; its mask names the CTA on whose `bar`
    the end is counted. share, shares: only part `share` of `shares` disjoint parts. reduces: the written values are combined
    with the slot's values, and such writes may happen in any order.
    """

    slot: str = attrs.field(metadata={"kind": Kind.SLOT})
    until: Until
    write: bool = False
    mask: str = _names(Kind.MASK, "")
    share: str = _names(Kind.NUMBER, "")
    shares: str = _names(Kind.NUMBER, "")
    reduces: bool = False

    @property
    def proxy(self) -> Proxy:
        """The async proxy; but copies by threads, after which the threads arrive, go through the generic proxy."""
        return Proxy.GENERIC if self.until.lanes else Proxy.ASYNC


@attrs.frozen
class Tile:
    """Moves a tile of a tensor: that of the load or store `part`. The tile starts at element `at`, or has the rows `numbers`.

    inside: whether a load has to start inside the tensor, unless operand `anywhere` is true. nbytes: how many bytes are
    moved, where no mbarrier counts them.
    """

    part: str = attrs.field(metadata={"kind": Kind.NAME})
    at: str = _names(Kind.AT, "at")
    anywhere: str = _names(Kind.FLAG, "")
    numbers: str = _names(Kind.AT, "")
    nbytes: str = _names(Kind.BYTES, "")
    inside: bool = True


@attrs.frozen
class Global:
    """Threads access global memory through the generic proxy. how: "read", "write" or "atomic". part: the store whose tile
    they write, which starts at element `at`."""

    how: str
    part: str = _names(Kind.NAME, "")
    at: str = _names(Kind.AT, "")


@attrs.frozen
class EndGroup:
    """Closes a group: all that `thread`, or the warpgroup, has started since it closed the group before."""

    group: Group
    thread: str = _names(Kind.LANES, "")


@attrs.frozen
class AwaitGroup:
    """Blocks until at most `pending` groups of `thread`, or of the warpgroup, are incomplete. read: an operand; if it is true,
    groups count as complete once their sources have been read."""

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
    """Uses the registers of the accumulators of `matmul`."""

    use: Use
    matmul: str = _names(Kind.NAME, "")


@attrs.frozen
class SetRegisters:
    """Sets the registers of each thread of the warp to `registers`. To `increase` them, blocks until so many are free."""

    registers: str = _names(Kind.NUMBER, "registers")
    increase: str = _names(Kind.FLAG, "increase")


@attrs.frozen
class AwaitGrid:
    """Blocks until the earlier kernels of the stream have ended, and acquires what they have written. Before, the warp may
    touch no global memory that they write or read."""


@attrs.frozen
class Return:
    """The warp returns. It takes part in no barrier any more, and no asynchronous work that it has started may be in
    flight."""


Effect = (
    Init | FenceInit | Wait | Arrive | Arm | ArriveAt | WaitAt | SyncLanes | FenceProxy | Access | Start | EndGroup |
    AwaitGroup | Tile | Global | Accumulators | SetRegisters | AwaitGrid | Return
)  # fmt: skip


# ---- declarations -------------------------------------------------------------------------------------------------------

E = TypeVar("E")


class Names(typing.Protocol):
    """What gives the numbers of mbarriers and slots their names, for sentences."""

    def bar_name(self, bar: int) -> str: ...
    def slot_name(self, slot: int) -> str: ...
    def named_barrier_name(self, id: int) -> str: ...


Says = Callable[[Names, Any], str]


@attrs.define
class Declared:
    """The declaration of one operation.

    op: the operation's class. ptx: the instruction that it stands for, as in the PTX ISA; "" if there is none. effects: what
    it does, in order. operands: the kind of each operand, by name. says: the sentence that describes the operation in
    reports: a verb in the third person, with operands in braces, or a function of (names, operation). A part of the sentence
    in brackets is left out if an operand in it is None or False, or a count of 1.
    """

    op: type
    ptx: str
    says: str | Says
    effects: tuple[Effect, ...]
    operands: dict[str, Kind]

    def effect(self, kind: type[E]) -> E | None:
        """The first effect of this kind, or None."""
        return next((effect for effect in self.effects if isinstance(effect, kind)), None)

    def all(self, kind: type[E]) -> list[E]:
        """All effects of this kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def moved(self, op: Any) -> tuple[str, tuple[int, ...]]:
        """(the load or store whose tile *op* moves, the element at which the tile starts); ("", ()) if it moves no tile."""
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
            needless = any(value is None or (name in _COUNTS and value == 1) for name, value in values)
            return "" if needless else optional[1]

        return re.sub(r"\[(.*?)\]", said, self.says).format(**shown)

    @property
    def blocks(self) -> bool:
        """Whether a warp may have to wait in the operation."""
        return any(isinstance(effect, (Wait, WaitAt, AwaitGroup, SetRegisters)) for effect in self.effects)

    @property
    def local(self) -> bool:
        """Whether the operation has no effect on barriers, on shared memory or on accumulators."""
        return all(
            isinstance(effect, Global) or (isinstance(effect, Tile) and not effect.inside) for effect in self.effects
        )


_COUNTS = ("lanes", "shares", "parts")  # operands that sentences leave out if they are 1

#: Every operation's declaration, by its class.
TABLE: dict[type, Declared] = {}


def operation(ptx: str, says: str | Says, *effects: Effect) -> Callable[[type[E]], type[E]]:
    """Declares a `NamedTuple` as an operation. The arguments are those of `Declared`. The operation gets one more operand,
    `where`, which comes last: the source line, if the run was asked to keep it."""

    def register(op: Any) -> Any:
        kinds = {name: _kind(hint) for name, hint in typing.get_type_hints(op, include_extras=True).items()}
        fields, defaults = (*op._fields, "where"), (*op._field_defaults.values(), None)
        made: Any = collections.namedtuple(op.__name__, fields, defaults=defaults, module=op.__module__)  # type: ignore[misc]
        made.__doc__ = op.__doc__
        TABLE[made] = Declared(made, ptx, says, effects, {**kinds, "where": Kind.WHERE})
        return made

    return register


def registering(table: dict[type, Any]) -> Callable[..., Callable[[Any], Any]]:
    """A decorator that registers a function or class in *table*, for each of the types that it is given."""

    def of(*kinds: type) -> Callable[[Any], Any]:
        def register(made: Any) -> Any:
            table.update(dict.fromkeys(kinds, made))
            return made

        return register

    return of


def declared(op: type) -> Declared:
    """The declaration of an operation's class."""
    return TABLE[op]


def scope_of(scope: Scope | str, op: Any) -> Scope:
    """The scope of an effect of *op*: the effect's own scope, or the scope in the operand that the effect names."""
    return scope if isinstance(scope, Scope) else Scope(getattr(op, scope))


def proxy_of(proxy: Proxy | str, op: Any) -> Proxy:
    """The proxy of an effect of *op*, likewise."""
    return proxy if isinstance(proxy, Proxy) else Proxy(getattr(op, proxy))


def ranks(mask: int) -> str:
    """The CTAs in a mask, e.g. ``0, 2``."""
    return ", ".join(str(i) for i in range(mask.bit_length()) if mask >> i & 1)


def _shown(names: Names, kind: Kind, name: str, value: Any) -> Any:
    """An operand as a sentence shows it; None: the operand says nothing."""
    if kind is Kind.BAR:
        return names.bar_name(value)
    if kind is Kind.SLOT:
        return names.slot_name(value)
    if kind is Kind.BARRIER_ID:
        return names.named_barrier_name(value)
    if kind is Kind.FLAG:
        return name if value else None
    if isinstance(value, int) and kind is Kind.MASK:
        return ranks(value)
    return value.bit_count() if kind is Kind.LANES else value


def _kind(hint: Any) -> Kind:
    """The kind in an annotation such as ``Mask | None``."""
    for part in (hint, *typing.get_args(hint)):
        for mark in getattr(part, "__metadata__", ()):
            if isinstance(mark, Kind):
                return mark
    raise TypeError(f"{hint} names no kind of operand")


# ---- epilogues: functions of fragments that users pass ----------------------------------------------------------------


def where_is(epilogue: Callable[..., Any] | None) -> str:
    """The name of an epilogue in messages, with its line if that is known."""
    if epilogue is None:
        return "an epilogue without a function"
    code = getattr(epilogue, "__code__", None)
    name = getattr(epilogue, "__name__", type(epilogue).__name__)
    return f"epilogue {name}" + (f" of {code.co_filename}:{code.co_firstlineno}" if code else "")


def applied(epilogue: Callable[..., Any], fragments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What *epilogue* returns for these arguments. Raises `ScopeError` if it does not take them."""
    try:
        return epilogue(*fragments, **named)
    except TypeError as raised:
        try:
            inspect.signature(epilogue).bind(*fragments, **named)
        except (TypeError, ValueError) as error:  # ValueError: a built-in function without a signature
            given = [f"{len(fragments)} accumulator{'s' * (len(fragments) != 1)}", *named]
            why = error if isinstance(error, TypeError) else raised
            raise ScopeError(f"an epilogue is called with {', '.join(given)}: {why}.") from None
        raise
