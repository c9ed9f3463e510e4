"""A backend of the instruction set that only writes down what it is asked to do, with plain integers for values.

It waits for nothing and moves nothing, so one warp of any role can be run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.oracle.plain import block
from tmapipe.isa.exchange import ClusterExchange, Exchange
from tmapipe.isa.fragment import Fragment, SlotRef
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.ops import Isa
from tmapipe.kernel import kernel_main
from tmapipe.plan.model import Load, Peer, Plan, Store, Syncs
from tmapipe.plan.rings import Barrier, Matmul, NamedBarrier
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout

Event = tuple[Any, ...]


class RecordingIsa:
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
        self.exchanges: dict[int, Exchange] = {}
        self.body: Any = None
        self.fragments = self

    def of(self, *kinds: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event[0] in kinds]

    def made(self, values: Any) -> None:
        """Of fragments, as in `Fragments`."""

    def _note(self, *event: Any) -> None:
        self.events.append(event)

    # ---- structure ------------------------------------------------------------------------------------------------

    def cells(self, *initial: int) -> list[int]:
        return list(initial)

    advance, skip = Isa.advance, Isa.skip

    def select(self, condition: bool, then: Any, otherwise: Any) -> Any:
        return then if condition else otherwise

    def here(self, value: Any) -> Any:
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

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def extent(self, argument: str, dim: int) -> int:
        return self.extents[argument][dim]

    def divisors(self, values: dict[str, int]) -> dict[str, int]:
        return values

    # ---- mbarrier -------------------------------------------------------------------------------------------------

    def griddepcontrol_wait(self) -> None:
        self._note("grid_wait")

    def griddepcontrol_launch_dependents(self) -> None:
        self._note("grid_launch_dependents")

    def mbarrier_init(self, barrier: Barrier, count: int) -> None:
        for stage in range(barrier.stages):
            self._note("init", barrier.name, stage, count)

    def fence_mbarrier_init(self) -> None:
        self._note("init_fence")

    def mbarrier_wait(self, barrier: Barrier, stage: int, parity: int) -> None:
        self._note("wait", barrier.name, stage, parity)

    def mbarrier_arrive(self, barrier: Barrier, stage: int, lanes: int = 1, when: bool = True) -> None:
        if when:
            self._note("arrive", barrier.name, stage, lanes)

    def mbarrier_arrive_cluster(
        self, barrier: Barrier, stage: int, mask: int, when: bool = True, scope: str = "cluster"
    ) -> None:
        if when:
            self._note("arrive_cluster", barrier.name, stage, mask)

    def mbarrier_arrive_expect_tx(self, barrier: Barrier, stage: int, nbytes: int) -> None:
        self._note("arm", barrier.name, stage, nbytes)

    def mbarrier_expect_tx(self, barrier: Barrier, stage: int, nbytes: int) -> None:
        self._note("expect", barrier.name, stage, nbytes)

    # ---- other barriers and fences --------------------------------------------------------------------------------

    def cta_sync(self) -> None:
        self._note("cta_sync")

    def warp_sync(self) -> None:
        self._note("warp_sync")

    def named_barrier_sync(self, barrier: NamedBarrier, instance: int = 0) -> None:
        self._note("named_sync", barrier.name, instance)

    def named_barrier_arrive(self, barrier: NamedBarrier, instance: int = 0) -> None:
        self._note("named_arrive", barrier.name, instance)

    def cluster_arrive(self, scope: str = "cluster") -> None:
        self._note("cluster_arrive", scope)

    def cluster_wait(self) -> None:
        self._note("cluster_wait")

    def fence_proxy_async(self) -> None:
        self._note("proxy_fence")

    def fence_proxy_async_global(self) -> None:
        self._note("proxy_fence_global")

    # ---- counters, and words from a scheduler ---------------------------------------------------------------------

    def lane_0(self, body: Callable[[], None], when: bool = True) -> None:
        if when:
            body()

    def shuffle(self, value: Any) -> Any:
        return value

    def smid(self) -> int:
        return 5

    def launch_words(self, in_machine: Callable[[int], Sequence[int]]) -> Sequence[int]:
        return in_machine(self.clusters)

    def atomic_add(self, counter: int, in_turn: Callable[[], int]) -> int:
        self._note("add", counter)
        return in_turn()

    def store_counter(self, counter: int, value: int) -> None:
        self._note("set", counter, value)

    def store_words(self, slot: SlotRef, words: Sequence[int], barrier: Barrier) -> None:
        self._note("store_words", slot.buffer.name, slot.stage, tuple(words), barrier.name)

    def read_words(self, slot: SlotRef, count: int, without_data: Callable[[], Sequence[int]]) -> Sequence[int]:
        words = tuple(without_data())
        assert len(words) == count
        self._note("read_words", slot.buffer.name, slot.stage, words)
        return words

    def store_values(self, store: Store, at: Sequence[int], values: Any, surely: Any = None) -> None:
        self._note("store_values", store.name, tuple(at), values.layout, values.along)

    # ---- tables ---------------------------------------------------------------------------------------------------

    def load_entry(self, table: str, i: int, without_data: int) -> int:
        return self.tables[table][i]

    def ballot(self, table: str, first: int, count: int, holds: Callable[[int, int], bool], without_data: int) -> int:
        return sum(bool(holds(i, self.tables[table][i])) for i in range(first, min(first + 32, count)))

    # ---- TMA ------------------------------------------------------------------------------------------------------

    def prefetch_descriptor(self, part: Load | Store) -> None:
        self._note("prefetch", part.name)

    def bulk_load(self, load: Load, stage: int, at: Sequence[int], barrier: Barrier) -> None:
        self._note("load", load.name, stage, tuple(at), barrier.name, None, 0)

    def bulk_prefetch(self, load: Load, at: Sequence[int]) -> None:
        self._note("prefetch_piece", load.name, tuple(at))

    def tma_prefetch(self, load: Load, at: Sequence[int], share: int = 0) -> None:
        self._note("prefetch_tile", load.name, tuple(at), share)

    def cp_async(
        self, load: Load, stage: int, at: Sequence[int], barrier: Barrier, share: int, shares: int, anywhere: bool
    ) -> None:
        self._note("copies", load.name, stage, tuple(at), barrier.name, share, shares)

    def tma_load(
        self,
        load: Load,
        stage: int,
        at: Sequence[int],
        barrier: Barrier,
        mask: int | None = None,
        share: int = 0,
        *,
        part: int | None = None,
        anywhere: bool = False,
        offsets: Sequence[int] = (),
    ) -> None:
        which, of = share if part is None else part, (tuple(offsets),) if offsets else ()
        self._note("load", load.name, stage, tuple(at), barrier.name, mask, which, *of)

    def descriptor_write(self, load: Load, buffer: Any, stage: int, first: int, rows: int) -> None:
        self._note("set_descriptor", load.name, buffer.name, stage, first, rows)

    def descriptor_acquire(self, buffer: Any, stage: int) -> None:
        self._note("acquire_descriptor", buffer.name, stage)

    def tma_load_through(
        self, load: Load, stage: int, at: Sequence[int], barrier: Barrier, through: int, mask: int | None, share: int
    ) -> None:
        self._note("load_through", load.name, stage, tuple(at), barrier.name, through, mask, share)

    def window_start(self, load: Load, number: int) -> tuple[int, ...]:
        assert load.windows is not None
        return load.windows.start(number, self.extents[load.argument][1:-1])

    def peer_copy(
        self, peer: Peer, stage: int, to: int, barrier: Barrier, part: int | None = None, into: int = 0
    ) -> None:
        self._note("peer_copy", peer.name, stage, to, barrier.name, part, into)

    def tma_gather(
        self, load: Load, stage: int, rows: Sequence[int], at: Sequence[int], barrier: Barrier, part: int
    ) -> None:
        self._note("gather", load.name, stage, tuple(rows), tuple(at), barrier.name, part)

    def tma_store(
        self, store: Store, stage: int, at: Sequence[int], rows: int | None = None, part: int | None = None
    ) -> None:
        more = (rows,) if rows is not None else () if part is None else (None, part)
        self._note("store", store.name, stage, tuple(at), *more)

    def tma_scatter(self, store: Store, stage: int, rows: Sequence[int], at: Sequence[int], part: int) -> None:
        self._note("scatter", store.name, stage, tuple(rows), tuple(at), part)

    def bulk_store(self, store: Store, stage: int, at: Sequence[int]) -> None:
        self._note("bulk_store", store.name, stage, tuple(at))

    def bulk_commit_group(self) -> None:
        self._note("commit")

    def bulk_wait_group(self, pending: int, read: bool) -> None:
        self._note("wait_group", pending, read)

    # ---- wgmma ----------------------------------------------------------------------------------------------------

    def accumulator(self, matmul: Matmul, empty: bool = True) -> str:
        return f"acc {matmul.name}"

    def accumulator_promote(self, matmul: Matmul, acc: str) -> None:
        self._note("promote", matmul.name)

    def wgmma_fence(self) -> None:
        self._note("wgmma_fence")

    def accumulator_scale(self, matmul: Matmul, acc: str, by: Any) -> None:
        self._note("scale", matmul.name)

    def accumulator_after(self, matmul: Matmul, acc: str, values: Any) -> Any:
        return values

    def packed(self, matmul: Matmul, values: Any) -> tuple[Any, ...]:
        return ()

    def operand(self, matmul: Matmul, values: Any) -> None:
        return None

    def wgmma(self, matmul: Matmul, acc: str, a: SlotRef | None, b: SlotRef) -> None:
        assert acc == f"acc {matmul.name}"
        self._note("wgmma", matmul.name, None if a is None else a.stage, b.stage)

    def wgmma_commit(self) -> None:
        self._note("wgmma_commit")

    def wgmma_wait(self, pending: int) -> None:
        self._note("wgmma_wait", pending)

    def accumulator_columns(self, matmul: Matmul, acc: str, block: int, first: int, columns: int) -> Fragment:
        return self._fragment((acc, block, first, columns))

    def write_columns(self, values: Any, slot: SlotRef, *, transposed: bool = False) -> None:
        self._note("write_columns", slot.buffer.name, slot.stage, values.data)

    def row_sums(self, values: Any, columns: int, first: int, inside: int, before: Any) -> tuple[Any, ...]:
        return (*(before or ()), (values.data, first, inside))

    def write_row_sums(self, sums: Any, slot: SlotRef) -> None:
        self._note("write_row_sums", slot.buffer.name, slot.stage, sums)

    def column_sums(self, values: Any, columns: int, inside: int) -> tuple[Any, ...]:
        return values.data, columns, inside

    def write_column_sums(self, sums: Any, slot: SlotRef) -> None:
        self._note("write_column_sums", slot.buffer.name, slot.stage, sums)

    def read_columns(
        self, matmul: Matmul, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0
    ) -> Fragment:
        self._note("read_columns", slot.buffer.name, slot.stage, along, columns, first)
        return self._fragment(())

    def send_tile(self, values: Any, slot: SlotRef, barrier: Barrier, cta: int) -> None:
        self._note("send_tile", slot.buffer.name, slot.stage, barrier.name, cta)

    def send(self, values: Any, slot: SlotRef, barrier: Barrier, cta: int, share: int, shares: int) -> None:
        self._note("send", slot.buffer.name, slot.stage, barrier.name, cta, share, shares)

    def received(self, slot: SlotRef, share: int, shares: int) -> Fragment:
        self._note("received", slot.buffer.name, slot.stage, share, shares)
        return self._fragment(())

    def apply(self, function: Callable[..., Any], fragments: Sequence[Any], named: dict[str, Any]) -> Any:
        return function(*fragments, **named)

    # ---- generic accesses, registers ------------------------------------------------------------------------------

    def read(self, slot: SlotRef, layout: Any, along: str = "tile") -> Fragment:
        self._note("read", slot.buffer.name, slot.stage)
        kind = "int32" if slot.buffer.dtype.integer else "fp32"
        return Fragment(self, layout, along, kind, (slot.buffer.name, slot.stage))  # type: ignore[arg-type]

    def read_peer(self, slot: SlotRef, cta: int, layout: Any, at: Any) -> Fragment:
        return self.read(slot, layout)

    def read_part(self, slot: SlotRef, layout: Any, at: Any, pitch: int = 0) -> Fragment:
        return self.read(slot, layout)

    def read_rows_as_columns(self, slot: SlotRef, layout: Any, starts: Any, pitch: int) -> Fragment:
        return self.read(slot, layout)

    def read_transposed(self, slot: SlotRef, layout: Any) -> Fragment:
        return self.read(slot, layout)

    def read_number(self, slot: SlotRef, index: Any) -> Fragment:
        return self.read(slot, None, "one")

    def read_columns_from(self, slot: SlotRef, layout: Any, first: int) -> Fragment:
        return self.read(slot, layout, "columns")

    # ---- reductions, of which the exchanges over warps and CTAs are noted -----------------------------------------

    exchange_for, over_warps = Fragments.exchange_for, Fragments.over_warps
    cumsum, swap_pairs, whole_tile = Fragments.cumsum, Fragments.swap_pairs, Fragments.whole_tile
    split_pairs, join_pairs, alike = Fragments.split_pairs, Fragments.join_pairs, Fragments.alike

    def reduce(self, values: Fragment, op: str, along: str, inside: Any = None, surely: Any = None) -> Fragment:
        return Fragments.reduce(self, values, op, along)  # type: ignore[arg-type]

    def expand(self, layout: Any, along: str, data: Any, to: str) -> Any:
        return data

    def reduce_in_warp(self, layout: Any, op: str, kind: str, along: str, data: Any) -> tuple[Any, ...]:
        return ()

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
            layout.slots("rows"),
        )

    def read_partials(self, layout: Any, op: str, along: str, slot: SlotRef, peers: int = 1) -> tuple[Any, ...]:
        return ()

    def scan_in_warp(self, layout: Any, kind: str, data: Any) -> tuple[Any, ...]:
        return ()

    def swapped_pairs(self, layout: Any, along: str, data: Any) -> tuple[Any, ...]:
        return data

    def picked_of_pairs(self, layout: Any, along: str, data: Any, which: int) -> tuple[Any, ...]:
        return ()

    def joined_pairs(self, layout: Any, along: str, even: Any, odd: Any) -> tuple[Any, ...]:
        return ()

    def chunk_totals(self, layout: Any, data: Any) -> tuple[Any, ...]:
        return ()

    def chunks_before(self, layout: Any, data: Any) -> tuple[Any, ...]:
        return ()

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

    def indices(self, layout: Any, along: str) -> Any:
        return ()

    def convert(self, data: Any, kind: str, to: str) -> Any:
        return data

    def _fragment(self, data: tuple[Any, ...]) -> Fragment:
        """A fragment, known by where it came from; arithmetic gives it back."""
        return Fragment(self, None, "tile", "fp32", data)  # type: ignore[arg-type]

    def kind_of(self, name: str, value: Any) -> str:
        return "fp32"

    def number(self, value: Any, kind: str) -> Any:
        return ()

    def elementwise(self, name: str, operands: list[Any]) -> Any:
        return next(filter(None, operands), ())

    def setmaxnreg(self, registers: int, increase: bool) -> None:
        self._note("setmaxnreg", registers, increase)


def record(schedule: Any, plan: Plan, warp: int, extents: dict[str, tuple[int, ...]], **place: Any) -> list[Event]:
    """What one warp does from the kernel's first instruction to its last. place: as of `RecordingIsa`."""
    isa = RecordingIsa(plan, warp, extents=extents, **place)
    kernel_main(isa, schedule)
    return isa.events
