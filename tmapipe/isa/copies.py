"""Operations and instructions that copy: TMA loads and stores, bulk groups, copies to peers of the cluster, rows by
their numbers."""

# ruff: noqa: F403, F405 - declarations are written in the vocabulary of `tmapipe.isa`, all of it

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tmapipe.isa import *
from tmapipe.isa.barriers import Lowering
from tmapipe.isa.fragment import SlotRef, Value
from tmapipe.plan.model import Load, Store
from tmapipe.plan.rings import Barrier, Exchanged

# ---- copies ----------------------------------------------------------------------------------------------------------
#
# Operations and instructions that copy: TMA loads and stores, bulk groups, st.async.


ON_BAR, IN_BULK = Until(bar="bar", nbytes="nbytes"), Until(Group.BULK, "lanes")


@operation(
    "cp.async.bulk.global.mbarrier::complete_tx::bytes",
    "starts the bulk load of {load} into {slot}, {nbytes} bytes that complete on {bar}",
    Start("slot", ON_BAR, write=True),
    Tile("load"),
)
class BulkLoad(NamedTuple):
    """Copies one contiguous piece of memory, from element `at` on, to `slot`, and completes `nbytes` on `bar`. Facts: tuple of
    its `Flight`."""

    load: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    at: At = ()


@operation(
    "cp.async.ca.shared.global",
    "starts copies of {load} into {slot}[ (share {share} of {shares})], {nbytes} bytes, after which {lanes} lanes arrive at "
    "{bar}",
    Start("slot", Until(bar="bar", lanes="lanes"), write=True, share="share", shares="shares"),
    Tile("load", anywhere="anywhere", nbytes="nbytes"),
)
class CpAsync(NamedTuple):
    """Each of `lanes` copies its vectors of share `share` of `shares` of the tile that starts at element `at` to `slot`. When
    a lane's copies have landed, it arrives on `bar` (``cp.async.mbarrier.arrive.noinc``). A share has every `shares`-th run of
    32 vectors (one for each lane), `nbytes` bytes in all. Facts: tuple of its `Flight`."""

    load: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    share: Number = 0
    shares: Number = 1
    at: At = ()
    lanes: Lanes = ALL_LANES
    anywhere: Flag = False


@operation("prefetch.tensormap", "prefetches the descriptor of {part}")
class PrefetchDescriptor(NamedTuple):
    """Facts: None."""

    part: Name


@operation("cp.async.bulk.prefetch.tensor.L2.global", "asks for a tile of {load} in L2", Tile("load", inside=False))
class TmaPrefetch(NamedTuple):
    """Asks for the tile that starts at element `at`, or share `share` of the tile. It is a hint; nothing waits for it. Facts:
    None."""

    load: Name
    share: Number = 0
    at: At = ()


@operation("cp.async.bulk.prefetch.L2.global", "asks for a piece of {load} in L2", Tile("load", inside=False))
class BulkPrefetch(NamedTuple):
    """Asks for the contiguous piece of memory from element `at` on. It is a hint; nothing waits for it. Facts: None."""

    load: Name
    at: At = ()


@operation(
    "cp.async.bulk.tensor.global.mbarrier::complete_tx::bytes",
    "starts the TMA load of {load} into {slot}[ of CTAs {mask}][ (share {share} of {shares})], {nbytes} bytes that complete "
    "on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", share="share", shares="shares"),
    Tile("load", anywhere="anywhere"),
)
class TmaLoad(NamedTuple):
    """Copies the tile that starts at element `at` to `slot`, and completes `nbytes` on `bar`, in each CTA of `mask`. With a
    mask it copies only share `share` of `shares` of the tile, which is cut along rows. Without a mask, a part of the tile may
    be copied; then `at` is the part's first element. anywhere: whether the tile may start outside of its tensor. offsets:
    which element of each window is loaded. Facts: tuple of `Flight`, one for each destination CTA."""

    load: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    mask: Mask | None = None
    share: Number = 0
    shares: Number = 1
    at: At = ()
    anywhere: Flag = False
    offsets: At = ()


