"""The CPU backend, a model of the hardware: `Machine` runs a kernel's program, with every warp of every CTA.

`MachineIsa` is the instruction set of one warp. Its instructions make operations of the table (`tmapipe.isa`), which
`State`, a transition system, executes in the order in which `Scheduler` lets the warps go on. The check and the exhaustive
search of the tests use `State` too, with operations that were listed before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import attrs
import greenlet
import numpy as np

from tmapipe.base.arithmetic import DType, total
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.errors import InputError, ScopeError, permit, require
from tmapipe.isa import applied, ops, where_is
from tmapipe.isa.copies import sent
from tmapipe.isa.fragment import Accesses, Fragment, Place, RawFunction, SlotRef, Span, call_raw, joined_places
from tmapipe.isa.ops import Counted, Exit, Flight, Isa, TableLoad
from tmapipe.model import elements
from tmapipe.model.elements import Reductions, of_data, raw_name
from tmapipe.model.layout import Layout, Shapes, hazard, locate, set_location, shapes_of
from tmapipe.model.memory import Accumulator, Memory, Written, convert, few_rows, weights
from tmapipe.model.run import Run, TraceEntry, steps_for, tracer
from tmapipe.model.state import POLICIES, Scheduler, State, Watcher
from tmapipe.plan.model import Load, Plan, RoleWarps, Store
from tmapipe.plan.rings import Barrier, Buffer, Matmul, NamedBarrier
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout
from tmapipe.protocol.tile import Tile

__all__ = [
    "POLICIES", "Counted", "Flight", "Layout", "Machine", "MachineIsa", "Run", "Scheduler", "State", "TraceEntry", "steps_for",
]  # fmt: skip

# ---- fragments -------------------------------------------------------------------------------------------------------


class MachineFragments(Reductions):
    """Fragments in the machine: the calling warp's part of each as a NumPy array; None where there is no data. Methods as
    documented in `tmapipe.isa.fragments.Fragments`."""

    def __init__(self, isa: MachineIsa):
        self.isa, self.memory, self.exchanges = isa, isa.memory, {}

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Any:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))
        return None if self.memory is None else Accumulator(matmul, self.isa.warp, empty)

    def accumulator_promote(self, matmul: Matmul, acc: Any) -> None:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))  # the sums are in fp32 here anyway

    def accumulator_scale(self, matmul: Matmul, acc: Any, by: Fragment) -> None:
        self.isa.emit(ops.AccumulatorWrite(matmul.name))
        factors = self.expand(AccumulatorLayout.of(matmul), by.along, by.data, "tile")
        if self.memory is not None:
            with np.errstate(all="ignore"):
                acc.values *= factors

    def load_joined(self, table: str, layout: ThreadLayout, at: Place, gaps: Any) -> Fragment:
        require(at[1] >= 0, f"k.{table}.read(at)", at, "begins with element 0 or a later one", "begin later")
        self.isa.give(joined_places(at, gaps, self._indices(layout)[1]))
        self.isa.emit(TableLoad(table, ()))
        return Fragment(self, layout, "tile", "int32", self._answer())

    def accumulator_after(self, matmul: Matmul, acc: Any, values: Fragment) -> Fragment:
        self.isa.emit(ops.AccumulatorRead(matmul.name))
        return values

    def packed(self, matmul: Matmul, values: Fragment) -> Any:
        return None if self.memory is None else convert(values.data, matmul.b.dtype).astype(np.float32)

    def raw_weights(self, layout: AccumulatorLayout, slot: SlotRef, kind: str) -> Any:
        return self.read(slot, layout).data

    def widened(self, matmul: Matmul, data: Any, kind: str, zero: Any, scale: Any, registers: str) -> Any:
        self.isa.emit(ops.AccumulatorWrite(registers))
        layout = attrs.evolve(AccumulatorLayout.of(matmul), columns=matmul.shape[2])
        return self._weights(data, layout, kind, matmul.b.dtype, zero, scale)

    def _weights(self, data: Any, layout: AccumulatorLayout, kind: str, dtype: DType, *numbers: Any) -> Any:
        by = [[self.expand(layout, x.along, x.data, "tile") for x in each] for each in numbers]
        return None if data is None else weights(data, kind, dtype, *by)

    def products(self, sums: Any, rows: SlotRef, few: SlotRef, kind: str, parts: int, *numbers: Any) -> Any:
        layout, (height, k), dtype = sums.layout, rows.buffer.tile, rows.buffer.dtype
        of_k, own = attrs.evolve(layout, columns=k), layout.warp(self.isa.warp) * parts // layout.warps
        each = np.minimum(np.arange(layout.columns), height // parts - 1) + own * (height // parts)
        data = self.raw_weights(attrs.evolve(layout, columns=few.buffer.tile[-1]), few, kind)
        left, four = self._weights(data, of_k, kind, dtype, *numbers), kind.endswith("int4")
        right = self._read(rows, at=each[:, None] * k + np.arange(k))
        return None if left is None else few_rows(sums.data[0], left[0], right.astype(np.float32), four)[None]

    def operand(self, matmul: Matmul, values: Fragment, registers: str = "") -> Any:
        self.isa.emit(ops.AccumulatorWrite(registers or matmul.name))
        return values.data if values.packed else self.packed(matmul, values)

    def accumulator_columns(self, matmul: Matmul, acc: Any, block: int, first: int, columns: int) -> Fragment:
        values = self._accumulated(matmul, acc)
        data = None if values is None else values[[block], :, first : first + columns]
        return Fragment(self, AccumulatorLayout.of(matmul).piece(columns), "tile", matmul.b.dtype.kind, data)

    def accumulator_values(self, matmul: Matmul, acc: Any) -> Fragment:
        values = self._accumulated(matmul, acc)
        values = None if values is None else values.copy()
        return Fragment(self, AccumulatorLayout.of(matmul), "tile", matmul.b.dtype.kind, values)

    def _accumulated(self, matmul: Matmul, acc: Any) -> Any:
        self.isa.emit(ops.AccumulatorRead(matmul.name))
        if self.memory is None:
            return None
        permit(acc.defined, f"accumulate(empty=False) of {matmul.name} ended without acc.add(). Leave out empty=.")
        return acc.values

    def reduced_in_warp(self, values: Fragment, op: str, along: str, inside: Any = None, surely: Any = None) -> Any:
        self.isa.reduces(values, along, inside[1] if isinstance(inside, tuple) else inside)
        return super().reduced_in_warp(values, op, along, inside, surely)

    def columns_of(self, values: Fragment, block: int, first: int, columns: int) -> Fragment:
        assert isinstance(values.layout, AccumulatorLayout)
        own = None if self.memory is None else values.data[[block], :, first : first + columns]
        return Fragment(self, values.layout.piece(columns), "tile", values.kind, own)

    def write_columns(self, values: Fragment, slot: SlotRef, *, transposed: bool = False) -> None:
        mine, columns = self.isa.warp % 4, slot.buffer.tile[-2]
        if not transposed:
            return self._write(slot, self._piece(values, slot.buffer.tile[-1]), (mine, 4, "rows"))
        at = None if self.memory is None else 64 * np.arange(columns) + 16 * mine + np.arange(16)[:, None]
        self._write(slot, self._piece(values, columns), (mine, 4, "columns"), at)

    @of_data
    def _piece(self, values: Fragment, columns: int) -> np.ndarray:
        """A warp's 16 x *columns* values: an epilogue may have given fewer, or one, for all."""
        return np.broadcast_to(np.asarray(values.data, np.float32), (1, 16, columns))[0]

    @of_data
    def row_sums(
        self, values: Fragment, columns: int, first: int, inside: int | None, before: Any, whole: Any = None
    ) -> Any:
        sums = total(self._piece(values, columns)[:, first : columns if inside is None else max(first, inside)])
        return sums if before is None else before + sums

    def join_row_sums(self, layout: AccumulatorLayout, sums: Any) -> Fragment:
        whole = np.full(layout.rows, np.nan, np.float32)
        whole[self._own(layout, "rows")] = np.nan if sums is None else sums  # of the warp's own rows
        return Fragment(self, layout, "rows", "fp32", None if self.memory is None else whole)

    @of_data
    def column_sums(self, values: Fragment, columns: int, inside: int) -> Any:
        rows = max(0, inside - 16 * (self.isa.warp % 4))
        return total(self._piece(values, columns)[:rows].T)

    def write_column_sums(self, sums: Any, slot: SlotRef) -> None:
        columns = slot.buffer.tile[-1]
        whole = None if self.memory is None else np.concatenate((sums, np.zeros(columns - len(sums), np.float32)))
        self._write(slot, whole, (self.isa.warp % 4, 4, "rows"))

    def send(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any, share: Any, shares: int) -> None:
        self.isa.give(values.data)
        self.isa.emit(sent(self.isa, slot, barrier, cta, share, shares))

    def send_tile(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any) -> None:
        layout = values.layout
        assert layout is not None
        self.isa.give(self.places(values))
        self.isa.emit(sent(self.isa, slot, barrier, cta, layout.warp(self.isa.warp), layout.warps))

    def apply(self, function: Callable[..., Any], fragments: Sequence[Fragment], named: dict[str, Fragment]) -> Any:
        layout = fragments[0].layout
        assert layout is not None
        given = [self._numbers(layout, each) for each in fragments]
        made = applied(function, given, {name: self._numbers(layout, each) for name, each in named.items()})
        if isinstance(made, dict):
            return {name: self._result(layout, value, function) for name, value in made.items()}
        return self._result(layout, made, function)

    def _numbers(self, layout: ThreadLayout, values: Fragment) -> Fragment:
        """*values* as an epilogue takes them: a number in fp32 for each element of a piece."""
        data = self.convert(self.expand(layout, values.along, values.data, "tile"), values.kind, "fp32")
        return Fragment(self, None, "tile", "fp32", data)

    def _result(self, layout: ThreadLayout, value: Any, function: Callable[..., Any]) -> Fragment | None:
        if value is None:
            return None
        if isinstance(value, Fragment):
            return Fragment(self, layout, "tile", "fp32", self.convert(value.data, value.kind, "fp32"))
        if not isinstance(value, (Number, np.generic)):
            text = f"{where_is(function)} returned a {type(value).__name__}, which is no result of fragments"
            raise ScopeError(f"{text}. Return a fragment, or for further outputs a dictionary of fragments.")
        return Fragment(self, layout, "tile", "fp32", self.number(value, "fp32"))

    def raw(self, gpu: RawFunction, cpu: RawFunction | None, accesses: Accesses, role: RoleWarps, proxy: str) -> None:
        rule = "must be given on the model, which runs it in place of gpu"
        require(self.memory is None or cpu is not None, "k.raw(cpu)", cpu, rule, "pass a function of arrays")
        mine, shares = (self.isa.warp - role.first_warp) % role.team_warps, role.team_warps
        name = raw_name(gpu)
        arrays: list[Any] = []
        for slot, kind in accesses:
            cut = (0, 1, f"whole/{name}") if kind == "read" else (mine, shares, f"rows/{name}")
            if kind != "write":
                arrays.append(self._read(slot, cut, proxy=proxy))
            else:
                tile, dtype = slot.buffer.tile, slot.buffer.dtype.numpy
                arrays.append(None if self.memory is None else np.zeros((tile[0] // shares, *tile[1:]), dtype))
        if self.memory is not None and cpu is not None:
            call_raw(cpu, arrays, self.isa, role)
        for (slot, kind), array in zip(accesses, arrays, strict=True):
            if kind != "read":
                self._write(slot, array, (mine, shares, f"rows/{name}"), proxy=proxy)

    def only_inside(self, tile: Fragment, along: str, first: Any, end: Any, surely: Span, other: Any) -> Fragment:
        low, high = surely
        if self.memory is not None and low < high and not ((first or 0) <= low and high <= end):
            rule = f"must be {along} that count; here only {first or 0} to {end} count"
            fix = "pass it only for tiles in which they always count"
            raise InputError("reduction of a tile (surely)", surely, rule, fix)
        return super().only_inside(tile, along, first, end, surely, other)

    numbers = (("bool", (bool, np.bool_)), ("int32", (int, np.integer)), ("fp32", (float, np.floating)))

    @of_data
    def number(self, value: Any, kind: str) -> Any:
        return elements.KINDS[kind](value)

    def convert(self, data: Any, kind: str, to: str) -> Any:
        return data if kind == to or data is None else np.asarray(data).astype(elements.KINDS[to])

    @of_data
    def expand(self, layout: ThreadLayout | None, along: str, data: Any, to: str) -> Any:
        if along == to or layout is None:
            return data
        if along == "rows" and to == "parts":
            return np.broadcast_to(data[:, None], (layout.rows, layout.row_lanes))
        rows, columns = self._indices(layout)
        if along == "one":
            parts = layout.rows, layout.row_lanes
            shape = {"tile": rows.shape, "rows": (layout.rows,), "columns": (layout.columns,), "parts": parts}[to]
            return np.broadcast_to(data, shape)
        return data[rows if along == "rows" else columns]

    @of_data
    def beside(self, layout: AccumulatorLayout, parts: list[Any]) -> Any:
        return np.concatenate(parts, axis=-1)

    @of_data
    def indices(self, layout: ThreadLayout, along: str) -> Any:
        return np.arange(layout.rows if along == "rows" else layout.columns, dtype=np.int32)

    @of_data
    def elementwise(self, name: str, operands: list[Any]) -> Any:
        return elements.apply(name, operands)


# ---- instruction set of a warp ---------------------------------------------------------------------------------------


class MachineIsa(Isa):
    """One warp's instructions, as documented in `tmapipe.isa`. `emit` hands each operation to the machine. It returns when the
    machine has executed the operation, or at once if operations are only listed.

    memory: the data; None for a run without data. tables: the entries of tables in a run without data; beyond the last entry
    of a table, 1.
    """

    fragments: MachineFragments

    def __init__(
        self,
        layout: Layout,
        agent: int,
        cluster_id: int,
        clusters: int,
        shapes: Shapes,
        emit: Callable[[Any], None],
        memory: Memory | None = None,
        tables: Mapping[str, Sequence[int]] | None = None,
    ):
        self._tables = tables or {}
        self.layout, self.plan, self.agent, self.memory = layout, layout.plan, agent, memory
        self.syncs = layout.syncs
        self.execute = emit
        self.cta_rank, self.warp = divmod(agent, layout.warps)
        self.cluster_id, self.clusters, self._shapes = cluster_id, clusters, shapes
        self.fragments = MachineFragments(self)

    def extent(self, argument: str, dim: int) -> int:
        return self._shapes[argument][dim]

    def divisors(self, values: dict[str, int]) -> dict[str, int]:
        return values

    def enter(self, tile: Tile) -> None:
        """Notes that a role's body begins, for this tile of the output."""
        if self.memory is not None and self.memory.written is not None:
            self.memory.written.tiles[self.agent] = str(tile)

    def emit(self, op: Any, *data: Any, when: Any = True) -> None:
        self.execute(op)

    def ask(self, op: Any, without_data: Callable[[], Sequence[int]], *data: Any) -> Sequence[int]:
        self.emit(op)
        if self.memory is not None:
            return [int(number) for number in self.memory.results[self.agent]]
        entries = self._tables.get(op.table) if type(op) is TableLoad else None
        if entries is None:
            return without_data()
        return [int(entries[i]) if 0 <= i < len(entries) else 1 for i in op.entries]

    def store_values(
        self, store: Store, at: Sequence[int], values: Fragment, surely: Span, mask: Fragment | None
    ) -> None:
        if self.memory is not None:
            if surely[0] < surely[1]:
                self._check_surely(store, at, surely, self.memory.tensors[store.argument])
            self.give(self._stored(values, mask, store.tile[-1]))
        super().store_values(store, at, values, surely, mask)

    def _check_surely(self, store: Store, at: Sequence[int], surely: Span, tensor: np.ndarray) -> None:
        """Raises `InputError` unless the columns *surely* of a tile at element *at* may be stored as the GPU stores them."""
        name, extent = f"{store.name}.store(surely)", tensor.shape[-1]
        if at[-1] + surely[0] < 0 or at[-1] + surely[1] > extent:
            rule = f"are columns inside the tensor, of a tile at {at[-1]}, where there are {extent}"
            raise InputError(name, surely, rule, "pass it only for tiles whose columns are always inside")
        place = tensor.ctypes.data + sum(i * step for i, step in zip(at[::-1], tensor.strides[::-1], strict=False))
        inside = all(i < n for i, n in zip(at[-2::-1], tensor.shape[-2::-1], strict=False))
        if store.wide and inside and place % ALIGNMENT:
            rule = f"are stored {ALIGNMENT} bytes at once, of a tile that begins at a multiple of {ALIGNMENT} bytes"
            raise InputError(name, surely, rule, "leave it out for such a tensor")

    def _stored(self, values: Fragment, mask: Fragment | None, width: int) -> tuple[Any, Any]:
        """(places, values) of the warp's values, or of those for which *mask* holds. A place is an element's number in a tile
        whose rows have *width* elements."""
        places, numbers = self.fragments.places(values)
        if values.along == "tile" and values.layout is not None:
            places = places + places // values.layout.columns * (width - values.layout.columns)
        if mask is None:
            return places, numbers
        holds = np.broadcast_to(mask.data, places.shape)
        return places[holds], numbers[holds]

    def reduces(self, values: Fragment, along: str, inside: Any) -> None:
        """Called for each reduction of a fragment, with the arguments of `Fragments.reduce`. For subclasses that count."""

    def wgmma(self, matmul: Matmul, acc: Any, a: Any, b: SlotRef, registers: str = "") -> None:
        self.give((acc, None if isinstance(a, SlotRef) else a))
        super().wgmma(matmul, acc, a, b, registers)

    def give(self, values: Any) -> None:
        """Hands *values* to the next operation of this warp."""
        if self.memory is not None:
            self.memory.operands[self.agent] = values

    def bar(self, barrier: Barrier, stage: int) -> int:
        if 0 <= stage < barrier.stages:
            return self.layout.bar_base[barrier.name] + stage
        raise self._outside(f"uses {barrier.name}[{stage}], but it has {barrier.stages} stages")

    def slot(self, buffer: Buffer, stage: int) -> int:
        if 0 <= stage < buffer.stages:
            return self.layout.slot_base[buffer.name] + stage
        raise self._outside(f"uses slot {buffer.name}[{stage}], but there are {buffer.stages}")

    def start(self, of: Load | Store, at: Sequence[Any]) -> tuple[int, ...]:
        whole = (isinstance(x, (int, np.integer)) and not isinstance(x, bool) and -(2**31) <= x < 2**31 for x in at)
        if len(at) != len(of.dims) or not all(whole):
            rule = f"is where a tile starts: a whole number of elements, of 32 bits, along each of {', '.join(of.dims)}"
            raise InputError(f"start of {of.name}'s tile", tuple(at), rule, "use integers, and // instead of /")
        return tuple(at)

    def part(self, of: Load | Store, index: Any) -> Any:
        if index is None or 0 <= index < of.parts:
            return index
        does = "loads" if isinstance(of, Load) else "stores"
        raise self._outside(f"{does} part {index} of a slot of {of.name}, which has {of.parts}")

    def barrier_id(self, barrier: NamedBarrier, instance: int) -> int:
        if 0 <= instance < barrier.instances:
            return barrier.id + instance
        raise self._outside(f"uses {barrier.name}[{instance}], but it has {barrier.instances} instances")

    def inside(self, fits: bool, buffer: Buffer, what: str) -> None:
        """Raises a `HazardError` unless *what* a warp reads of a slot *fits* into its tile."""
        if not fits:
            raise self._outside(f"reads {what} in a slot of {buffer.name}, whose tile is {buffer.tile}", "read-outside")

    def _outside(self, text: str, rule: str = "no-such-stage") -> Exception:
        return set_location(hazard(self.layout, rule, int(self.agent), None, text), locate())


# ---- machine ---------------------------------------------------------------------------------------------------------

Entry = Callable[[MachineIsa], None]


class Machine:
    """The CPU backend for kernels of one plan.

    Args:
        plan: The plan of the kernels.
        seed: Chooses the interleaving.
        policy: In which order agents take their steps (see `Scheduler`).
        trace: Whether the run keeps `Run.trace`, whose operations then have their source lines.
        observer: Called with (agent, operation, facts) after each transition, in the order of execution.
        max_steps: How many transitions a cluster may make. After more, the run stops with a `PipelineError`.
        whole: Names of the outputs of which every element must be written.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        seed: int = 0,
        policy: str = "random",
        trace: bool = False,
        observer: Watcher | None = None,
        max_steps: int = 50_000_000,
        whole: Collection[str] = (),
    ):
        require(policy in POLICIES, "Machine(policy)", policy, f"is one of {', '.join(POLICIES)}", 'use "random"')
        self.layout = Layout(plan)
        self.plan, self.seed, self.policy = plan, seed, policy
        self.trace, self.observer, self.max_steps, self.whole = trace, observer, max_steps, whole

    def run(self, entry: Entry, tensors: dict[str, Any], clusters: int = 1) -> Run:
        """Calls ``entry(isa)`` once for each warp of a grid of *clusters* clusters, one cluster after another.

        Args:
            entry: The program of a warp.
            tensors: Argument -> NumPy array with the dimensions of the load or store.
            clusters: How many clusters the grid has.

        Raises:
            DeadlockError: No agent can take another step.
            HazardError: An access that the hardware would not order. An element of an output that is written twice, with
                different values, or that has to be written and is not.
        """
        self._check(tensors)
        run, written = Run(self.layout, self.trace), Written(self.layout, tensors)
        for cluster in range(clusters):
            self._run_cluster(run, entry, tensors, cluster, clusters, written)
        written.finish(self.whole)
        return run

    def isa(self, *arguments: Any) -> MachineIsa:
        """The instruction set of one warp. The arguments are those of `MachineIsa`. Subclasses add instructions."""
        return MachineIsa(*arguments)

    def scheduler(self, state: State, programs: list[Iterator[Any]], where: Callable[[int], str | None]) -> Scheduler:
        """The scheduler of one cluster. The arguments are those of `Scheduler`."""
        return Scheduler(state, programs, self.policy, self.seed, (), self.max_steps, where)

    def _check(self, tensors: dict[str, Any]) -> None:
        shapes = shapes_of(tensors)
        for part in self.plan.transfers:
            shape = shapes.get(part.argument)
            if shape is None or len(shape) != len(part.dims):
                dims = " ".join(part.dims)
                raise InputError(part.argument, shape, f"needs an array with the dimensions {dims}", "pass one")
            if tensors[part.argument].dtype != part.buffer.dtype.numpy:
                have, want = tensors[part.argument].dtype, part.buffer.dtype.name
                raise InputError(part.argument, str(have), f"is moved through slots of {want}", "convert the array")

    def _run_cluster(
        self, run: Run, entry: Entry, tensors: dict[str, Any], cluster: int, clusters: int, written: Written
    ) -> None:
        memory, hub = Memory(self.layout, tensors, written), greenlet.getcurrent()
        # In a trace, each operation has its source line.
        emit = (lambda op: hub.switch(op._replace(where=locate()))) if self.trace else hub.switch
        shapes = shapes_of(tensors)
        warps = [greenlet.greenlet(entry) for _ in range(self.layout.agents)]
        place = cluster, clusters, shapes, emit, memory
        programs = [_operations(warp, self.isa(self.layout, agent, *place)) for agent, warp in enumerate(warps)]

        def where(agent: int) -> str | None:
            frame = warps[agent].gr_frame
            return None if frame is None else locate(frame)

        state = State(self.layout, split_loads=True)
        scheduler = self.scheduler(state, programs, where)
        written.begin(cluster, where)
        watchers: list[Watcher] = [written.watch, memory.perform, run.watch]
        if self.observer is not None:
            watchers.append(self.observer)
        if run.trace is not None:
            watchers.append(tracer(run.trace, cluster, scheduler.reached))
        scheduler.watchers = tuple(watchers)
        scheduler.run()


def _operations(warp: greenlet.greenlet, isa: MachineIsa) -> Iterator[Any]:
    """The operations of a warp, which runs as a greenlet: it goes on when its last operation has been executed."""
    op = warp.switch(isa)
    while not warp.dead:
        yield op
        op = warp.switch()
    yield Exit()
