"""Matmuls, their accumulators and turnstiles, as the body of a role uses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import attrs

from tmapipe.barrier import Turnstile
from tmapipe.errors import ScopeError, permit, require
from tmapipe.isa.fragment import PACKED, Carried, Fragment, combine
from tmapipe.isa.ops import Isa
from tmapipe.parts import Wgmma
from tmapipe.plan.rings import Barrier, Buffer, HeldTile, Matmul, NamedBarrier
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.protocol.ring import Groups, RingEnd, Slot, Started
from tmapipe.protocol.slots import PartInSlot
from tmapipe.protocol.tile import stands_for

# ---- matmuls ---------------------------------------------------------------------------------------------------------


class BoundMatmul(Carried):
    """A `Wgmma` in the role that executes it. ends: the role's ends of the rings whose slots the matmul reads."""

    _facts: ClassVar[dict[str, str]] = {"latest": "none"}

    def __init__(self, isa: Isa, matmul: Matmul, ends: list[RingEnd], groups: Groups):
        self.isa, self.matmul, self.ends, self.groups = isa, matmul, ends, groups
        self.latest: Accumulator | None = None
        isa.follow(self)

    def accumulate(self, *, empty: bool = True) -> Accumulator:
        """``with k.mma.accumulate() as acc:`` starts from zero; inside, ``acc.add(slot.a, slot.b)`` once per slot.

        At the end of the block, all wgmma groups have retired, the slots that the body has left are released, and the sums can
        be used. They can be used until the matmul's next block begins, since it has the same registers.

        Args:
            empty: Whether the block may end without a slot. False saves an instruction for each value. The model then raises
                `ScopeError` for a block without a slot.
        """
        self.latest = Accumulator(self, empty)
        return self.latest

    def start(self, a: PartInSlot | Fragment, b: PartInSlot) -> Started:
        """``s = k.mma.start(slot.a, slot.b)`` starts the matmul of two tiles, from zero; ``s.wait()`` gives the accumulator.

        Between start and wait, the body can start other matmuls and work on values. It may leave the slots before the wait;
        they are released at the wait. The sums can be used until the next start.

        Args:
            a: The tile of an open slot; a fragment, if the matmul takes a from registers.
            b: The tile of an open slot, of the same ring or another.

        Raises:
            ScopeError: In an `accumulate` block of this matmul (use ``acc.start``), or before the matmul's last start was
                awaited.
        """
        name = self.matmul.name
        if self.latest is not None and self.latest.open:
            raise ScopeError(f"k.{name}.start() inside `with k.{name}.accumulate() as acc`. Use acc.start() there.")
        if self.latest is not None and self.latest.started:
            raise ScopeError(f"k.{name}.start() before its last start was awaited. Both have the same registers.")
        self.latest = Accumulator(self, empty=False)
        self.latest.registers = self.isa.fragments.accumulator(self.matmul, False)
        return self.latest._start(a, b)

    def operand(self, *parts: Fragment) -> Fragment:
        """Operand a from registers, rounded to the type of b and packed here, instead of at the matmul's start. A loop that
        carries a packed operand needs half the registers.

        Args:
            parts: A fragment that `start` takes; or several fragments whose columns side by side, in the order of k, make one.

        Raises:
            ScopeError: The matmul takes a from slots, or `start` would not take the fragments.
        """
        matmul, fragments = self.matmul, self.isa.fragments
        why = "is packed by acc.add()" if matmul.in_flight else "is the tile of a slot. Pass that tile to start()"
        permit(matmul.a is None and not matmul.in_flight, f"k.{matmul.name}.operand(), whose a {why}.")
        values = _beside(matmul, parts)
        check_operand(matmul, values)
        if values.packed:
            return values
        return Fragment(fragments, values.layout, "tile", PACKED, fragments.packed(matmul, values))


def _layout_of_a(matmul: Matmul, columns: int) -> AccumulatorLayout:
    """How an operand a from registers, of this many columns, is distributed."""
    return attrs.evolve(AccumulatorLayout.of(matmul), columns=columns)


WEIGHTS = "int8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2"  # of few bits, by kind