@operation(
    "cp.async.bulk.tensor.global.shared::cta.bulk_group",
    "starts the TMA store {store} from {slot}[ (part {part})]",
    Start("slot", IN_BULK),
    Tile("store"),
)
class TmaStore(NamedTuple):
    """Or ``cp.reduce``: to the tile that starts at element `at`; only the first `rows` rows of it, if it is clipped; or only
    part `part` of the slot, which goes to `at` itself. Facts: tuple of its `Flight`."""

    store: Name
    slot: Slot
    at: At = ()
    rows: Number | None = None
    part: Number | None = None
    lanes: Lanes = ELECTED


@operation(
    "cp.async.bulk.global.shared::cta.bulk_group",
    "starts the bulk store {store} from {slot}",
    Start("slot", IN_BULK),
    Tile("store"),
)
class BulkStore(NamedTuple):
    """Or ``cp.reduce``: to the piece of memory from element `at` on, as far as the tensor goes. Facts: tuple of its
    `Flight`."""

    store: Name
    slot: Slot
    at: At = ()
    lanes: Lanes = ELECTED


@operation("cp.async.bulk.commit_group", "commits a bulk group", EndGroup(Group.BULK, "lanes"))
class BulkCommit(NamedTuple):
    """Facts: (number of the thread's group, its flights)."""

    lanes: Lanes = ELECTED


@operation(
    "cp.async.bulk.wait_group",
    "waits for bulk groups (wait_group[.{read}] {pending})",
    AwaitGroup(Group.BULK, "lanes", read="read"),
)
class BulkWait(NamedTuple):
    """Facts: n: groups 0 .. n - 1 of this thread are now read (complete, if not read)."""

    pending: Pending
    read: Flag
    lanes: Lanes = ELECTED


@operation(
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32",
    "starts an st.async into {slot} of CTAs {mask}[ (share {share} of {shares})], {nbytes} bytes that complete on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", share="share", shares="shares"),
)
class StAsync(NamedTuple):
    """Writes `words` (4 bytes each), or words that lanes hold, to the start of `slot`, or of share `share` of `shares` of
    `slot`, and completes `nbytes` on `bar`, in each CTA of `mask`. Facts: tuple of `Flight`, one for each destination CTA."""

    slot: Slot
    bar: Bar
    nbytes: Bytes
    mask: Mask
    words: At = ()
    share: Number = 0
    shares: Number = 1


