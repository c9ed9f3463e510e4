"""Fragment: a tile of numbers distributed over the registers of a role's threads.

Also here: what else calls of the instruction set take, numbers that warps exchange, and calls of raw functions.
"""

from __future__ import annotations

import functools
import inspect
import math
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol

import numpy as np

from tmapipe.errors import MissingPartError, PipelineError, ScopeError, permit
from tmapipe.plan.model import RoleWarps
from tmapipe.plan.rings import Barrier, Buffer, NamedBarrier
from tmapipe.plan.thread_layout import ThreadLayout

if TYPE_CHECKING:
    from tmapipe.isa.fragments import Fragments
    from tmapipe.isa.ops import Isa


# ---- values ----------------------------------------------------------------------------------------------------------
#
# Arguments of the instruction set, besides parts of the plan: slots, fragments, and values that each backend defines.


Block = tuple[Any, ...]  #: a block of code: the loops and branches around a point of a body, from the outermost on
Value = Any  #: an index, a parity, a coordinate, a rank: ``int`` in the machine, ``Int32`` when traced
Condition = Any  #: ``bool`` in the machine, ``Boolean`` when traced
Holds = Callable[[Value, Value], Condition]  #: whether an entry of a table counts, by its number and itself


class SlotRef(NamedTuple):
    """One slot: `stage` counts from 0 to ``buffer.stages - 1``."""

    buffer: Buffer
    stage: Value


Place = tuple[Value, Value]  #: a row and a column of a slot's tile
Span = tuple[int, int]  #: the first of some rows or columns, and the one after the last
#: Pairs (length, further): after each *length* elements, *further* elements are skipped.
Gaps = tuple[tuple[int, int], ...]
Numbers = tuple["Fragment", ...]  #: fragments of one number a row
PACKED = "operand"  #: how the kind of a fragment begins that is packed for a matmul
RawFunction = Callable[..., None]
Accesses = Sequence[tuple[SlotRef, str]]  #: slots that a raw function gets, each to "read", "write" or "update" it


class Carried:
    """Base of objects that a traced body may use inside run-time loops and branches.

    A trace joins such an object where paths meet. `_carries` names the attributes that may have other values on other paths,
    such as the index of a slot. `_apart` names attributes that the method `_joined` sets again. `_facts` names attributes that
    change while a body is traced, of objects that `Isa.follow` was told of. It says what such an attribute is after paths have
    met:

        flag    whether something has happened. If it happened on some paths only, it becomes a condition of the kernel
        flags   a dictionary of such flags, by name
        union   a set. What a loop adds is in the set from the loop's beginning on
        noted   a fact that holds after a path on which it came to hold
        both    a fact that holds if it holds on both paths
        same    a value that is equal on both paths; if it is not, it cannot be asked for
        none    a value that is equal on both paths; if it is not, it becomes None
        always  a value that is equal on both paths; if it is not, that is an error
    """

    __slots__ = ()
    _carries: ClassVar[tuple[str, ...]] = ()
    _apart: ClassVar[tuple[str, ...]] = ()
    _facts: ClassVar[dict[str, str]] = {}

    def _joined(self, versions: tuple[Any, ...]) -> None:
        """Called of a copy of the first of *versions*, objects of one form that are one from now on."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = ", ".join(name for name in dir(type(self)) if not name.startswith("_"))
        raise MissingPartError(f"`.{name}` does not exist here: this object has only {known}. Use one of them.")


class Cells(Protocol):
    """Mutable integers in registers. Indices are Python ints. Aliases, attributes and closures all see one state."""

    def __getitem__(self, i: int) -> Value: ...
    def __setitem__(self, i: int, value: Value) -> None: ...


BY_ELEMENT = "an epilogue or Elementwise, which go by element. Use acc.values() or slot.x.read(), in a body."
_NO_INDEX = (bool, float, complex, str, bytes, list, tuple, type, np.ndarray, np.generic, Carried)


def is_index(value: Any, count: int | None = None) -> bool:
    """Whether *value* is an integer of 32 bits, with *count* an integer from 0 to count - 1, or a number that only the kernel
    knows."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return bool(-(2**31) <= value < 2**31) if count is None else bool(0 <= value < count)
    return hasattr(value, "__mul__") and not isinstance(value, _NO_INDEX)


