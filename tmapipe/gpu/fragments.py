"""Fragments on the GPU: lists of a thread's numbers, as CuTe DSL scalars. Also the base of a warp's instructions, and loads of
tiles over a tensor's edge."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm
from cutlass.cutlass_dsl import T

from tmapipe.gpu import Moves, clips, control, core_modes, cute_type, full_shape, slot_layout
from tmapipe.gpu.control import FUNCTIONS, KINDS, choose, chosen, emit_ptx, masked, widened
from tmapipe.gpu.matmuls import MatmulHandles, PeerFragments, operand, read_blocks, write_piece
from tmapipe.gpu.rows import converted, joined, loaded_numbers, products, raw_weights, row_step
from tmapipe.gpu.sums import Sums, loaded
from tmapipe.isa.fragment import Accesses, Fragment, Gaps, Place, RawFunction, SlotRef, Span, call_raw
from tmapipe.isa.ops import Isa
from tmapipe.plan.model import Load, Plan, RoleWarps, Store, Syncs
from tmapipe.plan.rings import Barrier, Buffer, Matmul
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, VectorLayout, compared

# ---- fragments -------------------------------------------------------------------------------------------------------
#
# A fragment is a list of a thread's numbers, as CuTe DSL scalars. Fragments come from accumulators and slots, go to slots,
# and are the operands of epilogues.


#: $1, once $2 is there: with its sign and exponent set, $2 is minus infinity or not a number, so the larger one is $1.
LATER = (
    "{ .reg .b32 bits; .reg .f32 least; mov.b32 bits, $2; or.b32 bits, bits, 0xff800000; mov.b32 least, bits; "
    "max.f32 least, $1, least; mov.b32 $0, least; }"
)


def pure_ptx(text: str, *numbers: Any) -> Float32:
    """The number in fp32 that PTX instructions compute from numbers in fp32."""
    (word,) = emit_ptx(text, "f" * len(numbers), *numbers, words=1, pure=True)
    return Float32(llvm.bitcast(T.f32(), word.ir_value()))


#: Values per thread that an epilogue is applied to at a time: 16 columns.
PART = 8


class GpuFragments(PeerFragments, Sums):
    """Methods as documented in `tmapipe.isa.fragments.Fragments`."""

    # ---- accumulators ---------------------------------------------------------------------------------------------

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Any:
        sums = self.isa.matmuls[matmul.name].accumulator
        sums.begin(empty)
        return sums

    def accumulator_promote(self, matmul: Matmul, acc: Any) -> None:
        acc.promote()

    def accumulator_scale(self, matmul: Matmul, acc: Any, by: Fragment) -> None:
        layout = AccumulatorLayout.of(matmul)
        factors = self.convert(by.data, by.kind, matmul.b.dtype.kind)
        acc.multiply([factors[0 if by.along == "one" else layout.row_slot(i)] for i in range(layout.values)])

    def accumulator_after(self, matmul: Matmul, acc: Any, values: Fragment) -> Fragment:
        data = [pure_ptx(LATER, x, *acc.values([0])) for x in values.data]
        return Fragment(self, values.layout, values.along, values.kind, data)

    def beside(self, layout: AccumulatorLayout, parts: list[Any]) -> Any:
        shares = [len(part) // layout.blocks for part in parts]
        return [part[block * share + i] for block in range(layout.blocks)
                for part, share in zip(parts, shares, strict=True) for i in range(share)]  # fmt: skip

    def packed(self, matmul: Matmul, values: Fragment) -> Any:
        dtype = cute_type(matmul.b.dtype)
        rounded = cute.make_rmem_tensor((len(values.data),), dtype)
        rounded.store(self.vector(values, (len(values.data),)).to(dtype))
        words = cute.recast_tensor(rounded, Int32)
        return [words[i] for i in range(cute.size(words))]

    def raw_weights(self, layout: AccumulatorLayout, slot: SlotRef, kind: str) -> Any:
        return raw_weights(self.isa, layout, slot, kind)

    def widened(self, matmul: Matmul, raw: Any, kind: str, zero: Any, scale: Any, registers: str) -> Any:
        return converted(raw, kind, matmul.b.dtype, *([x.data for x in each] for each in (zero, scale)))

    def products(
        self, sums: Fragment, rows: SlotRef, few: SlotRef, kind: str, parts: int, zero: Any, scale: Any
    ) -> Any:
        return products(self.isa, sums, rows, few, kind, parts, *([x.data for x in each] for each in (zero, scale)))

    def operand(self, matmul: Matmul, values: Fragment, registers: str = "") -> Any:
        return operand(matmul, values.data if values.packed else self.packed(matmul, values))

    def accumulator_columns(self, matmul: Matmul, acc: Any, block: int, first: int, columns: int) -> Fragment:
        base = block * (matmul.shape[1] // 2) + first // 2
        values = acc.values(range(base, base + columns // 2))
        return Fragment(self, AccumulatorLayout.of(matmul).piece(columns), "tile", matmul.b.dtype.kind, values)

    def accumulator_values(self, matmul: Matmul, acc: Any) -> Fragment:
        layout = AccumulatorLayout.of(matmul)
        return Fragment(self, layout, "tile", matmul.b.dtype.kind, acc.values(range(layout.values)))

    # ---- pieces ---------------------------------------------------------------------------------------------------

    def columns_of(self, values: Fragment, block: int, first: int, columns: int) -> Fragment:
        assert isinstance(values.layout, AccumulatorLayout)
        base = block * (values.layout.columns // 2) + first // 2
        data = values.data[base : base + columns // 2]
        return Fragment(self, values.layout.piece(columns), "tile", values.kind, data)

    def write_columns(self, values: Fragment, slot: SlotRef, *, transposed: bool = False) -> None:
        write_piece(self, values, slot, transposed)

    def apply(self, function: Callable[..., Any], fragments: Sequence[Fragment], named: dict[str, Fragment]) -> Any:
        # If the function worked on a whole piece (32 values per thread), ptxas would keep so many values that it spills.
        size = len(fragments[0].data)
        step = PART if size % PART == 0 else PART // 2
        made: dict[str, list[Any]] = {}
        for first in range(0, size, step):
            part = functools.partial(self._part, fragments[0], first, step)
            result = function(*map(part, fragments), **{name: part(values) for name, values in named.items()})
            for name, values in result.items() if isinstance(result, dict) else (("", result),):
                made.setdefault(name, []).extend(self._numbers(values, step))
        values = {name: Fragment(self, fragments[0].layout, "tile", "fp32", data) for name, data in made.items()}
        return values.get("", values)

    def _part(self, piece: Fragment, first: int, count: int, values: Fragment) -> Fragment:
        """*values* for elements [first, first + count) of *piece*, in fp32: groups of 8 columns, 4 values per thread."""
        whole = self.expand(piece.layout, values.along, values.data, "tile")
        return Fragment(self, None, "tile", "fp32", self.convert(whole[first : first + count], values.kind, "fp32"))

    def _numbers(self, values: Any, count: int) -> list[Any]:
        """An epilogue's result for *count* values of a thread, in fp32."""
        if not isinstance(values, Fragment):
            return [Float32(values)] * count
        data = self.convert(values.data, values.kind, "fp32")
        return data * count if values.along == "one" else data

    # ---- slots ----------------------------------------------------------------------------------------------------

    def read(self, slot: SlotRef, layout: ThreadLayout, along: str = "tile", at: Place | None = None) -> Fragment:
        kind = slot.buffer.dtype.kind
        dtype = cute_type(slot.buffer.dtype)
        if along == "tile" and at is None and isinstance(layout, AccumulatorLayout) and _in_blocks(slot.buffer, layout):
            return Fragment(self, layout, along, kind, _read_blocks(self.isa, slot, layout))
        data = []
        for vector, width in self.vectors(slot, layout, along, at):
            values = cute.make_rmem_tensor((width,), dtype)
            cute.autovec_copy(vector, values)
            data += widened(values, kind)
        return Fragment(self, layout, along, kind, data)

    def read_transposed(self, slot: SlotRef, layout: AccumulatorLayout) -> Fragment:
        kind = slot.buffer.dtype.kind
        if slot.buffer.dtype.bytes == 2 and layout.columns % 16 == 0:
            return Fragment(self, layout, "tile", kind, read_blocks(self.isa, slot, layout))
        # A lane's numbers lie in 4 rows of 8 neighbours each, for each value: no bank twice, where the tile is swizzled.
        source = self.isa.buffers[slot.buffer.name]
        rows = [self.row(layout, i) for i in range(layout.row_slots)]
        columns = [self.column(layout, i) for i in range(layout.column_slots)]
        at = [(columns[layout.column_slot(i)], rows[layout.row_slot(i)]) for i in range(layout.values)]
        return Fragment(self, layout, "tile", kind, [KINDS[kind](source[(*place, slot.stage)]) for place in at])

    def read_part(self, slot: SlotRef, layout: ThreadLayout, at: Place, pitch: Any = None, each: int = 1) -> Fragment:
        kind, width = slot.buffer.dtype.kind, layout.width
        if pitch is not None:
            return self._read_rows(slot, layout, at[1], pitch, each)
        if isinstance(at[1], int) and at[1] % width == 0 and slot.buffer.tile[1] % width == 0:
            return self.read(slot, layout, at=at)
        inside = self.isa.buffers[slot.buffer.name][(None, None, slot.stage)]
        runs = self.runs(layout, width, at=at)
        data = [inside[(row, first + j)].to(KINDS[kind]) for _, row, first in runs for j in range(width)]
        return Fragment(self, layout, "tile", kind, data)

    def _read_rows(self, slot: SlotRef, layout: ThreadLayout, start: Any, pitch: int, often: int) -> Fragment:
        """Reads a slot with one extent from element *start* on, as `read_part` reads other slots."""
        kind, width = slot.buffer.dtype.kind, layout.width
        inside = self.isa.buffers[slot.buffer.name][(None, slot.stage)]
        # vectors lie where they may be read
        whole = pitch % width == 0 and isinstance(start, int) and start % width == 0
        data: list[Any] = []
        for _, row, column in self.runs(layout, width):
            row = row if often == 1 else row // often
            if whole:
                place = row * (pitch // width) + (column + start) // width
                data += loaded(inside, slot.buffer.dtype, width, place)
            else:
                data += [KINDS[kind](inside[row * pitch + column + start + j]) for j in range(width)]
        return Fragment(self, layout, "tile", kind, data)

    def read_joined(self, slot: SlotRef, layout: ThreadLayout, at: Place, gaps: Gaps) -> Fragment:
        kind, width, flat = slot.buffer.dtype.kind, layout.width, self.flat(slot)
        whole = not gaps and isinstance(at[0], int) and isinstance(at[1], int) and (at[0] + at[1]) % width == 0
        data: list[Any] = []
        for _, _, column in self.runs(layout, width):
            first = Int32(column) + at[1]
            if whole:
                data += loaded(flat, slot.buffer.dtype, width, (first + at[0]) // width)
                continue
            data += [KINDS[kind](flat[each]) for each in joined(first, at[0], gaps, width)]
        return Fragment(self, layout, "tile", kind, data)

    def load_joined(self, table: str, layout: ThreadLayout, at: Place, gaps: Gaps) -> Fragment:
        firsts = [Int32(column) + at[1] for _, _, column in self.runs(layout, layout.width)]
        places = [each for first in firsts for each in joined(first, at[0], gaps, layout.width)]
        return Fragment(self, layout, "tile", "int32", loaded_numbers(self.isa, table, places))

    def read_number(self, slot: SlotRef, index: Any) -> Fragment:
        kind = slot.buffer.dtype.kind
        if isinstance(index, Fragment):
            flat = self.flat(slot)
            return Fragment(self, index.layout, index.along, kind, [KINDS[kind](flat[place]) for place in index.data])
        number = KINDS[kind](self.isa.buffers[slot.buffer.name][(control.whole(index), slot.stage)])
        return Fragment(self, None, "one", kind, [number])

    def row_from(self, layout: ThreadLayout, i: int, row: Any) -> tuple[Any, int]:
        """An earlier row of the thread's, and how many rows further *row* is, where value *i* is: one row serves all, if
        threads share rows evenly."""
        if not isinstance(layout, VectorLayout) or not layout.even or (layout.by_rows and layout.at_once == 1):
            return row, 0
        return self.row(layout, 0), layout.row_slot(i) * row_step(layout)

    def shared_out(self, values: Fragment) -> tuple[Fragment, list[Any], Any]:
        """Numbers of rows, shared out among the lanes of each row: (a lane's numbers, their places, whether it has any)."""
        layout = values.layout
        assert isinstance(layout, VectorLayout)
        lanes, slots, warp = layout.row_lanes, layout.row_slots, layout.warp(self.isa.warp)
        mine, numbers, places = self.isa.lane % lanes, list[Any](), list[Any]()
        for first in range(0, slots, lanes):
            places.append((len(places), 0, self.row(layout, first) + mine * row_step(layout)))
            numbers.append(values.data[first])
            for i in range(1, min(lanes, slots)):
                numbers[-1] = choose(mine == i, values.data[first + i], numbers[-1])
        own = control.both(mine < slots, True if layout.row_warps == 1 else warp % layout.row_warps == 0)
        return Fragment(self, layout, "rows", values.kind, numbers), places, own

    def write(self, slot: SlotRef, values: Fragment, at: tuple[int, int] | None = None) -> None:
        layout = values.layout
        assert layout is not None
        dtype = cute_type(slot.buffer.dtype)

        def store() -> None:
            first = 0
            for vector, width in self.vectors(slot, layout, values.along, at):
                cute.autovec_copy(self.converted(values, first, width, dtype), vector)
                first += width

        if values.along == "tile":
            store()
        else:
            self.isa.when(self.first_to_have(layout, values.along), store)

    def raw(self, gpu: RawFunction, cpu: RawFunction | None, accesses: Accesses, role: RoleWarps, proxy: str) -> None:
        tensors = []
        for slot, kind in accesses:
            tile = slot.buffer.tile
            tensor = self.isa.buffers[slot.buffer.name][(*(None,) * len(tile), slot.stage)]
            if kind != "read":
                mine = (self.isa.warp - role.first_warp) % role.team_warps
                share = (tile[0] // role.team_warps, *tile[1:])
                tensor = cute.local_tile(tensor, share, (mine, *(0,) * (len(tile) - 1)))
            tensors.append(tensor)
        call_raw(gpu, tensors, self.isa, role)

    def only_inside(self, tile: Fragment, along: str, first: Any, end: Any, surely: Span, other: Any) -> Fragment:
        layout, by_column = tile.layout, along == "rows"
        assert layout is not None
        slot_of, place = (layout.column_slot, tile.columns) if by_column else (layout.row_slot, tile.rows)
        pick, inside = self.isa.picker(), dict[int, Any]()
        for slot in {slot_of(i) for i in range(layout.values)}:
            after_first, before_end = compared(layout, slot, by_column, first, end, surely)
            if limits := [("ge", first)] * after_first + [("lt", end)] * before_end:
                inside[slot] = pick(place.data[slot], limits)
        number = KINDS[tile.kind](other)
        data = [inside[slot_of(i)](x, number) if slot_of(i) in inside else x for i, x in enumerate(tile.data)]
        return Fragment(self, layout, "tile", tile.kind, data)

    # ---- data -----------------------------------------------------------------------------------------------------

    numbers = ("bool", (bool, Boolean)), ("int32", (int, cutlass.Integer)), ("fp32", (float, cutlass.Float))

    def number(self, value: Any, kind: str) -> Any:
        return [KINDS[kind](value)]

    def convert(self, data: Any, kind: str, to: str) -> Any:
        if kind == to:
            return data
        if kind == "bool":
            one, zero = KINDS[to](1), KINDS[to](0)
            return [choose(value, one, zero) for value in data]
        return [KINDS[to](value) for value in data]

    def expand(self, layout: ThreadLayout | None, along: str, data: Any, to: str) -> Any:
        if along == to or layout is None or (along, to) == ("rows", "parts"):
            return data
        if along == "one":
            return data * layout.slots(to)
        slot = layout.row_slot if along == "rows" else layout.column_slot
        return [data[slot(i)] for i in range(layout.values)]

    def indices(self, layout: ThreadLayout, along: str) -> Any:
        index = self.row if along == "rows" else self.column
        return [Int32(index(layout, i)) for i in range(layout.slots(along))]

    def elementwise(self, name: str, operands: list[Any]) -> Any:
        size = max(map(len, operands))
        each = [data if len(data) == size else data * size for data in operands]
        return [FUNCTIONS[name](*values) for values in zip(*each, strict=True)]


# ---- warp ------------------------------------------------------------------------------------------------------------
#
# A warp, while the kernel is traced: its ids, the launch's arguments, the CTA's slots and mbarriers.


class GpuWarp(Isa):
    """The base of a warp's instructions on the GPU. `tmapipe.isa` documents the methods. Loops and cells are those of the
    program.

    Args:
        plan: The kernel's plan.
        given: What the kernel was launched with. atoms: (TMA atom, coordinate tensor) of each load and store, and of each
            load's tiles over the edge, by name; divisors: by name, as the host prepared them; clusters: how many were
            launched; addressed: tensors that are reached by their address, by name; scratch: counters, for an order with a
            queue, and memory for descriptors that the kernel makes; kept: the words that the order adds to a launch; watch,
            stamps: for a kernel with that instrument, as `tmapipe.gpu.watchdog` has them.
        zero: 0, which no compiler knows: for a second form of the program in the same kernel. Its numbers are other values
            then, so ptxas keeps them in no register for both forms. Threads and warps have their numbers at hand.
    """

    fragments: GpuFragments

    def __init__(self, plan: Plan, given: Any, zero: Any = None):
        self.plan, self.given, self.zero, self.pickers, self.scratch = plan, given, zero, 0, given.scratch
        self.clusters, self.kept = self.own(given.clusters), list(map(self.own, given.kept))
        self.watch, self.stamps = getattr(given, "watch", None), getattr(given, "stamps", None)
        self.atoms, self.host_divisors, self.addressed = vars(given.atoms), vars(given.divisors), vars(given.addressed)
        self.syncs = Syncs(plan)
        self.thread, self.lane = cute.arch.thread_idx()[0], cute.arch.lane_idx()
        self.warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block = self.own(cute.arch.block_idx()[0])
        if plan.cluster_size > 1:
            self.cta_rank = self.own(cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()))
            self.cluster_id = block // plan.cluster_size
        else:
            self.cta_rank, self.cluster_id = Int32(0), block
        # The compiler keeps what a shuffle gives in a uniform register, and else computes the address of the CTA's shared
        # memory anew at every use (4 instructions per k-tile of a GEMM).
        shared = cute.arch.make_warp_uniform(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=1024).toint())
        self.shared = cute.make_ptr(cutlass.Uint8, self.own(shared), cute.AddressSpace.smem, assumed_align=1024)
        self.buffers = {buffer.name: self._buffer(buffer) for buffer in plan.buffers}
        self.fragments = GpuFragments(self)
        self.top, self._moves = ir.InsertionPoint(arith.ConstantOp(T.i32(), 0)), dict[str, Moves]()  # after the slots
        self.matmuls = {matmul.name: MatmulHandles(self, matmul) for matmul in plan.matmuls}

    # ---- control flow and registers -------------------------------------------------------------------------------

    def own(self, number: Any) -> Any:
        """The same number, as a value of this form of the program."""
        return number if self.zero is None or isinstance(number, int) else number ^ self.zero

    def picker(self) -> Callable[..., Any]:
        """`control.chosen`, or in a second form of the program `control.masked`, which makes the same function."""
        if self.zero is None:
            return chosen
        self.pickers += 1  # in a sum of its own, or ptxas would keep masks of one function for another
        return functools.partial(masked, zero=self.zero * self.pickers)

    when, select = staticmethod(control.when), staticmethod(control.select)

    def here(self, value: Any, name: str = "") -> Any:
        # A shuffle, which no compiler moves across a barrier.
        return value if control.constant(value) else cute.arch.make_warp_uniform(Int32(value))

    def extent(self, argument: str, dim: int) -> Any:
        if argument in self.plan.tables:
            return self.addressed[argument].shape[dim]
        part = self._part(argument)
        if part.dims[dim] in self.plan.fixed:
            return self.plan.fixed[part.dims[dim]]
        if argument in self.addressed:
            return full_shape(self.addressed[argument], part)[dim]
        shape = self.atoms[part.name][1].shape
        if clips(part):
            return (shape[2] - 1, shape[1])[dim]  # see `layouts.clipped`
        return shape[core_modes(part).index(dim)]

    def divisors(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: self.host_divisors[name] for name in values}

    # ---- slots and mbarriers --------------------------------------------------------------------------------------

    def _part(self, argument: str) -> Load | Store:
        return next(part for part in self.plan.transfers if part.argument == argument)

    def mbarrier(self, barrier: Barrier, stage: Any) -> Any:
        return cute.recast_ptr(self.shared + barrier.offset, dtype=cutlass.Int64) + stage

    def slot_address(self, buffer: Buffer, stage: Any) -> Any:
        """The address of slot *stage* in shared memory."""
        return self.shared.toint() + buffer.offset + stage * buffer.pitch

    def _buffer(self, buffer: Buffer) -> Any:
        layout = slot_layout(buffer)
        start = self.shared + buffer.offset
        if buffer.swizzle:
            pointer = cute.recast_ptr(start.align(1024), layout.inner, dtype=cute_type(buffer.dtype))
            return cute.make_tensor(pointer, layout.outer)
        return cute.make_tensor(cute.recast_ptr(start.align(128), dtype=cute_type(buffer.dtype)), layout)

    def moves_of(self, part: Load | Store, share: Any = 0, peers: int = 1) -> Moves:
        """The copies of *part*, or of share *share* of its tiles. They are made once, at the top of the kernel; but with
        shares, here, since only this place knows the share."""
        atom, slots = self.atoms[part.name], self.buffers[part.buffer.name]
        if peers > 1:
            return Moves(part, atom, slots, share, peers)
        if part.name not in self._moves:
            with self.top:
                self._moves[part.name] = Moves(part, atom, slots, share, peers)
        return self._moves[part.name]


# ---- edges -----------------------------------------------------------------------------------------------------------
#
# Loads of tiles that reach over a tensor's edge, if the rows beyond it may hold anything
# (`TmaLoadStage.anything_outside`).
#
# The TMA engine fills rows beyond the edge with zeros, which takes longer than loading them. So such a tile is loaded
# in several small boxes. A box that lies outside as a whole is replaced by the tile's first box, loaded again. The
# slot then gets as many bytes as its mbarrier expects.


def edge_of(load: Load) -> Load:
    """The load of a tile over the edge, in parts of `load.edge_rows` rows. One CTA loads each part for all peers."""
    return attrs.evolve(load, name=f"{load.name} edge", parts=load.buffer.tile[0] // load.edge_rows, peers=1)


def load_edge(isa: GpuWarp, load: Load, stage: Any, at: Sequence[Any], share: Any, how: Mapping[str, Any]) -> None:
    """Emits the TMA load of a tile over the edge.

    Args:
        stage: The slot's index.
        at: The tile's first element, one index for each dimension of the tensor.
        share: Which share of a multicast tile this CTA loads.
        how: Options of the copies.
    """
    row, rows, own = len(load.dims) - 2, load.edge_rows, load.buffer.tile[0] // load.peers
    edge, extent = edge_of(load), isa.extent(load.argument, row)
    moves = isa.moves_of(edge)
    again = isa.select(at[row] < extent, at[row], 0)

    def some(i: Any) -> None:
        first = share * own + i * rows
        start = [*at]
        start[row] = isa.select(at[row] + first < extent, at[row] + first, again)
        moves.copy(moves.tile(start), moves.slot(stage, first), **how)

    control.loop(own // rows, some)


def _in_blocks(buffer: Buffer, layout: AccumulatorLayout) -> bool:
    """Whether a tile is read by `_read_blocks`: not the pieces of epilogues, for which it was not timed."""
    return bool(buffer.swizzle) and buffer.dtype.bytes == 2 and layout.columns > 64 and layout.columns % 16 == 0


def _read_blocks(isa: GpuWarp, slot: SlotRef, layout: AccumulatorLayout) -> list[Any]:
    """A thread's values of a slot's tile, in the order of *layout*.

    ``ldmatrix`` distributes four blocks of 8 x 8 numbers as accumulators are distributed: two blocks below each other have the
    warp's 16 rows, in two times 8 columns. Each lane names 16 bytes of a row. From block to block, its address changes by a
    known number, and in the bits that the swizzle changes.
    """
    buffer, data = slot.buffer, list[Any]()
    span, lane, units = buffer.swizzle, isa.lane, buffer.swizzle // 16
    row = layout.group(isa.warp) * 64 + isa.warp % 4 * 16 + lane % 16
    unit = (lane // 16) ^ (lane % 8 * span // 128 % units)
    start = isa.slot_address(buffer, slot.stage) + row * span + unit * 16
    for block, sixteen in itertools.product(range(layout.blocks), range(layout.columns // 16)):
        box, inside = divmod(2 * sixteen, units)
        further = (box * buffer.tile[0] + block * layout.warpgroups * 64) * span
        text = f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$0, $1, $2, $3}}, [$4+{further}];"
        words = cute.make_rmem_tensor((4,), Int32)
        for i, word in enumerate(emit_ptx(text, "r", start ^ (16 * inside), words=4)):
            words[i] = word
        data += widened(cute.recast_tensor(words, cute_type(buffer.dtype)), buffer.dtype.kind)
    return data