class CopyInstructions(Lowering):
    """Instructions that copy."""

    def prefetch_descriptor(self, part: Load | Store) -> None:
        """``prefetch.tensormap``: a hint, no ordering effect."""
        self.emit(PrefetchDescriptor(part.name))

    def bulk_load(self, load: Load, stage: Value, at: Sequence[Value], barrier: Barrier) -> None:
        """``cp.async.bulk`` to shared memory: copies a slot's bytes, side by side from element *at* of a tensor on, into slot
        *stage*, and completes them on ``barrier[stage]``, later, by itself. All of them lie in the tensor. Needs no
        descriptor; addresses and sizes are multiples of 16 bytes. Async proxy."""
        slot, bar = self.slot(load.buffer, stage), self.bar(barrier, stage)
        self.emit(BulkLoad(load.name, slot, bar, load.buffer.slot_bytes, self.start(load, at)))

    def cp_async(
        self, load: Load, stage: Value, at: Sequence[Value], barrier: Barrier, share: Value, shares: int, anywhere: bool
    ) -> None:
        """``cp.async`` (each lane), then ``cp.async.mbarrier.arrive.noinc``: copies part *share* of *shares* of the tile that
        starts at element *at* into slot *stage*, `load.vector` bytes at a time. Elements outside the tensor become zero. Each
        lane arrives once on ``barrier[stage]`` when its copies have landed, later, by itself. Generic proxy.

        Vector i, counted along the slot's rows, is in part ``i // 32 % shares`` and copied by lane ``i % 32``. *anywhere*:
        whether the tile may start outside of the tensor; the check then allows it.
        """
        slot, bar = self.slot(load.buffer, stage), self.bar(barrier, stage)
        nbytes = self.share_bytes(load, share, shares)
        self.emit(CpAsync(load.name, slot, bar, nbytes, share, shares, self.start(load, at), anywhere=anywhere))

    def tma_load(
        self,
        load: Load,
        stage: Value,
        at: Sequence[Value],
        barrier: Barrier,
        mask: Value = None,
        share: Value = 0,
        *,
        part: Value = None,
        anywhere: bool = False,
        offsets: Sequence[Value] = (),
    ) -> None:
        """``cp.async.bulk.tensor`` to shared memory (``.multicast::cluster``, ``.im2col``). Async proxy.

        Copies the tile that starts at element *at* (one index for each dimension of `load.dims`) into slot *stage*. The tile's
        bytes complete on ``barrier[stage]``, later, by themselves. Elements outside the tensor count as bytes and read as
        zero; but if `load.outside` leaves open what rows hold that are wholly outside, such rows may hold anything.

        With *mask*, this CTA copies only part *share* of `load.peers` parts, cut along the slot's first extent. The part goes
        into the same slot of every CTA in *mask*, and its bytes complete on the same barrier of these CTAs. With *part*, only
        this part of `load.parts` parts of the slot is copied, and *at* is the part's first element. *anywhere*: whether the
        tile may start outside of the tensor; the check then allows it. With `load.windows`, *at* is (image, where the first
        window of this CTA's share begins, channel), and *offsets* say which element of each window is loaded.
        """
        shares = 1 if mask is None else load.peers
        if part is not None:
            share, shares = self.part(load, part), load.parts
        slot, bar = self.slot(load.buffer, stage), self.bar(barrier, stage)
        nbytes = load.buffer.slot_bytes // shares
        where: Any = {"at": self.start(load, at), "anywhere": anywhere, "offsets": tuple(map(self.plain, offsets))}
        self.emit(TmaLoad(load.name, slot, bar, nbytes, mask, share, shares, **where))

    def tma_prefetch(self, load: Load, at: Sequence[Value], share: Value = 0) -> None:
        """``cp.async.bulk.prefetch.tensor`` into L2: asks for what a `tma_load` of the same operands would copy. It is a hint:
        it orders nothing, nothing waits for it, and outside of the tensor it does nothing."""
        self.emit(TmaPrefetch(load.name, share, self.start(load, at)))

    def bulk_prefetch(self, load: Load, at: Sequence[Value]) -> None:
        """``cp.async.bulk.prefetch.L2``: asks for what a `bulk_load` of the same operands would copy. It is a hint, as
        `tma_prefetch` is."""
        self.emit(BulkPrefetch(load.name, self.start(load, at)))

    def tma_store(
        self, store: Store, stage: Value, at: Sequence[Value], rows: Value = None, part: Value = None
    ) -> None:
        """``cp.async.bulk.tensor`` to global memory (``cp.reduce...`` with `store.reduce`): copies slot *stage* to the tile
        that starts at element *at*, later. Elements outside the tensor are not written. If the store is `clipped`, only the
        slot's first *rows* rows are written (0 to all). With *part*, only this part of `store.parts` parts of the slot is
        copied, and *at* is the part's first element. Async proxy."""
        rows, part = None if rows is None else self.plain(rows), self.part(store, part)
        self.emit(TmaStore(store.name, self.slot(store.buffer, stage), self.start(store, at), rows, part))

    def bulk_store(self, store: Store, stage: Value, at: Sequence[Value]) -> None:
        """``cp.async.bulk`` to global memory (``cp.reduce...`` with `store.reduce`): copies slot *stage*, or as much of it as
        lies in the tensor, to the piece of it from element *at* on, later. Needs no descriptor; addresses and sizes are
        multiples of 16 bytes. Async proxy."""
        self.emit(BulkStore(store.name, self.slot(store.buffer, stage), self.start(store, at)))

    def bulk_commit_group(self) -> None:
        """``cp.async.bulk.commit_group``: closes a group of the elected thread's stores."""
        self.emit(BulkCommit())

    def bulk_wait_group(self, pending: int, read: bool) -> None:
        """``cp.async.bulk.wait_group(.read)``: until at most *pending* groups of the elected thread are incomplete
        (*read*: until their sources have been read, so that these may be overwritten; the writes may not be visible)."""
        self.emit(BulkWait(pending, read))

    def store_words(self, slot: SlotRef, words: Sequence[Value], barrier: Barrier) -> None:
        """``st.async``, by lane i to CTA i of the cluster, for every CTA: writes *words* to the start of the slot. All bytes
        of the slot complete on ``barrier[slot.stage]`` there, later, by themselves. The PTX ISA leaves open through which
        proxy it writes; the library takes the async proxy, which is the stricter."""
        everyone = (1 << self.plan.cluster_size) - 1
        place, bar = self.slot(slot.buffer, slot.stage), self.bar(barrier, slot.stage)
        self.emit(StAsync(place, bar, slot.buffer.slot_bytes, everyone, tuple(words)))