class Fragment(Carried):
    """A tile of numbers that is distributed over threads. The numbers are fp32, int32, or bool (the result of a comparison).

    ``slot.x.read()`` and ``acc.values()`` make fragments. A fragment takes ``+ - * /``, comparisons, ``& | ~`` and the
    functions of `tmapipe.math`, with numbers and with other fragments that are distributed alike. A fragment of int32 also
    takes ``// % << >>``; ``//`` rounds down and ``%`` has the sign of the divisor, as in Python; a divisor that is 0 gives
    anything. Overflow of int32 wraps around. Other operations of Python are refused: indices, loops over elements, branches
    on values.

    A fragment may have one number for each row, for each column, or for the whole tile (see `along`), such as the maximum of
    each row. If it is combined with a fragment of more numbers, each number is repeated.

    ``x * a * b`` with numbers a and b is one product in fp32: ``x * (a * b)``, where a * b is rounded once.

    backend: the `Fragments` that carry out operations. layout: how the tile is distributed; None in a function that works
    element by element. along: "tile", "rows", "columns" or "one": for what there is a number; "parts": one number for each
    row, in parts that lanes have (`tmapipe.math.row_sum_parts`). kind: "fp32", "int32" or "bool"; "operand", maybe
    with the registers that it is in: packed for a matmul, which is all that can take it; "operand of" weights that are not
    converted yet. data: the backend's numbers. product: (x, number) if this fragment is x times a number.
    """

    __slots__ = ("along", "backend", "data", "kind", "layout", "product")

    def __init__(self, backend: Fragments, layout: ThreadLayout | None, along: str, kind: str, data: Any):
        self.backend, self.layout, self.along, self.kind, self.data = backend, layout, along, kind, data
        self.product: tuple[Fragment, float] | None = None
        backend.made(self)

    @property
    def packed(self) -> bool:
        """Whether only a matmul can take it."""
        return self.kind.startswith(PACKED)

    @property
    def weights(self) -> str:
        """What weights it has, if they are not converted yet."""
        return self.kind.partition(f"{PACKED} of ")[2]

    @property
    def registers(self) -> str:
        """The registers of a matmul's a that it is in, if it is converted weights."""
        return "" if self.weights else self.kind.partition(f"{PACKED} ")[2]

    @property
    def rows(self) -> Fragment:
        """The row of each element in the tile, from 0 on: one number a row."""
        return self._indices("rows")

    @property
    def columns(self) -> Fragment:
        """The column of each element in the tile, from 0 on: one number a column."""
        return self._indices("columns")

    def _indices(self, along: str) -> Fragment:
        if self.layout is None:
            raise ScopeError(f"{along} of a piece in {BY_ELEMENT}")
        self.layout.check_rows()
        return Fragment(self.backend, self.layout, along, "int32", self.backend.indices(self.layout, along))

    def __repr__(self) -> str:
        return f"Fragment({self.layout}, along={self.along!r}, {self.kind})"

    if TYPE_CHECKING:  # what is set below

        def __add__(self, other: Any) -> Fragment: ...
        def __neg__(self) -> Fragment: ...

        __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __lshift__ = __rshift__ = __add__
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rlshift__ = __rrshift__ = __add__
        __and__ = __or__ = __xor__ = __rand__ = __ror__ = __rxor__ = __add__
        __lt__ = __le__ = __gt__ = __ge__ = __add__
        __eq__ = __ne__ = __add__  # type: ignore[assignment]
        __abs__ = __invert__ = __neg__

    def __pow__(self, exponent: int) -> Fragment:
        """The power, by multiplications. exponent: an int from 1 to 64."""
        if not isinstance(exponent, int) or not 1 <= exponent <= 64:
            raise ScopeError(
                f"a fragment to the power of {exponent!r}. It takes an int from 1 to 64; tp.math has sqrt, exp2 and log2."
            )
        return functools.reduce(functools.partial(combine, "mul"), [self] * exponent)


def combine(name: str, *operands: Any) -> Fragment:
    """The result of operation *name* on fragments and numbers, element by element. At least one argument is a fragment.

    Raises:
        ScopeError: An argument is neither a fragment nor a number, or fragments are distributed differently.
    """
    product = _product(*operands) if name == "mul" else None
    operands = product or operands
    fragments = [x for x in operands if isinstance(x, Fragment)]
    first = fragments[0]
    backend, layout, along = first.backend, first.layout, first.along
    for other in fragments[1:]:
        layout, along = _joined(name, layout, along, other)
    kinds = [x.kind if isinstance(x, Fragment) else backend.kind_of(name, x) for x in operands]
    wanted, result = _kinds(name, kinds)
    data = []
    for x, kind, want in zip(operands, kinds, wanted, strict=True):
        if isinstance(x, Fragment):
            converted = backend.convert(x.data, kind, want)
            data.append(backend.expand(layout, x.along, converted, along) if x.along != along else converted)
        else:
            data.append(backend.number(in_range(name, x, want), want))
    by = operands[-1]
    if name in _OF_INTEGERS and isinstance(by, int) and (by == 0 if name in ("floordiv", "mod") else not 0 <= by < 32):
        raise ScopeError(f"{name} of a fragment by {by}. It takes a divisor other than 0, or 0 to 31 bits.")
    made = Fragment(backend, layout, along, result, backend.elementwise(name, data))
    made.product = product
    return made


