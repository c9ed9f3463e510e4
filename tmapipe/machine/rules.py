"""What can be wrong, and the rules by which the machine refuses an operation: of which kind each is, and what to change."""

from __future__ import annotations

import enum

__all__ = ["RULES", "Kind"]


class Kind(enum.Enum):
    """What is wrong. The value is the rule in a few words. Kinds with `note` never fail a check."""

    DEADLOCK = "no agent can take another step"
    LAPPED_WAIT = "a parity wait that its barrier can overtake, or that can return two phases early"
    EARLY_ARRIVAL = "an arrival, arming or completion that can count for the phase before its own"
    SURPLUS_ARRIVAL = "more arrivals in a phase than the barrier's count"
    MISSING_ARRIVAL = "a phase that too few arrive at"
    TX_MISMATCH = "bytes armed and bytes delivered in a phase differ"
    COPY_BEFORE_ARM = "bytes can arrive before they are armed (they cancel out, but nothing orders them)"
    RACE = "two accesses to the same bytes, one of them a write, that nothing orders"
    PROXY = "accesses through different proxies, ordered but without the proxy fence"
    REDUNDANT_FENCE = "a proxy fence that orders nothing"
    STORE_SOURCE_REUSED = "a store's source overwritten before wait_group.read"
    RESULT_TOO_EARLY = "a result used before the full wait"
    GROUP_OWNER = "a bulk group waited for by another thread than the one that committed it"
    INIT_NOT_VISIBLE = "a barrier used before its initialization is visible"
    SCOPE = "an operation of CTA scope where a peer CTA takes part"
    EXITED_PEER = "a CTA that can leave while a peer still signals it or writes to it"
    IN_FLIGHT_AT_EXIT = "asynchronous work not waited for when its CTA leaves"
    TAIL_OWNER = "a ring tailed by a role that does not own it"
    NAMED_BARRIER = "a named barrier's id is out of range or shared, or its participants differ"
    OUT_OF_RANGE = "a copy, slot, mask or peer outside what there is"
    REGISTERS = "the register budget does not fit"
    SHARED_MEMORY = "shared memory does not fit"
    SLOT_ORDER = "a wait for another slot or parity than the ring's next"
    TRIP_COUNTS = "roles disagree on how many slots they hand on"
    OUTPUT_RACE = "two stores to one element of an output, with different values, that nothing orders"
    ROW_IN_PARTS = "a reduction that counts a whole row, of which a tile may have a part"
    PART_REDUCED = "a reduction over a tile's part of a dimension"
    UNREAD = "elements of an input that nobody loads"
    UNFILLED = "a tile is read in a slot in which nobody has written it, or not all of it"
    SAME_OUTPUT = "two stores of one value to one element of an output"
    UNWRITTEN = "elements of an output that nobody stores"
    ENDLESS = "a loop that goes on for ever"
    LIMIT = "a resource limit was reached before the answer was known"

    @property
    def note(self) -> bool:
        return self in _NOTES


_NOTES = (
    Kind.REDUNDANT_FENCE,
    Kind.COPY_BEFORE_ARM,
    Kind.SAME_OUTPUT,
    Kind.UNWRITTEN,
    Kind.PART_REDUCED,
    Kind.UNREAD,
)

#: By the rule's short name. What breaks any other rule is a race.
RULES = {
    "surplus-arrival": (
        Kind.SURPLUS_ARRIVAL,
        "wait for the end of the phase before (a free slot, say), or make the count match the arrivals of one phase",
    ),
    "tx-below-zero": (Kind.TX_MISMATCH, "arm as many bytes as the copies of one phase deliver"),
    "tx-overflow": (Kind.TX_MISMATCH, "arm as many bytes as the copies of one phase deliver"),
    "exit-bytes-pending": (Kind.TX_MISMATCH, "deliver the bytes that are armed, or arm fewer"),
    "barrier-count": (Kind.OUT_OF_RANGE, "initialize it with the number of arrivals of one phase"),
    "barrier-before-init": (Kind.INIT_NOT_VISIBLE, "initialize it, then fence and synchronize, before the first use"),
    "barrier-init-twice": (Kind.INIT_NOT_VISIBLE, "initialize each barrier once"),
    "cluster-barrier": (Kind.NAMED_BARRIER, "let every warp of the cluster arrive and wait in turn"),
    "named-barrier-id": (Kind.NAMED_BARRIER, "use an id from 1 to 15 that no other barrier has"),
    "named-barrier-threads": (Kind.NAMED_BARRIER, "let all participants name the same number of threads"),
    "mask-outside-cluster": (Kind.OUT_OF_RANGE, "set bits only for CTAs that the cluster has"),
    "tma-alignment": (Kind.OUT_OF_RANGE, "start tiles at multiples of 16 bytes along the contiguous dimension"),
    "copy-alignment": (Kind.OUT_OF_RANGE, "start tiles at multiples of the bytes that a thread copies"),
    "bulk-outside": (Kind.OUT_OF_RANGE, "keep to whole pieces inside, e.g. by min() and max(), or use a TmaLoadStage"),
    "tma-store-start": (Kind.OUT_OF_RANGE, "start stores at index 0 or later along every dimension"),
    "wait-parity": (Kind.OUT_OF_RANGE, "wait for the lowest bit of the number of laps: laps & 1"),
    "no-such-stage": (Kind.OUT_OF_RANGE, "count stages from 0 to stages - 1"),
    "peer-exited": (Kind.EXITED_PEER, "let each CTA wait for its peers' last signals before it leaves"),
    "exit-load-in-flight": (Kind.IN_FLIGHT_AT_EXIT, "wait for every load before the CTA leaves"),
    "exit-uncommitted-store": (
        Kind.IN_FLIGHT_AT_EXIT,
        "commit the group (bulk_commit_group) and wait for it; leaving a slot after its store does both",
    ),
    "exit-unawaited-store": (
        Kind.IN_FLIGHT_AT_EXIT,
        "wait for the group (bulk_wait_group) in the thread that commits it",
    ),
    "exit-unawaited-wgmma": (Kind.IN_FLIGHT_AT_EXIT, "wait for the groups (wgmma_wait) before the warp returns"),
    "accumulator-in-flight": (
        Kind.RESULT_TOO_EARLY,
        "wait for all groups (wgmma_wait(0)) before the accumulators are used",
    ),
    "wgmma-fence": (Kind.RESULT_TOO_EARLY, "execute wgmma_fence before the first wgmma on these registers"),
    "wgmma-warpgroup": (Kind.OUT_OF_RANGE, "give the role whole warpgroups"),
    "wgmma-diverged": (Kind.OUT_OF_RANGE, "let all four warps of the warpgroup issue the same wgmmas"),
    "output-shared": (
        Kind.OUTPUT_RACE,
        "let each output tile store to places of its own: name all dimensions of the grid in the store, or reduce=",
    ),
    "output-twice": (Kind.OUTPUT_RACE, "store each place once, or wait for the first store in full (a StoredStage)"),
    "output-unwritten": (
        Kind.UNWRITTEN,
        "store every tile of it, or pass the output if the others are to stay as they are",
    ),
    "setmaxnreg-direction": (Kind.REGISTERS, "decrease to fewer registers, increase to more"),
    "setmaxnreg-range": (Kind.REGISTERS, "use 24 to 256 registers in steps of 8"),
    "setmaxnreg-warpgroup": (Kind.REGISTERS, "let all four warps of the warpgroup set the same number"),
}