# ---- peers -----------------------------------------------------------------------------------------------------------
#
# Operations and instructions that copy, or reduce, into the shared memory of other CTAs of the cluster.


@operation(
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
    "starts a copy of {source} into {slot} of CTAs {mask}[ (part {part} to share {share} of {shares})], {nbytes} bytes that "
    "complete on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", share="share", shares="shares"),
    Start("source", ON_BAR, mask="mask"),
)
class PeerCopy(NamedTuple):
    """Copies `source`, or part `part` of `shares` of it, to `slot` of the CTA in `mask`, or to share `share` of that slot, and
    completes `nbytes` on the CTA's `bar`. Facts: tuple of its `Flight`."""

    slot: Slot
    bar: Bar
    nbytes: Bytes
    mask: Mask
    source: Slot
    part: Number = 0
    share: Number = 0
    shares: Number = 1


@operation(
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
    "starts the reduction {peer} of part {part} of {source} into {slot} of CTAs {mask}, {nbytes} bytes that complete on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", reduces=True),
    Start("source", ON_BAR, mask="mask"),
)
class PeerReduce(NamedTuple):
    """Combines part `part` of `parts` of `source` with `slot` of the CTA in `mask`, by the reduction of exchange `peer`, and
    completes `nbytes` on the CTA's `bar`. Facts: tuple of its `Flight`."""

    peer: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    mask: Mask
    source: Slot
    part: Number
    parts: Number


@operation(
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes",
    "starts the reduction {peer} of registers into {slot} of CTAs {mask}[ (share {share} of {shares})], {nbytes} bytes that "
    "complete on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", share="share", shares="shares", reduces=True),
)
class RedAsync(NamedTuple):
    """Combines values that lanes hold with share `share` of `shares` of `slot` of the CTA in `mask`, by the reduction of
    exchange `peer`, and completes `nbytes` on the CTA's `bar`. The PTX ISA leaves its proxy open; the library takes the async
    proxy, as for `StAsync`. Facts: tuple of its `Flight`."""

    peer: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    mask: Mask
    words: At = ()
    share: Number = 0
    shares: Number = 1