def _product(x: Any, y: Any) -> tuple[Fragment, float] | None:
    """(a fragment in fp32, the number to multiply it with), in place of *x* times *y*. If *x* is a fragment times a number,
    the two numbers are multiplied. None if *x* times *y* is no such product, or its number might be too large or too small for
    fp32."""
    fragment, number = (x, y) if isinstance(x, Fragment) else (y, x)
    if type(number) not in (int, float) or fragment.kind != "fp32" or not -1e18 < number < 1e18:
        return None
    of, before = fragment.product or (fragment, 1.0)
    return (of, before * number) if 1e-18 < abs(before * number) < 1e18 else None


def in_range(name: str, number: Any, kind: str) -> Any:
    """*number*. Raises `ScopeError` for an int that a fragment of this kind has no room for."""
    bits = 32 if kind == "int32" else 128
    if isinstance(number, int) and not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        said = number if number.bit_length() < 128 else "an int"
        rule = f"which has more than {bits} bits. Use a smaller number or a float."
        raise ScopeError(f"{name} of a fragment and {said}, {rule}")
    return number


def _joined(name: str, layout: ThreadLayout | None, along: str, other: Fragment) -> tuple[ThreadLayout | None, str]:
    """(layout, along) of a fragment of *layout* and *along* that is combined with *other*."""
    both = (along, other.along)
    if "one" in both:
        return (other.layout, other.along) if along == "one" else (layout, along)
    if "parts" in both:
        return _joined_parts(name, layout, along, other)
    wide = along if along == other.along else "tile"
    kept = other.layout if along != "tile" and other.along == "tile" else layout
    if layout == other.layout:
        return kept, wide
    lines = [each for each in ("rows", "columns") if each in both]
    if layout is not None and other.layout is not None and len(lines) == 1:
        if layout.key(lines[0]) == other.layout.key(lines[0]):
            return kept, wide
    permit(layout is not None and other.layout is not None, f"{name} of a fragment and a piece in {BY_ELEMENT}")
    apart = f"fragments that are distributed differently over the threads: {layout} and {other.layout}."
    raise ScopeError(f"{name} of {apart} {_as_the_other(layout, other.layout)}")


def _as_the_other(one: ThreadLayout | None, other: ThreadLayout | None) -> str:
    """How to read one of two fragments so that both fit: a vector is read as one number for each column or row of the other
    fragment."""
    for vector, tile in ((one, other), (other, one)):
        for lines in ("columns", "rows"):
            if vector and tile and vector.rows == 1 < tile.rows and vector.columns == getattr(tile, lines):
                return f"Read the vector as numbers of the {lines} of the tile v: slot.x.read({lines}_of=v)."
    return "Read one of them like the other: slot.x.read(like=...), or rows_of= or columns_of=."


def _joined_parts(
    name: str, layout: ThreadLayout | None, along: str, other: Fragment
) -> tuple[ThreadLayout | None, str]:
    """(layout, along) of two fragments that are combined, if the rows of one of them are in parts."""
    if layout is not None and other.layout is not None and {along, other.along} <= {"parts", "rows"}:
        if layout.key("rows") == other.layout.key("rows"):
            return layout, "parts"
    fix = "Parts go with parts, and with one number a row, distributed alike; row_sum(parts) gives the whole sum."
    beside = other.along if along == "parts" else along
    raise ScopeError(f"{name} of a row's sum in parts and a fragment along {beside}. {fix}")


_LOGIC = ("and", "or", "xor", "invert")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_OF_NUMBERS = ("add", "sub", "mul", "neg", "abs", "maximum", "minimum")
_OF_INTEGERS = ("floordiv", "mod", "lshift", "rshift")


