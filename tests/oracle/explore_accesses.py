"""When an access to a slot may be under way, for the exhaustive oracle: as intervals of its warp's program, without clocks.

An access of one warp conflicts with one of another if some interleaving has both under way at once. What a warp does between
two synchronizing operations can happen at any time between them, so an access is under way

    from   its warp's last acquire before it (a wait for an mbarrier, for other warps, for the cluster, for a wgmma of four)
    to     its warp's first release after it is over (an arrival of any kind, the issue of a TMA load, the warp's return);
           for warps that take no part in it, if that is a named barrier's and some arrivals in the program are relaxed:
           to the first release that reaches them, by this warp or by one that it meets there (`explore_conflicts`)

and an access is *over*

    threads'        at the next common synchronization of the warp's lanes (an operation of all lanes), and as seen by the
                    async proxy at the first such after the warp's next proxy fence
    a TMA store's   at the bulk wait that covers its group
    a wgmma's       at the wait of any of its four warps that covers it: the first of their releases ends it
    a TMA load's    when its bytes are counted: a step of the machine, not an interval
    a cp.async's    likewise; for the async proxy, see `explore_copies`

Each tile of a tensor that the kernel both stores to and loads from is one more place, the same for all CTAs. What a store
writes there is over, for other engines, at the first signal after its warp's next proxy fence of global memory that comes
after the full wait for its group; what a load reads there, when its bytes are counted.

Accesses of one warp to the same bytes follow its program, which is looked through once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tmapipe.isa import ALL_LANES, ops
from tmapipe.model.layout import Kind, Layout

__all__ = [
    "COPIES",
    "FENCES",
    "FROM_SLOTS",
    "KNOWN",
    "LOADS",
    "NEVER",
    "QUIET",
    "SIGNALS",
    "WHOLE",
    "Accesses",
    "Classes",
    "Part",
    "Span",
    "is_release",
    "lanes_join",
]

NEVER = 1 << 60
FENCES = (ops.FenceProxyAsync, ops.DescriptorRelease)
FROM_SLOTS = (
    ops.PeerCopy,
    ops.PeerReduce,
    ops.TmaLoadThrough,
)  # what lands later, and reads a slot of its own CTA until then
SLOT_READS, SLOT_WRITES = (ops.SlotRead, ops.DescriptorAcquire), (ops.SlotWrite, ops.DescriptorWrite)  # by threads
COPIES = (ops.CpAsync,)  # by threads, whose lanes arrive at an mbarrier when they have landed
LOADS = (
    ops.TmaLoad,
    ops.TmaGather,
    ops.StAsync,
    ops.BulkLoad,
    ops.PeerCopy,
    ops.PeerReduce,
    ops.RedAsync,
    ops.TmaLoadThrough,
    *COPIES,
)  # what lands later and counts on an mbarrier
ACQUIRES = (ops.MbarWait, ops.BarWait, ops.ClusterWait, ops.WgmmaWait)
RELEASES = (
    ops.MbarArrive,
    ops.MbarArriveCluster,
    ops.MbarArriveTx,
    ops.BarArrive,
    ops.ClusterArrive,
    ops.TmaLoad,
    ops.TmaGather,
    ops.StAsync,
    ops.BulkLoad,
    ops.PeerCopy,
    ops.PeerReduce,
    ops.RedAsync,
    ops.TmaLoadThrough,
    ops.Exit,
)
SIGNALS = (
    *RELEASES,
    ops.MbarExpectTx,
    *COPIES,
    ops.Wgmma,
    ops.WgmmaFromRegisters,
)  # also relaxed ones: enough for what has ended when they are executed
STORES = (ops.TmaStore, ops.TmaScatter, ops.BulkStore)
#: What neither accesses slots nor tells others anything.
QUIET = (
    ops.PrefetchDescriptor,
    ops.TmaPrefetch,
    ops.BulkPrefetch,
    ops.GridLaunch,
    ops.CounterAdd,
    ops.CounterStore,
    ops.TileStore,
    ops.TableLoad,
    ops.Ballot,
    ops.Shuffle,
    ops.ReadSmid,
)
#: What only the machine's state, or a single rule of the oracle, is about.
OTHERS = (
    ops.MbarInit,
    ops.FenceMbarInit,
    ops.WarpSync,
    ops.FenceProxyAsyncGlobal,
    ops.BulkCommit,
    ops.BulkWait,
    ops.WgmmaFence,
    ops.WgmmaCommit,
    ops.AccumulatorWrite,
    ops.AccumulatorRead,
    ops.PeerRead,
    ops.SetMaxNreg,
    ops.GridWait,
)
#: All operations that the oracle knows. It refuses programs with others.
KNOWN = frozenset((*FENCES, *SLOT_READS, *SLOT_WRITES, *ACQUIRES, *SIGNALS, *LOADS, *STORES, *QUIET, *OTHERS))
Part = tuple[str, int, int]
WHOLE: Part = ("whole", 0, 1)
REDUCED: Part = ("reduced", 0, 2)  # of which several go together
MARKS = ("fence", "landing", "told", "access")


class Span(NamedTuple):
    """An access under way while the warp's next operation has an index in [first, last]. at: its own index; last_async: as
    seen by the async proxy; bit: of its class; threads: made by threads, not by a TMA store."""

    at: int
    first: int
    last: int
    last_async: int
    bit: int
    threads: bool


class Classes:
    """Numbers kinds of accesses (place, part, read or write) and knows, as bit masks, which of them conflict.

    copied: (place, part) of what cp.async writes; starts: by agent, what starts loads and stores, by serial.
    """

    def __init__(self, layout: Layout, programs: Sequence[Sequence[Any]] = ()):
        self.layout = layout
        self.copied: dict[tuple[int, Part], None] = {}
        for agent, program in enumerate(programs):
            cta = agent // layout.warps
            for op in program:
                if isinstance(op, COPIES):
                    self.copied[cta * layout.nslots + op.slot, ("shares", op.share, op.shares)] = None
        self.starts = [[op for op in program if isinstance(op, (*LOADS, *STORES))] for program in programs]
        self.results = {s.argument for s in layout.plan.stores} & {load.argument for load in layout.plan.loads}
        self.tiles: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []  # of results: tensor, start, extents
        self.keys: list[tuple[int, Part, bool]] = []
        self.bits: dict[tuple[int, Part, bool], int] = {}
        self._conflicts: list[int] = []
        self._of_masks: dict[int, int] = {0: 0}

    def bit(self, place: int, part: Part, write: bool) -> int:
        """The bit of accesses to *part* of the slot at flat index *place*."""
        key = (place, part if part[2] > 1 else WHOLE, write)
        bit = self.bits.get(key)
        if bit is None:
            bit = self.bits[key] = 1 << len(self.keys)
            self.keys.append(key)
            own = 0
            for i, other in enumerate(self.keys):
                if self._conflict(key, other):
                    own |= 1 << i
                    if i < len(self._conflicts):
                        self._conflicts[i] |= bit
            self._conflicts.append(own)
            self._of_masks = {0: 0}
        return bit

    def in_tensor(self, part: Any, op: Any, write: bool) -> int:
        """The bit of what a load or a store of the plan does to a tensor that the kernel loads and stores to; else 0."""
        if part is None or part.argument not in self.results:
            return 0
        tile = part.argument, op.at, part.part
        if tile not in self.tiles:
            self.tiles.append(tile)
        return self.bit(self.layout.ctas * self.layout.nslots + self.tiles.index(tile), WHOLE, write)

    def loaded(self, op: Any) -> int:
        """The bit of what is read to fill a slot, if it is a result."""
        return self.in_tensor(self.layout.loads.get(getattr(op, "load", "")), op, False)

    def mark(self, event: str) -> int:
        """The bit of "fence", "landing", "told" or "access": events that `explore_copies` is about.

        A landing, and what tells of a fence, are not executed first where a fence, or an access, could still come before them,
        which would find more.
        """
        return self.bit(MARKS.index(event) - len(MARKS), WHOLE, False)

    def against(self, mask: int) -> int:
        """All classes that conflict with one of *mask*."""
        found = self._of_masks.get(mask)
        if found is None:
            found, left = 0, mask
            while left:
                low = left & -left
                found |= self._conflicts[low.bit_length() - 1]
                left ^= low
            if self.copied:
                for event, later in (("landing", "fence"), ("told", "access")):
                    found |= self.mark(later) if mask & self.mark(event) else 0
            self._of_masks[mask] = found
        return found

    def _conflict(self, one: tuple[int, Part, bool], other: tuple[int, Part, bool]) -> bool:
        if not (one[2] or other[2]) or min(one[0], other[0]) < 0:
            return False
        slots = self.layout.nslots
        first = self.layout.ctas * slots
        if max(one[0], other[0]) >= first:
            return min(one[0], other[0]) >= first and _overlap(self.tiles[one[0] - first], self.tiles[other[0] - first])
        if one[0] // slots != other[0] // slots or other[0] % slots not in self.layout.aliases[one[0] % slots]:
            return False
        a, b = one[1], other[1]
        if a == b == REDUCED:
            return False
        same_cut = a[0].split("/")[0] == b[0].split("/")[0] and a[2] == b[2]
        return one[0] != other[0] or not (same_cut and a[1] != b[1])


class Accesses:
    """One warp's accesses.

    spans: of threads' accesses and TMA stores; mma: (at, first, bit) of each wgmma by serial; mma_waits: (index, serial) of
    waits that cover wgmmas below a serial; mma_over: the same with the index of the release that tells others; wrong: index
    -> what is wrong there between accesses of this warp; after_mma: index -> serials of wgmmas that a write of this warp must
    come after, but that the warp itself has not waited for.
    """

    def __init__(self, classes: Classes, agent: int, program: Sequence[Any]):
        self.classes, self.layout, self.program, self.agent = classes, classes.layout, program, agent
        self.base = agent // self.layout.warps * self.layout.nslots
        self.spans: list[Span] = []
        self.mma: list[tuple[int, int, int]] = []
        self.mma_over: list[tuple[int, int]] = []
        self.mma_waits: list[tuple[int, int]] = []
        self.wrong: dict[int, Kind] = {}
        self.after_mma: dict[int, list[int]] = {}
        self._signals = _next(program, SIGNALS)
        self._releases = _next(program, (), is_release)
        self._joins = _next(program, (), lanes_join)
        self._fences = _next(program, (), _fences)
        self._global = _next(program, (ops.FenceProxyAsyncGlobal,))
        self._read()

    def loads(self, op: Any, own: int) -> dict[int, int]:
        """CTA -> the bit of what a load writes there, and of what a copy to a peer reads here."""
        part = ("shares", op.share, op.shares) if hasattr(op, "shares") else WHOLE
        part = REDUCED if isinstance(op, (ops.PeerReduce, ops.RedAsync)) else part
        mask = getattr(op, "mask", None) or 1 << own
        slots = self.layout.nslots
        read = self.classes.bit(own * slots + op.source, WHOLE, False) if isinstance(op, FROM_SLOTS) else 0
        read |= self.classes.loaded(op)
        return {
            cta: self.classes.bit(cta * slots + op.slot, part, True) | read
            for cta in range(self.layout.ctas)
            if mask >> cta & 1
        }

    # ---- one pass over the program --------------------------------------------------------------------------------

    def _read(self) -> None:
        acquired = joined = fence = fenced = 0  # indices after the last such operations
        arrived_all = told_cluster = False
        generic: list[tuple[int, int, Any]] = []  # (index, bit, (slot, part))
        stores: list[list[int]] = []  # [index, bit, index of the wait, first]
        open_group: list[list[int]] = []
        groups: list[list[list[int]]] = []
        bounds: list[int] = []
        waited = 0
        for i, op in enumerate(self.program):
            kind = type(op)
            if kind in (*SLOT_READS, *SLOT_WRITES):
                part = (op.split, op.part, op.parts) if kind in (ops.SlotRead, ops.SlotWrite) else WHOLE
                bit = self._bit(op.slot, part, kind in SLOT_WRITES)
                against = self.classes.against(bit)
                if getattr(op, "proxy", "") == "async":
                    self._after_threads(i, bit, generic, joined, fenced)
                else:
                    for at, other, what in generic:
                        if other & against and what != (op.slot, part) and joined <= at:
                            self.wrong[i] = Kind.RACE
                    generic.append((i, bit, (op.slot, part)))
                self._after_stores(i, against, stores)
                self._after_mma(i, against, waited)
                self._thread_span(i, acquired, bit, getattr(op, "proxy", "generic"))
            elif kind is ops.PeerRead:
                bit = self.classes.bit((op.mask.bit_length() - 1) * self.layout.nslots + op.slot, WHOLE, False)
                for at, other, _ in generic:
                    if other & self.classes.against(bit) and joined <= at:
                        self.wrong[i] = Kind.RACE
                generic.append((i, bit, (op.slot, op.mask)))
                self._thread_span(i, acquired, bit, "generic")
            elif kind in STORES:
                bit = self._bit(op.slot, WHOLE, False)
                self._after_threads(i, bit, generic, joined, fenced)
                store = [i, bit, NEVER, acquired, NEVER]
                stores.append(store)
                open_group.append(store)
            elif kind is ops.BulkCommit:
                groups.append(open_group)
                open_group = []
            elif kind is ops.BulkWait:
                for group in groups[: max(0, len(groups) - op.pending)]:
                    for store in group:
                        store[2] = min(store[2], i)
                        store[4] = store[4] if op.read else min(store[4], i)
            elif kind in (ops.Wgmma, ops.WgmmaFromRegisters):
                bit = self._bit(op.b, WHOLE, False)
                if kind is ops.Wgmma:
                    bit |= self._bit(op.a, WHOLE, False)
                self._after_threads(i, bit, generic, joined, fenced)
                self.mma.append((i, acquired, bit))
            elif kind is ops.WgmmaCommit:
                bounds.append(len(self.mma))
            elif kind is ops.WgmmaWait:
                if len(bounds) > op.pending:
                    waited = max(waited, bounds[-op.pending - 1])
                    self.mma_waits.append((i, waited))
                    self.mma_over.append((self._signals[i], waited))
            elif kind in LOADS:
                for bit in self.loads(op, self.base // max(1, self.layout.nslots)).values():
                    against = self.classes.against(bit)
                    if kind in COPIES:
                        if any(other & against and joined <= at for at, other, _ in generic):
                            self.wrong[i] = Kind.RACE
                    else:
                        self._after_threads(i, bit, generic, joined, fenced)
                    self._after_stores(i, against, stores)
                    self._after_mma(i, against, waited)
            elif _fences(op):
                fence = i + 1
            if _lanes_meet(op, arrived_all, told_cluster):
                joined, fenced = i + 1, fence
            if kind is ops.MbarArrive and op.lanes == ALL_LANES:
                arrived_all = True
            if kind is ops.ClusterArrive:
                told_cluster = is_release(op)
            if kind in ACQUIRES:
                acquired = i + 1
        for at, bit, wait, first, written in stores:
            last = self._signals[wait] if wait < NEVER else NEVER
            self.spans.append(Span(at, first, last, last, bit, False))
            op = self.program[at]
            result = self.classes.in_tensor(self.layout.stores[op.store], op, True)
            if result:
                fence = self._global[written] if written < NEVER else NEVER
                last, seen = (self._signals[i] if i < NEVER else NEVER for i in (written, fence))
                self.spans.append(Span(at, first, last, seen, result, True))

    def _bit(self, slot: int, part: Part, write: bool) -> int:
        return self.classes.bit(self.base + slot, part, write)

    def _thread_span(self, i: int, first: int, bit: int, proxy: str) -> None:
        last = self._over(i + 1)
        if proxy == "async":  # for other threads like theirs, for the fences of others like a store's
            self.spans += [Span(i, first, last, last, bit, True), Span(i, first, last, last, bit, False)]
            return
        fence = self._fences[i + 1]
        self.spans.append(Span(i, first, last, NEVER if fence == NEVER else self._over(fence + 1), bit, True))

    def _over(self, i: int) -> int:
        """Index of the release that tells others what all lanes did before index *i*."""
        join = self._joins[i]
        return NEVER if join == NEVER else self._releases[join]

    def _after_threads(self, i: int, bit: int, generic: list[tuple[int, int, Any]], joined: int, fenced: int) -> None:
        against = self.classes.against(bit)
        for at, other, _ in generic:
            if other & against and fenced <= at + 1:
                self.wrong[i] = Kind.PROXY if joined > at else Kind.RACE

    def _after_stores(self, i: int, against: int, stores: list[list[int]]) -> None:
        if any(bit & against and wait == NEVER for _, bit, wait, *_ in stores):
            self.wrong[i] = Kind.STORE_SOURCE_REUSED

    def _after_mma(self, i: int, against: int, waited: int) -> None:
        serials = [s for s in range(waited, len(self.mma)) if self.mma[s][2] & against]
        if serials:
            self.after_mma.setdefault(i, []).extend(serials)


def _overlap(one: tuple[str, Any, Any], other: tuple[str, Any, Any]) -> bool:
    """Whether two tiles of results have elements in common."""
    (tensor, *ranges), (its, *others) = one, other
    return tensor == its and all(a < b + m and b < a + n for a, n, b, m in zip(*ranges, *others, strict=True))


def _next(program: Sequence[Any], kinds: tuple[type, ...], test: Any = None) -> list[int]:
    """For each index, that of the first such operation from there on."""
    found = [NEVER] * (len(program) + 2)
    for i in range(len(program) - 1, -1, -1):
        op = program[i]
        found[i] = i if (test(op) if test else isinstance(op, kinds)) else found[i + 1]
    return found


def is_release(op: Any) -> bool:
    """Whether it tells others of the warp's accesses before it."""
    return isinstance(op, RELEASES) and getattr(op, "scope", "cluster") != "relaxed"


def _fences(op: Any) -> bool:
    """Whether all lanes fence: which of them have written is not known."""
    return isinstance(op, FENCES) and op.lanes == ALL_LANES


def lanes_join(op: Any) -> bool:
    """After it, what all lanes did can be told to others: by this operation itself, or by any of one lane that follows."""
    if isinstance(op, ops.MbarArrive):
        return op.lanes == ALL_LANES
    if isinstance(op, ops.ClusterArrive):
        return is_release(op)
    return isinstance(op, (ops.WarpSync, ops.BarArrive, ops.Exit))


def _lanes_meet(op: Any, arrived_all: bool, told_cluster: bool) -> bool:
    """After it, each lane of the warp itself knows what the others did."""
    if isinstance(op, ops.MbarWait):
        return arrived_all
    if isinstance(op, ops.ClusterWait):
        return told_cluster
    return isinstance(op, (ops.WarpSync, ops.BarWait))
