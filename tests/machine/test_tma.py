"""TMA transfers: shares of a multicast, batch dimensions, edges, reductions, bulk groups, what must not be in flight."""

from __future__ import annotations

import numpy as np
import pytest

from tests.machine.parts import TILE, Parts, init, ramp, run, warps
from tests.machine.slots import read_slot, write_slot
from tests.oracle.states import steps
from tmapipe.base.arithmetic import bf16, fp16, fp32, int8
from tmapipe.errors import DeadlockError, HazardError
from tmapipe.isa import ops as o
from tmapipe.isa.fragment import SlotRef
from tmapipe.model import POLICIES, Layout, State
from tmapipe.model.memory import gather
from tmapipe.plan.model import Load
from tmapipe.plan.rings import Buffer


class Pair:
    """Two CTAs share the tile x[0]: each loads half of it for both, and stores the whole to its own half of y.

    fault: "mask" (own half for itself only), "bytes" (of one share), "no tail" (the loading warp does not wait for the peer's
    release, so it may leave early)."""

    def __init__(self, fault: str = "", tiles: int = 5, stages: int = 2):
        parts = Parts(cluster=2)
        parts.role("load", 1)
        parts.role("store", 1)
        self.full, self.free = parts.barrier("full", 1, stages), parts.barrier("free", 2, stages)
        self.slots = parts.buffer("x", TILE, stages, fp16)
        self.x, self.y = parts.load(self.slots, peers=2), parts.store("y", self.slots)
        self.fault, self.tiles, self.stages, self.plan = fault, tiles, stages, parts.plan()

    def entry(self, isa):
        init(isa)
        if isa.warp == 0:
            mask = 1 << isa.cta_rank if self.fault == "mask" else 0b11
            nbytes = self.slots.slot_bytes // (2 if self.fault == "bytes" else 1)
            for i in range(self.tiles):
                stage = i % self.stages
                isa.mbarrier_wait(self.free, stage, (i // self.stages & 1) ^ 1)
                isa.mbarrier_arrive_expect_tx(self.full, stage, nbytes)
                isa.tma_load(self.x, stage, (8 * i, 0), self.full, mask, isa.cta_rank)
            for i in range(self.tiles, self.tiles + self.stages if self.fault != "no tail" else 0):
                isa.mbarrier_wait(self.free, i % self.stages, (i // self.stages & 1) ^ 1)
        else:
            for i in range(self.tiles):
                stage = i % self.stages
                isa.mbarrier_wait(self.full, stage, i // self.stages & 1)
                isa.tma_store(self.y, stage, (8 * i, 16 * isa.cta_rank))
                isa.bulk_commit_group()
                isa.bulk_wait_group(0, read=True)
                isa.mbarrier_arrive_cluster(self.free, stage, 0b11)

    def run(self, **options):
        x, y = ramp((8 * self.tiles, 16)), np.zeros((8 * self.tiles, 32), np.float16)
        run(self.plan, self.entry, {"x": x, "y": y}, **options)
        return (y == np.concatenate([x, x], 1)).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_multicast_pair(policy, stages):
    assert all(Pair(stages=stages).run(policy=policy, seed=seed) for seed in range(7))


def test_multicast_to_itself_only_leaves_bytes_missing():
    with pytest.raises(DeadlockError, match=r"waits for full\[0\] .* 128 bytes armed") as caught:
        Pair("mask").run()
    assert "store (warp 1) of CTAs 0-1" in str(caught.value)


def test_bytes_of_one_share_only():
    """tilelang#2182: the phase completes when half of the tile has landed, or the rest finds nothing armed."""
    outcomes = set()
    for seed in range(12):
        try:
            outcomes.add(Pair("bytes").run(seed=seed, policy="late" if seed % 2 else "random"))
        except HazardError as error:
            outcomes.add(error.rule)
    assert True not in outcomes and {"slot-being-loaded", "tx-below-zero"} & outcomes


def test_a_cta_that_leaves_before_its_peer_signals():
    """triton#10656."""
    rules = set()
    for seed in range(30):
        try:
            Pair("no tail").run(seed=seed)
        except HazardError as error:
            rules.add(error.rule)
    assert rules == {"peer-exited"}


def test_batch_dimensions_are_dropped_from_the_slot():
    parts = Parts()
    parts.role("both", 1)
    full = parts.barrier("full")
    slots = parts.buffer("x", TILE, 1, bf16)
    x = parts.load(slots, ("l", "m", "n"), (1, *TILE))
    y = parts.store("y", slots)
    plan = parts.plan()

    def program(isa):
        isa.mbarrier_arrive_expect_tx(full, 0, slots.slot_bytes)
        isa.tma_load(x, 0, (2, 3, 8), full)
        isa.mbarrier_wait(full, 0, 0)
        isa.tma_store(y, 0, (1, 0))
        isa.bulk_commit_group()
        isa.bulk_wait_group(0, read=False)

    source, target = ramp((3, 20, 30), bf16), np.zeros((8, 12), bf16.numpy)
    run(plan, warps(plan, program), {"x": source, "y": target})
    assert (target[1:] == source[2, 3:10, 8:20]).all() and (target[:1] == 0).all()


@pytest.mark.parametrize("dtype, other", [(bf16, np.isnan), (int8, lambda x: x == 127)])
def test_what_is_outside(dtype, other):
    """Zeros; or anything, in rows: NaN or the largest number, so that whoever looks at them shows. Zeros within rows."""
    buffer = Buffer("x", 0, 1, (8, 12), dtype)
    source = ramp((2, 20, 30), dtype) + dtype.numpy(1)
    for at, rows, columns in ((0, 8, 12), (16, 4, 12), (16, 4, 6), (20, 0, 12), (32, 0, 12)):
        place = (1, at, 30 - columns)
        for outside in ("zeros", "anything"):
            tile = gather(source, Load("x", "x", buffer, ("l", "m", "n"), (1, 8, 12), outside=outside), place)
            assert (tile[:rows, :columns] == source[1, at : at + rows, 30 - columns :]).all()
            assert (tile[:rows, columns:] == 0).all()
            assert (other(tile[rows:]) if outside == "anything" else tile[rows:] == 0).all()


def test_one_dimension_and_reduction():
    parts = Parts()
    parts.role("both", 1)
    full = parts.barrier("full")
    slots = parts.buffer("x", (16,), 1, bf16)
    x, y = parts.load(slots, ("n",)), parts.store("y", slots, ("n",), reduce="add")
    plan = parts.plan()

    def program(isa):
        isa.mbarrier_arrive_expect_tx(full, 0, slots.slot_bytes)
        isa.tma_load(x, 0, (-8,), full)
        isa.mbarrier_wait(full, 0, 0)
        isa.tma_store(y, 0, (8,))
        isa.bulk_commit_group()
        isa.bulk_wait_group(0, read=False)

    source, target = np.ones(20, bf16.numpy), np.full(20, 256, bf16.numpy)
    run(plan, warps(plan, program), {"x": source * bf16.numpy(3), "y": target})
    # Element -8 + i; 0 outside the tensor; 256 + 3 rounds to 260 in bf16 (spacing 2 above 256, tie to even).
    assert target.astype(np.float32).tolist() == [256] * 8 + [256] * 8 + [260] * 4


def store_program(parts: Parts, body):
    parts.role("store", 1)
    slots = parts.buffer("y", TILE, 2, fp32)
    store = parts.store("y", slots)
    plan = parts.plan()
    return plan, warps(plan, lambda isa: body(isa, slots, store))


def store_rules(body, seeds: int = 10) -> set[str]:
    plan, entry = store_program(Parts(), body)
    rules = set()
    for seed in range(seeds):
        for policy in POLICIES:
            try:
                run(plan, entry, {"y": np.zeros((8, 16), np.float32)}, seed=seed, policy=policy)
                rules.add("right")
            except HazardError as error:
                rules.add(error.rule)
    return rules


def test_source_written_while_the_store_reads_it():
    def body(isa, slots, store):
        role = isa.plan.role("store")
        write_slot(isa, SlotRef(slots, 0), np.zeros(128, np.float32), role)
        isa.tma_store(store, 0, (0, 0))
        isa.bulk_commit_group()
        write_slot(isa, SlotRef(slots, 0), np.ones(128, np.float32), role)
        isa.bulk_wait_group(0, read=True)

    assert "slot-being-stored" in store_rules(body)


def test_reading_the_source_of_a_store_is_allowed():
    def body(isa, slots, store):
        isa.tma_store(store, 0, (0, 0))
        isa.bulk_commit_group()
        read_slot(isa, SlotRef(slots, 0), isa.plan.role("store"))
        isa.bulk_wait_group(0, read=True)

    assert store_rules(body) == {"right"}


def test_returning_with_stores_in_no_group_or_not_waited_for():
    def uncommitted(isa, slots, store):
        isa.tma_store(store, 0, (0, 0))
        isa.bulk_wait_group(0, read=False)

    def unawaited(isa, slots, store):
        isa.tma_store(store, 0, (0, 0))
        isa.bulk_commit_group()
        isa.tma_store(store, 1, (0, 0))
        isa.bulk_commit_group()
        isa.bulk_wait_group(1, read=True)

    assert store_rules(uncommitted) == {"exit-uncommitted-store"}
    assert store_rules(unawaited) == {"exit-unawaited-store"}


def test_wait_group_looks_at_all_but_the_newest():
    plan, _ = store_program(Parts(), None)
    s = State(Layout(plan))
    flights = []
    for stage in range(2):
        flights += s.apply(0, o.TmaStore("y", stage))
        assert s.apply(0, o.BulkCommit()) == (stage, (flights[-1],))
    assert s.enabled(0, o.BulkWait(2, True)) and not s.enabled(0, o.BulkWait(1, True))
    s.apply(flights[1], o.StoreRead())
    assert not s.enabled(0, o.BulkWait(1, True))  # the older one is meant
    s.apply(flights[0], o.StoreRead())
    assert s.enabled(0, o.BulkWait(0, True)) and not s.enabled(0, o.BulkWait(1, False))
    assert s.apply(0, o.BulkWait(1, True)) == 1
    s.apply(flights[0], o.StoreWrite())
    assert s.enabled(0, o.BulkWait(1, False)) and not s.enabled(0, o.BulkWait(0, False))


def test_groups_belong_to_the_thread_that_committed():
    """Another lane has no groups, so its wait waits for nothing; the exit check still sees lane 0's."""
    plan, _ = store_program(Parts(), None)
    s = State(Layout(plan))
    s.apply(0, o.TmaStore("y", 0))
    s.apply(0, o.BulkCommit())
    other = o.BulkWait(0, True, lanes=1 << 5)
    assert s.enabled(0, other) and s.apply(0, other) == 0
    with pytest.raises(HazardError, match="exit-unawaited-store"):
        s.apply(0, o.Exit())


def test_a_store_from_a_slot_that_is_being_loaded():
    parts = Parts()
    parts.role("one", 1)
    parts.barrier("full")
    slots = parts.buffer("x", TILE)
    parts.load(slots)
    parts.store("y", slots)
    s = State(Layout(parts.plan()))
    s.apply(0, o.MbarInit(0, 1))
    s.apply(0, o.MbarArriveTx(0, 512))
    (flight,) = s.apply(0, o.TmaLoad("x", 0, 0, 512))
    for op in (o.TmaStore("y", 0), o.TmaLoad("x", 0, 0, 512), o.SlotRead(0), o.SlotWrite(0)):
        with pytest.raises(HazardError, match=r"x\[0\] of CTA 0 while TMA load 0 of one.*slot-being-loaded"):
            s.copy().apply(0, op)
    assert [step for _, step in steps(s)] == [o.LoadComplete()]
    s.apply(flight, o.LoadComplete())
    s.apply(0, o.SlotRead(0))
    assert not s.loads and list(steps(s)) == []


def test_a_load_nobody_waits_for_is_in_flight_at_exit():
    parts = Parts()
    parts.role("one", 1)
    full = parts.barrier("full")
    slots = parts.buffer("x", TILE)
    x = parts.load(slots)
    plan = parts.plan()

    def program(isa):
        isa.mbarrier_arrive_expect_tx(full, 0, slots.slot_bytes)
        isa.tma_load(x, 0, (0, 0), full)

    with pytest.raises(HazardError, match="exit-load-in-flight"):
        run(plan, warps(plan, program), {"x": ramp((8, 16), fp32)}, policy="late")


def test_aliased_buffers_conflict():
    """humming#56: an epilogue slot over a slot that is still loaded."""
    parts = Parts()
    parts.role("one", 1)
    parts.barrier("full")
    slots = parts.buffer("x", TILE, 2)
    parts.load(slots)
    parts.buffer("d", (8, 8), 1, at=slots.offset + slots.slot_bytes + 64)
    parts.buffer("apart", (8, 8), 1)
    layout = Layout(parts.plan())
    s = State(layout)
    s.apply(0, o.MbarInit(0, 1))
    s.apply(0, o.TmaLoad("x", 1, 0, 512))
    with pytest.raises(HazardError, match=r"writes slot d\[0\] of CTA 0 while TMA load .* into x\[1\]"):
        s.copy().apply(0, o.SlotWrite(layout.slot_base["d"]))
    s.apply(0, o.SlotWrite(layout.slot_base["apart"]))
    s.apply(0, o.SlotWrite(0))


@pytest.mark.parametrize(("start", "legal"), [((3, 8), True), ((0, 16), True), ((0, 4), False), ((0, -7), False)])
def test_starts_at_multiples_of_16_bytes(start, legal):
    """Anywhere along rows, but not along the contiguous dimension: triton#7385, and an illegal instruction on an H200."""
    s = State(Layout(Pair().plan))
    s.apply(0, o.MbarInit(0, 1))
    for op in (o.TmaLoad("x", 0, 0, 256, at=start), o.TmaStore("y", 0, at=start)):
        if legal:
            s.copy().apply(0, op)
        else:
            with pytest.raises(HazardError, match="tma-alignment"):
                s.copy().apply(0, op)


@pytest.mark.parametrize("start", [(-1, 0), (0, -8), (-4, -16)])
def test_a_store_does_not_start_before_the_tensor(start):
    """An illegal instruction on an H200. Loads may start there, and fill with zeros."""
    s = State(Layout(Pair().plan))
    s.apply(0, o.MbarInit(0, 1))
    s.copy().apply(0, o.TmaLoad("x", 0, 0, 256, at=start))
    with pytest.raises(HazardError, match="tma-store-start"):
        s.copy().apply(0, o.TmaStore("y", 0, at=start))


def test_multicast_with_a_bad_mask_or_to_a_cta_that_has_left():
    pair = Pair()
    s = State(Layout(pair.plan))
    s.apply(0, o.MbarInit(0, 1))
    with pytest.raises(HazardError, match="mask-outside-cluster"):
        s.copy().apply(0, o.TmaLoad("x", 0, 0, 128, 0b100, 0, 2))
    s.apply(2, o.Exit())
    s.apply(3, o.Exit())
    with pytest.raises(HazardError, match="peer-exited"):
        s.apply(0, o.TmaLoad("x", 0, 0, 128, 0b11, 0, 2))


def test_two_shares_may_be_in_flight_together_and_the_same_one_may_not():
    pair = Pair()
    s = State(Layout(pair.plan))
    for cta in (0, 2):
        s.apply(cta, o.MbarInit(0, 1))
    a = s.apply(0, o.TmaLoad("x", 0, 0, 128, 0b11, 0, 2))
    b = s.apply(2, o.TmaLoad("x", 0, 0, 128, 0b11, 1, 2))
    assert [f.cta for f in (*a, *b)] == [0, 1, 0, 1]
    assert len(set(a + b)) == 4
    with pytest.raises(HazardError, match="slot-being-loaded"):
        s.apply(2, o.TmaLoad("x", 0, 0, 128, 0b11, 1, 2))