def _kinds(name: str, kinds: list[str]) -> tuple[list[str], str]:
    """The kind to which operation *name* converts its operands, and the kind of its result."""
    if any(kind.startswith(PACKED) for kind in kinds):
        raise ScopeError(f"{name} of an operand of a matmul, which is packed. Compute before k.<mma>.operand().")
    numbers = "fp32" if "fp32" in kinds else "int32"
    if name in _COMPARISONS:
        return [numbers] * len(kinds), "bool"
    if name == "where" and kinds[0] != "bool":
        raise ScopeError(f"where() with a condition in {kinds[0]}. It takes a comparison, such as x > 0.")
    if name == "where":
        chosen = "bool" if kinds[1:] == ["bool", "bool"] else "fp32" if "fp32" in kinds[1:] else "int32"
        return [kinds[0], chosen, chosen], chosen
    if name == "to_int32":
        return ["fp32"], "int32"
    if name == "from_bits":
        permit(kinds == ["int32"], f"from_bits() of a fragment in {kinds[0]}. It takes int32.")
        return kinds, "fp32"
    if name in _OF_NUMBERS:
        return [numbers] * len(kinds), numbers
    if name in _LOGIC and "fp32" not in kinds:
        logic = "bool" if set(kinds) == {"bool"} else "int32"
        return [logic] * len(kinds), logic
    if name in _OF_INTEGERS and "fp32" not in kinds:
        return ["int32"] * len(kinds), "int32"
    if name in _LOGIC or name in _OF_INTEGERS:
        raise ScopeError(f"{name} of a fragment in fp32. It takes integers; tmapipe.math.floor rounds down.")
    return ["fp32"] * len(kinds), "fp32"


def _operator(name: str, swapped: bool = False) -> Callable[..., Fragment]:
    def operate(self: Fragment, *other: Any) -> Fragment:
        return combine(name, *other, self) if swapped else combine(name, self, *other)

    return operate


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refuse(*arguments: Any, **named: Any) -> NoReturn:
        raise ScopeError(
            f"{what} of a fragment: a thread has a share of a tile, and knows it element by element only. "
            "Use arithmetic, comparison and tmapipe.math, e.g. where() for a choice and row_max() for the maximum of each row."
        )

    return refuse


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Fragment, f"__{_name}__", _operator(_name))
    setattr(Fragment, f"__r{_name}__", _operator(_name, swapped=True))
for _name in ("neg", "abs", "invert", *_COMPARISONS):
    setattr(Fragment, f"__{_name}__", _operator(_name))
Fragment.__hash__ = object.__hash__  # type: ignore[method-assign]
for _name, _what in {
    "bool": "a branch on the values",
    "iter": "a loop over the elements",
    "contains": "a search in the elements",
    "len": "the length",
    **dict.fromkeys(("float", "int", "index"), "one number"),
    "getitem": "an index or slice",
    "setitem": "an index or slice",
    "rpow": "a power",
    "matmul": "a matrix product",
    "array": "an array",
    **dict.fromkeys(("round", "trunc", "floor", "ceil"), "a rounding (tmapipe.math.floor and cast)"),
}.items():
    setattr(Fragment, f"__{_name}__", _refuse(_what))


def _refuse_numpy(self: Fragment, function: Any, *arguments: Any, **named: Any) -> NoReturn:
    _refuse(f"numpy.{getattr(function, '__name__', function)}()")()


Fragment.__array_ufunc__ = Fragment.__array_function__ = _refuse_numpy  # type: ignore[attr-defined]


def _refuse_torch(function: Any, *arguments: Any, **named: Any) -> NoReturn:
    _refuse(f"torch.{getattr(function, '__name__', function)}()")()


Fragment.__torch_function__ = staticmethod(_refuse_torch)  # type: ignore[attr-defined]


