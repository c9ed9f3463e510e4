"""A backend of the instruction set that only writes down what it is asked to do, with plain integers for values.

It waits for nothing and moves nothing, so one warp of any role can be run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.oracle.plain import block
from tmapipe.isa import ops
from tmapipe.isa.fragment import ClusterExchange, Fragment, SlotRef, WarpExchange
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.ops import Isa
from tmapipe.kernel import kernel_main
from tmapipe.plan.model import Plan, Syncs
from tmapipe.plan.rings import Barrier, Buffer, Exchanged, Matmul, NamedBarrier
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout

Event = tuple[Any, ...]


class Joined(tuple):
    """Sums of rows that four lanes have shared out."""


class RecordingIsa(Isa, Fragments):
    """One warp. events: tuples that start with the operation's name; barriers, buffers and transfers stand by name."""

    def __init__(
        self,
        plan: Plan,
        warp: int = 0,
        *,
        cta_rank: int = 0,
        cluster_id: int = 0,
        clusters: int = 1,
        extents: dict[str, tuple[int, ...]] | None = None,
        tables: dict[str, Sequence[int]] | None = None,
    ):
        self.plan, self.warp, self.cta_rank = plan, warp, cta_rank
        self.syncs = Syncs(plan)
        self.cluster_id, self.clusters = cluster_id, clusters
        self.extents, self.tables = extents or {}, tables or {}
        self.events: list[Event] = []
        self.exchanges: dict[int, WarpExchange] = {}
        self.body: Any = None
        self.fragments = self

    def of(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event[0] in kinds]

    numbers = (("bool", (bool,)), ("int32", (int,)), ("fp32", (float,)))

    def _note(self, *event: Any) -> None:
        self.events.append(event)

    # ---- structure ------------------------------------------------------------------------------------------------

    def cells(self, *initial: int, names: str = "") -> list[int]:
        return list(initial)

    def select(self, condition: bool, then: Any, otherwise: Any) -> Any:
        return then if condition else otherwise

    def here(self, value: Any, name: str = "") -> Any:
        return value

    def follow(self, part) -> None:
        pass

    def when(self, condition: bool, body: Callable[[], None]) -> None:
        if condition:
            body()

    def loop(self, trips: int, body: Callable[[int], None]) -> None:
        for i in range(trips):
            body(i)

    def loop_while(
        self, state: list[int], body: Callable[[], None], iterations: Callable[[], int] | None = None
    ) -> None:
        self.loop(iterations() if iterations is not None else 0, lambda i: body())
        while state[0]:
            body()

    def block(self) -> tuple[Any, ...]:
        return block(self.body)

    def call(self, body: Callable[..., None], *arguments: Any) -> None:
        self.body = body.__code__
        body(*arguments)

    def extent(self, argument: str, dim: int) -> int:
        return self.extents[argument][dim]

    def divisors(self, values: dict[str, int]) -> dict[str, int]:
        return values

    # ---- instructions ---------------------------------------------------------------------------------------------

    def emit(self, op: Any, *data: Any, when: bool = True) -> None:
        event = EVENTS[type(op)](op, *data)
        if event is not None:
            self.events.append(event)

    def ask(self, op: Any, without_data: Callable[[], Sequence[int]], *data: Any) -> Sequence[int]:
        if isinstance(op, ops.TableLoad):
            return [self.tables[op.table][i] for i in op.entries]
        words = tuple(without_data())
        assert (len(words),) == data
        self._note("read_words", *op.slot, words)
        return words

    def bar(self, barrier: Barrier, stage: int) -> Any:
        return barrier.name, stage

    def slot(self, buffer: Buffer, stage: int) -> Any:
        return buffer.name, stage

    def barrier_id(self, barrier: NamedBarrier, instance: int) -> Any:
        return barrier.name, instance

    def peer_copy(self, of: Exchanged, stage: int, to: int, barrier: Barrier, part: Any = None, into: int = 0) -> None:
        self._note("peer_copy", of.name, stage, to, barrier.name, part, into)

    def lane_0(self, body: Callable[[], None], when: bool = True) -> None:
        if when:
            body()

    def smid(self) -> int:
        return 5

    # ---- wgmma ----------------------------------------------------------------------------------------------------

    def accumulator(self, matmul: Matmul, empty: bool = True) -> str:
        return f"acc {matmul.name}"

    def accumulator_promote(self, matmul: Matmul, acc: str) -> None:
        self._note("promote", matmul.name)

    def accumulator_scale(self, matmul: Matmul, acc: str, by: Any) -> None:
        self._note("scale", matmul.name)

    def accumulator_after(self, matmul: Matmul, acc: str, values: Any) -> Any:
        return values

    def operand(self, matmul: Matmul, values: Any, registers: str = "") -> None:
        return None

    def accumulator_columns(self, matmul: Matmul, acc: str, block: int, first: int, columns: int) -> Fragment:
        data = acc, block, first, columns
        return Fragment(self, AccumulatorLayout.of(matmul).piece(columns), "tile", "fp32", data)  # type: ignore[arg-type]

    def columns_of(self, values: Any, block: int, first: int, columns: int) -> Fragment:
        return Fragment(self, values.layout.piece(columns), "tile", "fp32", values.data)

    def write_columns(self, values: Any, slot: SlotRef, *, transposed: bool = False) -> None:
        self._note("write_columns", slot.buffer.name, slot.stage, values.data)

    def row_sums(
        self, values: Any, columns: int, first: int, inside: int | None, before: Any, whole: Any = None
    ) -> tuple[Any, ...]:
        return (*(before or ()), (values.data, first, inside))

    def join_row_sums(self, layout: AccumulatorLayout, sums: Any) -> Fragment:
        self._note("join_row_sums", sums)
        return Fragment(self, layout, "rows", "fp32", Joined(sums))  # type: ignore[arg-type]

    def column_sums(self, values: Any, columns: int, inside: int) -> tuple[Any, ...]:
        return values.data, columns, inside

    def write_column_sums(self, sums: Any, slot: SlotRef) -> None:
        self._note("write_column_sums", slot.buffer.name, slot.stage, sums)

    def send_tile(self, values: Any, slot: SlotRef, barrier: Barrier, cta: int) -> None:
        self._note("send_tile", slot.buffer.name, slot.stage, barrier.name, cta)

    def send(self, values: Any, slot: SlotRef, barrier: Barrier, cta: int, share: int, shares: int) -> None:
        self._note("send", slot.buffer.name, slot.stage, barrier.name, cta, share, shares)

    def received(self, slot: SlotRef, layout: Any, share: int, shares: int) -> Fragment:
        self._note("received", slot.buffer.name, slot.stage, share, shares)
        return Fragment(self, layout, "tile", "fp32", ())  # type: ignore[arg-type]

    def apply(self, function: Callable[..., Any], fragments: Sequence[Any], named: dict[str, Any]) -> Any:
        return function(*fragments, **named)

    # ---- generic accesses, registers ------------------------------------------------------------------------------

    def read(self, slot: SlotRef, layout: Any, along: str = "tile") -> Fragment:
        self._note("read", slot.buffer.name, slot.stage)
        kind = "int32" if slot.buffer.dtype.integer else "fp32"
        return Fragment(self, layout, along, kind, (slot.buffer.name, slot.stage))  # type: ignore[arg-type]

    def read_number(self, slot: SlotRef, index: Any) -> Fragment:
        of_places = (index.layout, index.along) if isinstance(index, Fragment) else (None, "one")
        return self.read(slot, *of_places)

    def read_line(self, slot: SlotRef, layout: Any, along: str, at: Any, each: int = 1) -> Fragment:
        return self.read(slot, layout, along)

    # ---- reductions, of which the exchanges over warps and CTAs are noted -----------------------------------------

    def reduced_in_warp(self, values: Fragment, op: str, along: str, inside: Any = None, surely: Any = None) -> Any:
        return Fragments.reduced_in_warp(self, values, op, along)  # type: ignore[arg-type]

    def expand(self, layout: Any, along: str, data: Any, to: str) -> Any:
        return data

    def write_partial(self, layout: Any, along: str, data: Any, slot: SlotRef) -> None:
        pass

    def send_partial(self, layout: ThreadLayout, data: Any, slot: SlotRef, exchange: ClusterExchange) -> None:
        mine = exchange.rank * (slot.buffer.tile[0] // exchange.peers) + layout.warp(self.warp)
        self._note(
            "send_partial",
            slot.buffer.name,
            slot.stage,
            exchange.full.name,
            exchange.mask,
            mine,
            len(data) * layout.slots("rows"),
        )

    def swapped_pairs(self, layout: Any, along: str, data: Any) -> tuple[Any, ...]:
        return data

    def add_chunks(self, layout: Any, data: Any, before: Any) -> tuple[Any, ...]:
        return data

    def write(self, slot: SlotRef, values: Any, at: Any = None) -> None:
        self._note("write", slot.buffer.name, slot.stage, values.data)

    def full(self, layout: Any, along: str, value: float) -> Fragment:
        kind = "int32" if isinstance(value, int) else "fp32"
        return Fragment(self, layout, along, kind, (value,))  # type: ignore[arg-type]

    def accumulator_values(self, matmul: Matmul, acc: str) -> Fragment:
        return Fragment(self, AccumulatorLayout.of(matmul), "tile", "fp32", (acc,))  # type: ignore[arg-type]

    def row_parts(self, values: Fragment) -> Fragment:
        return Fragment(self, values.layout, "rows", "fp32", ())  # type: ignore[arg-type]

    def convert(self, data: Any, kind: str, to: str) -> Any:
        return data

    def elementwise(self, name: str, operands: list[Any]) -> Any:
        return next(filter(None, operands), ())


#: Methods that give no data, or read a slot.
for _name in (
    "beside", "packed", "widened", "reduce_in_warp", "read_partials", "scan_in_warp", "picked_of_pairs", "joined_pairs",
    "chunk_totals", "indices", "number", "products",
):  # fmt: skip
    setattr(RecordingIsa, _name, lambda self, *arguments, **named: ())
for _name in ("read_part", "read_joined", "read_rows_as_columns", "read_transposed"):
    setattr(RecordingIsa, _name, lambda self, slot, layout, *arguments: self.read(slot, layout))
RecordingIsa.load_joined = lambda self, table, layout, *arguments: Fragment(self, layout, "tile", "int32", ())  # type: ignore
RecordingIsa.read_peer = lambda self, slot, cta, layout, at: self.read(slot, layout)  # type: ignore[method-assign]


def _store(op: Any) -> Event:
    rest = (op.rows,) if op.rows is not None else () if op.part is None else (None, op.part)
    return "store", op.store, op.slot[1], op.at, *rest


def _bar(op: Any) -> Event:
    return ("named_sync" if op.sync else "named_arrive", *op.id) if op.threads else ("cta_sync",)


#: What is noted of each operation: its event, or None.
EVENTS: dict[type, Callable[..., Event | None]] = {
    **dict.fromkeys((ops.BarWait, ops.DescriptorRelease, ops.Shuffle, ops.Ballot), lambda op, *data: None),
    ops.GridWait: lambda op: ("grid_wait",),
    ops.GridLaunch: lambda op: ("grid_launch_dependents",),
    ops.MbarInit: lambda op: ("init", *op.bar, op.arrivals),
    ops.FenceMbarInit: lambda op: ("init_fence",),
    ops.MbarWait: lambda op: ("wait", *op.bar, op.parity),
    ops.MbarArrive: lambda op: ("arrive", *op.bar, op.lanes.bit_count()),
    ops.MbarArriveCluster: lambda op: ("arrive_cluster", *op.bar, op.mask),
    ops.MbarArriveTx: lambda op: ("arm", *op.bar, op.nbytes),
    ops.MbarExpectTx: lambda op: ("expect", *op.bar, op.nbytes),
    ops.BarArrive: _bar,
    ops.WarpSync: lambda op: ("warp_sync",),
    ops.ClusterArrive: lambda op: ("cluster_arrive", op.scope),
    ops.ClusterWait: lambda op: ("cluster_wait",),
    ops.FenceProxyAsync: lambda op: ("proxy_fence",),
    ops.FenceProxyAsyncGlobal: lambda op: ("proxy_fence_global",),
    ops.CounterAdd: lambda op: ("add", op.counter),
    ops.CounterStore: lambda op: ("set", op.counter, op.value),
    ops.StAsync: lambda op: ("store_words", *op.slot, op.words, op.bar[0]),
    ops.TileStore: lambda op, values, surely, mask: (
        *("store_values", op.store, op.at, values.layout),
        "rows, shared out" if isinstance(values.data, Joined) else values.along,
    ),
    ops.PrefetchDescriptor: lambda op: ("prefetch", op.part),
    ops.BulkLoad: lambda op: ("load", op.load, op.slot[1], op.at, op.bar[0], None, 0),
    ops.BulkPrefetch: lambda op: ("prefetch_piece", op.load, op.at),
    ops.TmaPrefetch: lambda op: ("prefetch_tile", op.load, op.at, op.share),
    ops.CpAsync: lambda op: ("copies", op.load, op.slot[1], op.at, op.bar[0], op.share, op.shares),
    ops.TmaLoad: lambda op: (
        *("load", op.load, op.slot[1], op.at, op.bar[0], op.mask, op.share),
        *((op.offsets,) if op.offsets else ()),
    ),
    ops.TmaLoadThrough: lambda op: (
        *("load_through", op.load, op.slot[1], op.at, op.bar[0], op.source[1], op.mask, op.share),
    ),
    ops.DescriptorWrite: lambda op: ("set_descriptor", op.load, *op.slot, *op.at),
    ops.DescriptorAcquire: lambda op: ("acquire_descriptor", *op.slot),
    ops.TmaGather: lambda op: ("gather", op.load, op.slot[1], op.numbers, op.at, op.bar[0], op.share),
    ops.TmaScatter: lambda op: ("scatter", op.store, op.slot[1], op.numbers, op.at, op.part),
    ops.TmaStore: _store,
    ops.BulkStore: lambda op: ("bulk_store", op.store, op.slot[1], op.at),
    ops.BulkCommit: lambda op: ("commit",),
    ops.BulkWait: lambda op: ("wait_group", op.pending, op.read),
    ops.WgmmaFence: lambda op: ("wgmma_fence",),
    ops.Wgmma: lambda op, acc: ("wgmma", op.matmul, op.a[1], op.b[1]),
    ops.WgmmaFromRegisters: lambda op, acc, a: ("wgmma", op.matmul, None, op.b[1]),
    ops.WgmmaCommit: lambda op: ("wgmma_commit",),
    ops.WgmmaWait: lambda op: ("wgmma_wait", op.pending),
    ops.SetMaxNreg: lambda op: ("setmaxnreg", op.registers, op.increase),
}


def record(schedule: Any, plan: Plan, warp: int, extents: dict[str, tuple[int, ...]], **place: Any) -> list[Event]:
    """What one warp does from the kernel's first instruction to its last. place: as of `RecordingIsa`."""
    isa = RecordingIsa(plan, warp, extents=extents, **place)
    kernel_main(isa, schedule)
    return isa.events
