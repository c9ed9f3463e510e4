"""Barriers of warps and of the cluster, generic accesses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.machine.parts import TILE, Parts, init, run, warps
from tests.machine.slots import read_slot, write_slot
from tmapipe.base.arithmetic import bf16, fp8_e4m3, fp16, fp32
from tmapipe.errors import DeadlockError, HazardError
from tmapipe.isa.fragment import SlotRef
from tmapipe.model import POLICIES, Layout, elements
from tmapipe.plan.thread_layout import vectors_of


def orders(plan, entry, log, **options):
    """The logs of runs under many schedules."""
    found = set()
    for policy in POLICIES:
        for seed in range(10):
            log.clear()
            run(plan, entry, {}, policy=policy, seed=seed, **options)
            found.add(tuple(log))
    return found


# ---- named barriers ---------------------------------------------------------------------------------------------------


def test_sync_waits_for_all_its_threads_and_only_those():
    parts = Parts()
    parts.role("three", 3)
    bar = parts.named("bar", 2, 64)
    plan, log = parts.plan(), []

    def member(isa):
        for i in range(4):
            log.append((isa.warp, i))
            isa.named_barrier_sync(bar)

    for log_ in orders(plan, warps(plan, member, member, lambda isa: log.append("free")), log):
        in_turn = [entry[1] for entry in log_ if entry != "free"]
        assert in_turn == sorted(in_turn)  # nobody starts round i + 1 before both have finished round i


def test_arrive_does_not_wait():
    parts = Parts()
    parts.role("two", 2)
    bar = parts.named("bar", 1, 64)
    plan, log = parts.plan(), []

    def arriver(isa):
        log.append("before")
        isa.named_barrier_arrive(bar)

    def waiter(isa):
        isa.named_barrier_sync(bar)
        log.append("after")

    assert orders(plan, warps(plan, arriver, waiter), log) == {("before", "after")}


def test_instances_are_separate_barriers():
    parts = Parts()
    parts.role("four", 4)
    bar = parts.named("bar", 3, 64, instances=2)
    plan = parts.plan()
    entry = warps(plan, *[lambda isa: isa.named_barrier_sync(bar, isa.warp // 2)] * 4)
    assert run(plan, entry).counts["BarWait"] == 4 + 4
    assert Layout(plan).named_barrier_name(4) == "bar[1] (id 4)"


def test_too_few_threads_arrive():
    parts = Parts()
    parts.role("two", 2)
    bar = parts.named("pair", 1, 96)
    plan = parts.plan(warps=3)
    entry = warps(plan, *[lambda isa: isa.named_barrier_sync(bar)] * 2)
    with pytest.raises(DeadlockError, match=r"two \(warps 0-1\) of CTA 0 waits for pair \(id 1\): 64 of 96 threads"):
        run(plan, entry)


@pytest.mark.parametrize(
    "id, threads, rule", [(16, 64, "id"), (1, 48, "threads"), (1, 128, "threads"), (1, 0, "threads")]
)
def test_bad_ids_and_thread_counts(id, threads, rule):
    parts = Parts()
    parts.role("two", 2)
    bar = parts.named("bar", id, threads)
    plan = parts.plan()
    with pytest.raises(HazardError, match=f"named-barrier-{rule}"):
        run(plan, warps(plan, lambda isa: isa.named_barrier_sync(bar)))


def test_participants_disagree_on_the_threads():
    parts = Parts()
    parts.role("three", 3)
    two, three = parts.named("two", 1, 64), parts.named("three", 1, 96)
    plan = parts.plan()
    entry = warps(plan, lambda isa: isa.named_barrier_sync(two), lambda isa: isa.named_barrier_sync(three))
    with pytest.raises(HazardError, match="named-barrier-threads"):
        run(plan, entry)


def test_the_cta_barrier_does_not_wait_for_warps_that_have_returned():
    parts = Parts()
    parts.role("three", 3)
    plan = parts.plan()
    entry = warps(plan, lambda isa: isa.cta_sync(), lambda isa: isa.cta_sync(), lambda isa: None)
    for seed in range(10):
        run(plan, entry, seed=seed)


# ---- cluster ----------------------------------------------------------------------------------------------------------


def test_the_cluster_barrier_waits_for_every_warp_of_every_cta():
    parts = Parts(cluster=3)
    parts.role("two", 2)
    plan, log = parts.plan(), []

    def entry(isa):
        log.append("before")
        isa.cluster_arrive()
        isa.cluster_wait()
        log.append("after")

    assert orders(plan, entry, log) == {("before",) * 6 + ("after",) * 6}


def test_a_missing_arrival_at_the_cluster_barrier():
    parts = Parts(cluster=2)
    parts.role("two", 2)
    bar = parts.barrier("never")
    plan = parts.plan()

    def entry(isa):
        init(isa)
        if isa.warp == 0:
            isa.cluster_arrive()
            isa.cluster_wait()
        else:
            isa.mbarrier_wait(bar, 0, 0)

    with pytest.raises(DeadlockError, match=r"two \(warp 0\) of CTAs 0-1 waits for the cluster barrier: 2 of 4 warps"):
        run(plan, entry)


def test_cluster_barrier_out_of_step():
    parts = Parts(cluster=2)
    parts.role("one", 1)
    plan = parts.plan()
    with pytest.raises(HazardError, match="without having arrived"):
        run(plan, lambda isa: isa.cluster_wait())
    with pytest.raises(HazardError, match="twice"):
        run(plan, lambda isa: (isa.cluster_arrive(), isa.cluster_arrive()))


def test_returned_warps_take_no_part_in_the_cluster_barrier_whether_or_not_they_had_arrived():
    parts = Parts(cluster=2)
    parts.role("two", 2)
    plan, log = parts.plan(), []

    def entry(isa):
        if isa.warp == 0:
            log.append("before")
            isa.cluster_arrive()
            isa.cluster_wait()
            log.append("after")
        elif isa.cta_rank == 0:
            isa.cluster_arrive()  # and returns without waiting

    assert orders(plan, entry, log) == {("before", "before", "after", "after")}


def test_remote_use_before_the_peer_has_initialized():
    """triton-fb#1240, where it shows dynamically."""
    parts = Parts(cluster=2)
    parts.role("one", 1)
    bar = parts.barrier("bar", 1)
    plan = parts.plan()

    def entry(isa):
        if isa.cta_rank == 1:
            isa.mbarrier_init(bar, 1)
        else:
            isa.mbarrier_arrive_cluster(bar, 0, 0b10)
        isa.cluster_arrive()
        isa.cluster_wait()

    with pytest.raises(HazardError, match=r"uses bar\[0\] of CTA 1 before it is initialized"):
        for seed in range(20):
            run(plan, entry, seed=seed)