def _refuse_attribute(self: Fragment, name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(name)
    _refuse(name)()


Fragment.__getattr__ = _refuse_attribute  # type: ignore[assignment, method-assign]


#: What a reduction begins with, by operation and kind.
NEUTRAL = {
    ("sum", "fp32"): 0.0, ("maximum", "fp32"): -math.inf, ("minimum", "fp32"): math.inf, ("logsumexp", "fp32"): -math.inf,
    ("sum", "int32"): 0, ("maximum", "int32"): -(2**31), ("minimum", "int32"): 2**31 - 1,
}  # fmt: skip


# ---- exchange --------------------------------------------------------------------------------------------------------
#
# Numbers that the warps of a role exchange through shared memory, for reductions over several warps, or several CTAs.


class WarpExchange(Carried):
    """One role's `ReductionScratch`. Which of its two copies comes next is kept in a register.

    A warp writes a copy again only after the barrier of the reduction between, which all warps reach after they have read it.
    So one barrier for each reduction is enough.

    buffer: (warps, width) fp32, two slots. barrier: for all threads of the role.
    """

    peers = 1  # CTAs whose warps take part

    def __init__(self, isa: Isa, buffer: Buffer, barrier: NamedBarrier):
        self.isa, self.buffer, self.barrier = isa, buffer, barrier
        self.next = isa.cells(0, names="exchange.copy")

    @property
    def width(self) -> int:
        """How many numbers of a warp fit."""
        return self.buffer.tile[1]

    def take(self) -> SlotRef:
        """The copy to be used now."""
        copy: Any = self.next[0]
        self.next[0] = copy ^ 1
        return SlotRef(self.buffer, copy)

    def sync(self) -> None:
        """Waits for all warps of the role."""
        self.isa.named_barrier_sync(self.barrier)

    def read(self) -> None:
        """Called when the warp has read the copy."""


class ClusterExchange(WarpExchange):
    """An exchange of numbers among the CTAs of a cluster. Each warp sends its numbers to all CTAs by st.async, and waits until
    the numbers of all warps have come. A register holds the parity of the mbarriers.

    There are two copies. A warp sends the numbers of the next reduction only after it has read the numbers of this one. A copy
    is written again only after the reduction in between, which waits for the numbers of all warps.

    buffer: (CTAs * warps, width) fp32, two slots. full: completes when all numbers of a copy have come; each warp arms its
    part. mask: of the group's CTAs. rank: this CTA's index in the group. peers: how many CTAs are in the group.
    """

    def __init__(self, isa: Isa, buffer: Buffer, full: Barrier, mask: Value, rank: Value, peers: int):
        self.isa, self.buffer, self.full, self.mask, self.rank, self.peers = isa, buffer, full, mask, rank, peers
        self.next = isa.cells(0, 0, 0, names="exchange.copy exchange.parity exchange.used")  # used: copy and parity

    def take(self) -> SlotRef:
        copy, parity = self.next[0], self.next[1]
        self.next[2] = copy | parity << 1
        self.next[1] = parity ^ copy
        self.next[0] = copy ^ 1
        self.isa.mbarrier_arrive_expect_tx(self.full, copy, self.buffer.slot_bytes // self.full.count)
        return SlotRef(self.buffer, copy)

    def sync(self) -> None:
        """Waits for the numbers of all warps of all CTAs."""
        self.isa.mbarrier_wait(self.full, self.next[2] & 1, self.next[2] >> 1)

    def read(self) -> None:
        self.isa.fence_proxy_async()
        self.isa.warp_sync()


def joined_places(at: Place, gaps: Gaps, columns: Any) -> Any:
    """Where the elements of these columns of a tile lie in a slot, for `Fragments.read_joined`."""
    first = at[1] + columns
    return at[0] + first + sum(first // length * further for length, further in gaps)


# ---- raw -------------------------------------------------------------------------------------------------------------
#
# How backends call raw functions: what such a function gets to know of its role, and the lines of its errors.


class RawRole:
    """What a raw function gets to know of its role, if it has a parameter ``role``.

    name: the role's name. warp: the calling warp, counted from 0 in its team. warps: how many warps the team has.
    """

    def __init__(self, isa: Isa, role: RoleWarps):
        self.isa, self.name, self.warps = isa, role.name, role.team_warps
        self.warp: Any = (isa.warp - role.first_warp) % role.team_warps

    def extent(self, dim: str) -> Any:
        """Elements along the tensors' dimension of the name *dim*; a Python number if it is fixed. Raises `InputError` for
        a name that no tensor's dimension has."""
        return self.isa.extent_along("role.extent", dim)


def call_raw(function: Callable[..., None], tensors: list[Any], isa: Isa, role: RoleWarps) -> None:
    """Calls *function* with its tensors, and with the role if the function has a parameter ``role``. Raises `ScopeError` for
    an error in the function, with the line."""
    try:
        told = {"role": RawRole(isa, role)} if "role" in inspect.signature(function).parameters else {}
        function(*tensors, **told)
    except PipelineError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        code = getattr(inspect.unwrap(function), "__code__", None)
        inside = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
        where = f"{inside[-1].filename}:{inside[-1].lineno}: " if inside else ""
        name = getattr(function, "__name__", type(function).__name__)
        raise ScopeError(f"{where}{name}() of k.raw raised {type(error).__name__}: {error}") from error