def _check_weights(where: str, buffer: Buffer, k: int, kind: str) -> None:
    """Raises `InputError` unless rows of *buffer* have *k* weights of this *kind*."""
    plain, four = kind.removesuffix("/64") if "int" in kind else kind, "int4" in kind
    require(plain in WEIGHTS, f"{where}(kind)", kind, f"is one of {', '.join(WEIGHTS)}", 'e.g. "int8"')
    row, dtype = k // (1 + four), plain if plain.startswith("fp8") else "int8"
    rule = f"has rows of {row} elements of {dtype}, whole multiples of 16, for {k} weights of {kind}"
    fits = buffer.tile[-1] == row and row % 16 == 0 and buffer.dtype.name == dtype
    require(fits, f"{where}(part)", (buffer.tile, buffer.dtype.name), rule, "load such a tile")


def _check_scales(where: str, k: int, kind: str, *by: Any) -> None:
    """Raises `InputError` unless *by* are as many numbers each, for equal parts of *k* weights that lanes have whole."""
    counts, least = {len(numbers) for numbers in by if numbers}, 16 << ("int4" in kind)
    rule = f"are as many for zero as for scale, each for a part of k of a multiple of {least} weights"
    fits = len(counts) < 2 and all(k % (n * least) == 0 for n in counts)
    require(fits, f"{where}(zero, scale)", [*map(len, by)], rule, "pass as many fragments as k has such parts")


def _beside(matmul: Matmul, parts: tuple[Any, ...]) -> Fragment:
    """One fragment that has the columns of all *parts*. Raises `ScopeError` for parts that *matmul* does not take."""
    if len(parts) == 1:
        return parts[0]
    widths = []
    for part in parts:
        columns = part.layout.columns if isinstance(part, Fragment) and part.layout is not None else 0
        fits = columns and part.along == "tile" and not part.packed
        if not fits or part.layout != _layout_of_a(matmul, columns):
            rule = f"takes parts that are distributed as accumulators of {matmul.shape[0]} rows, not {part!r}"
            raise ScopeError(f"k.{matmul.name}.operand() {rule}.")
        widths.append(columns)
    fragments, layout = parts[0].backend, _layout_of_a(matmul, sum(widths))
    wide = [part if part.kind == "fp32" else combine("widen", part) for part in parts]
    return Fragment(fragments, layout, "tile", "fp32", fragments.beside(layout, [part.data for part in wide]))


def check_operand(matmul: Matmul, values: Fragment) -> None:
    """Raises `ScopeError` unless *values* are distributed as *matmul* takes its a from registers."""
    layout = _layout_of_a(matmul, matmul.shape[2])
    if not isinstance(values, Fragment) or values.along != "tile" or values.layout != layout or values.weights:
        rule = "start() takes a fragment that is distributed as the accumulators of a matmul of"
        raise ScopeError(f"{matmul.name}: {rule} {matmul.shape[0]} x {matmul.shape[2]}, not {values!r}.")


@stands_for(Wgmma)
def _of_matmul(k: Any, name: str, mma: Wgmma) -> BoundMatmul | None:
    matmul: Matmul = k.plan.matmul(name)
    if matmul.first_warp != k.role.first_warp:
        return None
    rings = dict.fromkeys(k.name_of(stage.ring) for stage in mma.stages)
    return BoundMatmul(k.isa, matmul, [k.ends[ring] for ring in rings], k._groups)