# ---- generic accesses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [1, 2, 4])
def test_a_slot_dealt_over_roles_of_different_sizes(readers):
    parts = Parts()
    writer, reader = parts.role("writer", 4), parts.role("reader", readers)
    slots = parts.buffer("x", TILE, 2, fp16)
    plan, found = parts.plan(), {}

    def entry(isa):
        if isa.warp < 4:
            write_slot(isa, SlotRef(slots, 1), positions(writer, isa.warp), writer)
        isa.cta_sync()
        if isa.warp >= 4:
            found[isa.warp] = read_slot(isa, SlotRef(slots, 1), reader)

    def positions(role, warp):
        rows, columns = elements.indices_of(vectors_of("x", TILE, role), warp)
        return rows * TILE[1] + columns

    run(plan, entry)
    assert all((found[warp] == positions(reader, warp)).all() for warp in found)
    assert sorted(np.concatenate(list(found.values())).ravel()) == list(range(128))


def test_conversions():
    values = np.tile(np.array([1.00390625, 449.0, -1e9, 3.0078125], np.float32), 8)
    results = {}
    for dtype in (bf16, fp8_e4m3, fp32):
        parts = Parts()
        role = parts.role("one", 1)
        slots = parts.buffer("x", (32, 1), 1, dtype)
        plan = parts.plan()

        def entry(isa, slots=slots, role=role, dtype=dtype):
            write_slot(isa, SlotRef(slots, 0), values, role)
            results[dtype.name] = read_slot(isa, SlotRef(slots, 0), role).ravel()[:4].tolist()

        run(plan, entry)
    assert results["bf16"][0] == 1.0 and results["bf16"][3] == 3.0  # ties to even
    assert results["fp8_e4m3"] == [1.0, 448.0, -448.0, 3.0]  # saturates
    assert results["fp32"] == values[:4].tolist()


def test_shared_memory_starts_poisoned():
    parts = Parts()
    role = parts.role("one", 1)
    slots = parts.buffer("x", TILE, 1, bf16)
    plan, found = parts.plan(), []
    run(plan, lambda isa: found.append(read_slot(isa, SlotRef(slots, 0), role)), clusters=2)
    assert all(np.isnan(values).all() for values in found)