class PeerInstructions(Lowering):
    """Instructions of clusters."""

    def peer_copy(
        self, exchange: Exchanged, stage: Value, to: Value, barrier: Barrier, part: Value = None, into: Value = 0
    ) -> None:
        """``cp.async.bulk`` from shared memory to the shared memory of a CTA of the cluster: copies slot *stage* of
        `exchange.source` to slot *stage* of `exchange.buffer` of the CTA with rank *to*. Its bytes complete on
        ``barrier[stage]`` there, later, by themselves. With *part*, only this part is copied, of `exchange.peers` equal parts
        along the slot's first extent, and it becomes part *into*. With `exchange.reduce` it is ``cp.reduce.async.bulk``: part
        *part* of the source is combined with the whole slot. Async proxy."""
        assert exchange.source is not None
        slot, source = self.slot(exchange.buffer, stage), self.slot(exchange.source, stage)
        bar = self.bar(barrier, stage)
        nbytes, shares = exchange.buffer.slot_bytes, 1 if part is None else exchange.peers
        if exchange.reduce is not None:
            self.emit(PeerReduce(exchange.name, slot, bar, nbytes, 1 << to, source, part, shares), to)
        else:
            part = 0 if part is None else part
            self.emit(PeerCopy(slot, bar, nbytes // shares, 1 << to, source, part, into, shares), to)


def sent(isa: Lowering, to: SlotRef, barrier: Barrier, cta: Value, share: Value, shares: int) -> StAsync | RedAsync:
    """The operation of a warp that writes share *share* of *shares* of a slot of CTA *cta* from registers, or reduces it."""
    slot, bar, of = isa.slot(to.buffer, to.stage), isa.bar(barrier, to.stage), isa.plan.exchange(to.buffer.name)
    what = slot, bar, to.buffer.slot_bytes // shares, 1 << cta, (), share, shares
    return StAsync(*what) if of is None or of.reduce is None else RedAsync(of.name, *what)


# ---- rows ------------------------------------------------------------------------------------------------------------
#
# Operations and instructions that move four rows of a matrix, by their numbers.


@operation(
    "cp.async.bulk.tensor.2d.global.tile::gather4.mbarrier::complete_tx::bytes",
    "starts the TMA load of 4 rows of {load} into {slot} (share {share} of {shares}), {nbytes} bytes that complete on {bar}",
    Start("slot", ON_BAR, write=True, share="share", shares="shares"),
    Tile("load", numbers="numbers", inside=False),
)
class TmaGather(NamedTuple):
    """Copies the rows `numbers` of a matrix, from column `at[-1]` on, to share `share` of `shares` of `slot`, and completes
    `nbytes` on `bar`. Rows outside of the matrix are zero. Facts: tuple of its `Flight`."""

    load: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    share: Number
    shares: Number
    numbers: At = ()
    at: At = ()


@operation(
    "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group",
    "starts the TMA store {store} of 4 rows from {slot} (part {part})",
    Start("slot", IN_BULK),
    Tile("store", numbers="numbers", inside=False),
)
class TmaScatter(NamedTuple):
    """Copies 4 rows of the slot, from row 4 `part` on, to the rows `numbers` of a matrix, from column `at[-1]` on. Rows beyond
    the matrix are not written. Facts: tuple of its `Flight`."""

    store: Name
    slot: Slot
    part: Number
    numbers: At = ()
    at: At = ()
    lanes: Lanes = ELECTED


class RowInstructions(Lowering):
    """Instructions of sm_100 and later."""

    def tma_gather(
        self, load: Load, stage: Value, rows: Sequence[Value], at: Sequence[Value], barrier: Barrier, part: Value
    ) -> None:
        """``cp.async.bulk.tensor.2d.tile::gather4``: copies the four rows *rows* of a matrix, from column *at[-1]* on, to four
        rows of slot *stage*, from row 4 *part* on. Their bytes complete on ``barrier[stage]``, later, by themselves. Rows
        outside of the matrix count as bytes, and read as zero. Async proxy."""
        slot, bar, shares = self.slot(load.buffer, stage), self.bar(barrier, stage), load.parts // 4
        where = (tuple(map(self.plain, rows)), self.start(load, at))
        self.emit(TmaGather(load.name, slot, bar, load.buffer.slot_bytes // shares, part, shares, *where))

    def tma_scatter(self, store: Store, stage: Value, rows: Sequence[Value], at: Sequence[Value], part: Value) -> None:
        """``cp.async.bulk.tensor.2d.tile::scatter4``: copies four rows of slot *stage*, from row 4 *part* on, to the rows
        *rows* of a matrix, from column *at[-1]* on, later. Rows beyond the matrix are not written. Async proxy."""
        where = (tuple(map(self.plain, rows)), self.start(store, at))
        self.emit(TmaScatter(store.name, self.slot(store.buffer, stage), part, *where))