class Accumulator(Carried):
    """The fp32 sums of one output tile, in the registers of the role's warpgroups."""

    _facts: ClassVar[dict[str, str]] = {"open": "same", "added": "noted", "used_inside": "noted"}

    def __init__(self, bound: BoundMatmul, empty: bool):
        self.bound, self.empty = bound, empty
        self.registers: Any = None
        self.open = False
        self.added = False
        self.used_inside = False  # whether threads have used the sums before the end of the block
        self.turns, self.registers_of_a = 0, ""  # matmuls added with a from registers; the registers of the last such a
        bound.isa.follow(self)

    @property
    def matmul(self) -> Matmul:
        """The matmul that makes these sums."""
        return self.bound.matmul

    @property
    def started(self) -> bool:
        """Whether a matmul was started on these sums and not awaited."""
        return any(each.accumulator is self for each in self.bound.groups.started)

    def __enter__(self) -> Accumulator:
        if self.bound.latest is not self or self.open:
            raise ScopeError(f"an accumulator of {self.matmul.name} entered twice. Call accumulate() for each block.")
        self.registers = self.bound.isa.fragments.accumulator(self.matmul, self.empty)
        self.open = True
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            if self.started:
                rule = "left before a matmul that was started in it was awaited"
                raise ScopeError(f"the `accumulate` block of {self.matmul.name} {rule}. Call its wait() in the block.")
            groups = self.bound.groups
            groups.close()
            for end in self.bound.ends:
                end.drain()
            groups.settle()
        self.open = False

    def add(self, a: Any, b: PartInSlot) -> None:
        """Starts a matmul, whose products are added to the sums. The rings and the end of `accumulate` wait until it is done.

        Args:
            a: The tile of an open slot; if the matmul takes a from registers: a fragment, or a tuple of fragments whose
                columns side by side make one.
            b: The tile of an open slot.

        Raises:
            ScopeError: Outside of the `accumulate` block, or the sums were used inside of the block.
        """
        matmul = self.matmul
        permit(self.open, "acc.add() outside `with k.<mma>.accumulate() as acc`. Move it into that block.")
        if matmul.a is None and isinstance(a, Fragment) and a.registers:
            self.registers_of_a = a.registers
        elif matmul.a is None:
            self._turn("add")
            a = _beside(matmul, a if isinstance(a, tuple) else (a,))
            rule = "takes a result of acc.widened(), or a fragment that is not packed"
            permit(not isinstance(a, Fragment) or not a.packed, f"acc.add() of {matmul.name} {rule}.")
        fix = "use acc.start() and .wait()"
        permit(not self.used_inside, f"acc.add() of {matmul.name}, whose sums are used inside the block: {fix}.")
        slots = self._issue("add", a, b)
        for slot in slots:
            slot.added = True
        self.added = True
        if matmul.promote:
            self.bound.groups.commit()
            self.bound.groups.wait(0)
            self.bound.isa.fragments.accumulator_promote(matmul, self.registers)
            for slot in slots:
                slot.retired = True

    def _turn(self, verb: str) -> None:
        """Gives operand a of the next matmul other registers than the last operand a, which wgmma may still read."""
        matmul = self.matmul
        if not self.open or matmul.a is not None or not matmul.in_flight:
            fix = "use acc.start() and .wait(), or Wgmma(in_flight=1) in its block"
            raise ScopeError(f"acc.{verb}() of {matmul.name}, whose a comes from registers: {fix}.")
        self.registers_of_a = f"{matmul.name} a{self.turns % (matmul.in_flight + 1)}"
        self.turns += 1

    def raw(self, part: PartInSlot, kind: str) -> Fragment:
        """Reads the weights of an open slot, for a `widened` that comes later. The arguments are those of `widened`."""
        part.by_threads()
        rows, _, k = self.matmul.shape
        _check_weights("acc.raw", part.part.buffer, k, kind)
        tile, rule = part.part.buffer.tile, f"has {rows} rows of weights"
        require(math.prod(tile[:-1]) == rows, "acc.raw(part)", tile, rule, "load such a tile")
        layout = _layout_of_a(self.matmul, k // (1 + ("int4" in kind)))
        fragments = self.bound.isa.fragments
        return Fragment(fragments, layout, "tile", f"{PACKED} of {kind}", fragments.raw_weights(layout, part.ref, kind))

    def widened(
        self, part: Any, kind: str, zero: tuple[Fragment, ...] = (), scale: tuple[Fragment, ...] = ()
    ) -> Fragment:
        """Operand a of an ``acc.add``: ``w * scale - zero * scale`` of the weights w of an open slot, rounded once.
        Scale, and zero times scale, are rounded to the type of b before.

        Args:
            part: The tile with the weights: (m, k) weights of 8 bits; or (m, k / 2) bytes, each with two weights of 4 bits. 16
                bytes hold 32 weights along k: byte 4 q + 2 i + c has weight 16 c + 2 q + i in its low half, and the weight 8
                further on in its high half. Or what `raw` has read of it.
            kind: "int8", "int4" (from -8 to 7), "uint4" (from 0 to 15), "fp8_e4m3" or "fp8_e5m2"; "int8/64" and so on:
                64th parts of these integers, which take fewer instructions.
            zero: Fragments of one number for each row. With n fragments, each counts for one of n equal parts of k. Empty: 0.
            scale: Fragments as for *zero*. Empty: 1.

        Raises:
            ScopeError: Outside of the `accumulate` block, or the matmul is no ``Wgmma(RegisterTile(...), b, in_flight=1)``.
        """
        self._turn("widened")
        matmul, fragments = self.matmul, self.bound.isa.fragments
        raw = part if isinstance(part, Fragment) else self.raw(part, kind)
        _check_scales("acc.widened", matmul.shape[2], kind, zero, scale)
        permit(raw.weights == kind, f"acc.widened() of {matmul.name} takes what acc.raw() read of {kind}, not {raw!r}.")
        words = fragments.widened(matmul, raw.data, kind, zero, scale, self.registers_of_a)
        of = f"{PACKED} {self.registers_of_a}"
        return Fragment(fragments, _layout_of_a(matmul, matmul.shape[2]), "tile", of, words)

    def start(self, a: PartInSlot | Fragment, b: PartInSlot) -> Started:
        """Starts the matmul of *a* and *b*, which is added to these sums. They can be used again after ``.wait()``. The
        arguments are those of `BoundMatmul.start`.

        Raises:
            ScopeError: Outside of the `accumulate` block.
        """
        permit(self.open, "acc.start() outside `with k.<mma>.accumulate() as acc`. Move it into that block.")
        return self._start(a, b)

    def _start(self, a: PartInSlot | Fragment, b: PartInSlot) -> Started:
        matmul = self.matmul
        permit(not matmul.promote, f"start() of {matmul.name}, whose sums are promoted: use acc.add().")
        for end in self.bound.ends:
            where = f"where slots of ring {end.ring.name!r} are released {end.lag} later"
            permit(not end.lag, f"start() of {matmul.name}, {where}. Declare its matmuls with in_flight=0.")
        slots = self._issue("start", a, b)
        return Started(self.bound.groups, self, slots)

    def _issue(self, verb: str, a: PartInSlot | Fragment, b: PartInSlot) -> list[Slot]:
        """Issues the wgmmas of two tiles. Returns the slots that they read."""
        isa, matmul = self.bound.isa, self.matmul
        first = "a fragment" if matmul.a is None else f"slot.{matmul.a.name}"
        slots = []
        for part, operand in ((a, matmul.a), (b, matmul.b)):
            if isinstance(part, PartInSlot):
                part.slot._check_open(part.ref.buffer.name)
                slots.append(part.slot)
            in_place = isinstance(part, Fragment) if operand is None else isinstance(part, PartInSlot)
            if not in_place or (isinstance(part, PartInSlot) and part.ref.buffer != operand):
                raise ScopeError(f"acc.{verb}() takes {first} and slot.{matmul.b.name}, in this order.")
        left: Any = self._in_registers(a) if isinstance(a, Fragment) else a.ref
        # One fence per tile would order the registers. But if a wgmma has no fence before it, ptxas may add a fence anywhere.
        # If it adds one in a path that it takes for divergent, it serializes every wgmma (its note C7519).
        isa.wgmma_fence()
        isa.wgmma(matmul, self.registers, left, b.ref, self.registers_of_a)
        self.bound.groups.issued()
        return list({id(slot): slot for slot in slots}.values())

    def _in_registers(self, values: Fragment) -> Any:
        """Operand a in registers. The registers belong to the matmul until the matmul has been awaited."""
        matmul = self.matmul
        if self.started:
            raise ScopeError(f"start() of {matmul.name} before its last start was awaited: a has the same registers.")
        check_operand(matmul, values)
        return self.bound.isa.fragments.operand(matmul, values, self.registers_of_a)

    def scale(self, by: Fragment) -> None:
        """Multiplies the sums by one number for each row, between matmuls that were awaited.

        Args:
            by: One number for each row, or a single number. Numbers of rows come from a fragment that is distributed as these
                sums are, e.g. by `tmapipe.math.row_max`.

        Raises:
            ScopeError: A matmul that was started on the sums has not been awaited, or *by* is another fragment.
        """
        self.check_readable()
        fits = isinstance(by, Fragment) and by.along == "one"
        if isinstance(by, Fragment) and by.along == "rows" and by.layout is not None:
            fits = by.layout.key("rows") == AccumulatorLayout.of(self.matmul).key("rows")
        if not fits:
            rule = "takes a fragment of one number for each row of its sums"
            raise ScopeError(f"scale() of {self.matmul.name} {rule}, not {by!r}.")
        self.bound.isa.fragments.accumulator_scale(self.matmul, self.registers, by)

    def after(self, values: Fragment) -> Fragment:
        """*values*, in a form that keeps arithmetic on them below the wait for the matmuls on these sums.

        The compiler moves arithmetic above a wait if nothing prevents it. Arithmetic on the returned values stays below.

        Args:
            values: A fragment of one number for each row, or of more numbers.

        Raises:
            ScopeError: The sums cannot be used, as for `values`.
        """
        self.check_readable()
        return self.bound.isa.fragments.accumulator_after(self.matmul, self.registers, values)

    def values(self) -> Fragment:
        """All sums, as a fragment of (m, n).

        Raises:
            ScopeError: The matmuls on these sums have not been awaited, or the matmul's next block or start has begun.
        """
        self.check_readable()
        return self.bound.isa.fragments.accumulator_values(self.matmul, self.registers)

    def columns(self, block: int, first: int, columns: int) -> Fragment:
        """A piece of the sums: columns [first, first + columns) of the warpgroup's row block *block*, which has 64 rows.
        Raises `ScopeError` as `values` does."""
        self.check_readable()
        return self.bound.isa.fragments.accumulator_columns(self.matmul, self.registers, block, first, columns)

    def check_readable(self) -> None:
        """Raises `ScopeError` if wgmma may still write the sums, or other sums have taken their registers."""
        if self.open and (self.added or any(end.lag for end in self.bound.ends)):
            rule = "read inside its `accumulate` block, where wgmma may still write it. Leave it first."
            raise ScopeError(f"an accumulator {rule}")
        self.used_inside = self.open
        if self.started:
            raise ScopeError(f"an accumulator of {self.matmul.name} read before a matmul started on it was awaited.")
        rule = "read after the next `accumulate` block has begun, which has the same registers"
        fix = "Store it before, or declare a second Wgmma."
        permit(self.bound.latest is self, f"an accumulator of {self.matmul.name} {rule}. {fix}")


class BoundRegisterTile(Carried):
    """A `RegisterTile` in the role that computes it."""

    def __init__(self, plan: HeldTile):
        self.plan, self.layout = plan, AccumulatorLayout.of(plan)

    def read(self, part: PartInSlot) -> Fragment:
        """The tile *part* of an open slot as a fragment of fp32. A store takes the values that are computed from it."""
        values = part.read_piece(self.layout, ("rows", "columns"))
        return values if values.kind == "fp32" else combine("widen", values)

    def products(self, few: PartInSlot, rows: PartInSlot, sums: Fragment, kind: str, parts: int, *by: Any) -> Fragment:
        """*sums* of this tile, plus the products of each row of weights with the few rows of its part, by ``mma.sync``.

        Args:
            few: Weights of *kind*, a row for each row of the tile. They and *by*, zero and scale, are as for `widened`.
            rows: In *parts* equal parts, as the weights. Columns of sums for which a part has no row repeat its last row.
        """
        (a, b), bits = (each.part.buffer for each in (rows, few)), 4 if kind.endswith("int4") else 8
        _check_weights(f"k.{self.plan.name}.products", b, a.tile[-1], kind)
        _check_scales(f"k.{self.plan.name}.products", a.tile[-1], kind, *by)
        fits = b.swizzle == b.tile[-1] >= 64 and b.tile[0] == self.plan.shape[0] and 8 * b.tile[-1] == bits * a.tile[-1]
        fits = fits and a.dtype.bytes == 2 and a.swizzle == 128 and a.tile[0] % parts == self.layout.warps % parts == 0
        rule = "has as many elements as weights, swizzled by 128 bytes, and weights by their rows of 64 or 128 bytes"
        require(fits and sums.layout == self.layout, f"k.{self.plan.name}.products", a.tile, rule, "e.g. (32, 128)")
        few.by_threads()
        rows.by_threads()
        fragments = few.part.isa.fragments
        data = fragments.products(sums, rows.ref, few.ref, kind, parts, *by)
        return Fragment(fragments, sums.layout, "tile", "fp32", data)


Epilogue = Callable[..., Any]


# ---- turns -----------------------------------------------------------------------------------------------------------


class BoundTurnstile(Carried):
    """A `Turnstile` in its role. Its *units* take turns: the role's teams, or the warpgroups of a single team.

    own: the number of the unit that runs this code.
    """

    _facts: ClassVar[dict[str, str]] = {"inside": "same"}

    def __init__(self, isa: Isa, name: str, own: Any, units: int):
        self.isa, self.name, self.own, self.units = isa, name, own, units
        self.inside = False
        self.isa.follow(self)

    def turn(self) -> BoundTurnstile:
        """The scope of one turn. Entering it waits for the unit before; leaving it lets the next unit in."""
        return self

    def __enter__(self) -> BoundTurnstile:
        permit(not self.inside, f"turnstile {self.name!r} entered twice. Leave the first turn before the next.")
        self.inside = True
        self.wait()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.inside = False
        if kind is None:
            following = self.own + 1
            self._let_in(self.isa.select(following == self.units, 0, following))

    def wait(self) -> None:
        """Waits until the unit before has let this unit in."""
        raise NotImplementedError

    def _let_in(self, following: Any) -> None:
        raise NotImplementedError


class TeamsInTurn(BoundTurnstile):
    """Teams take turns through mbarriers. A register holds the parity for which a team waits."""

    def __init__(self, k: Any, name: str):
        self.barrier: Barrier = k.plan.barrier(f"{name}.turn")
        super().__init__(k.isa, name, k.role.team(k.isa.warp), k.role.teams)
        self.parity = k.isa.cells(k.isa.select(self.own == 0, 1, 0), names=f"{self.barrier.name}.parity")

    def wait(self) -> None:
        self.isa.mbarrier_wait(self.barrier, self.own, self.parity[0])
        self.parity[0] = self.parity[0] ^ 1

    def _let_in(self, following: Any) -> None:
        self.isa.mbarrier_arrive(self.barrier, following)


class WarpgroupsInTurn(BoundTurnstile):
    """Warpgroups that share tiles take turns through named barriers, which are faster. Warpgroup i waits at barrier i, and the
    warpgroup before arrives there. At the beginning the last warpgroup lets the first one in. So at the end the first
    warpgroup waits once more, and no barrier is left half full."""

    def __init__(self, k: Any, name: str):
        self.barrier: NamedBarrier = next(each for each in k.plan.named_barriers if each.name == f"{name}.turn")
        super().__init__(k.isa, name, k.isa.warp // 4 - k.role.first_warp // 4, self.barrier.instances)
        k.isa.when(self.own == self.units - 1, lambda: self._let_in(0))

    def finish(self) -> None:
        """Called after the last tile: the first warpgroup takes the last warpgroup's arrival."""
        self.isa.when(self.own == 0, self.wait)

    def wait(self) -> None:
        self.isa.named_barrier_sync(self.barrier, self.own)

    def _let_in(self, following: Any) -> None:
        self.isa.named_barrier_arrive(self.barrier, following)


@stands_for(Turnstile)
def _of_turnstile(k: Any, name: str, turnstile: Turnstile) -> BoundTurnstile:
    return (TeamsInTurn if k.role.teams > 1 else WarpgroupsInTurn)(k, name)
