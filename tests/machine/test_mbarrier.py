"""mbarrier transitions against the PTX description: counts, phases, parities, bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machine.parts import Parts, run, warps
from tests.sweeps import examples
from tmapipe.errors import DeadlockError, HazardError
from tmapipe.isa import ALL_LANES
from tmapipe.isa.ops import MbarArrive, MbarArriveCluster, MbarArriveTx, MbarExpectTx, MbarInit, MbarWait
from tmapipe.model import Layout, State


def state(count: int = 1, cluster: int = 1) -> State:
    parts = Parts(cluster)
    parts.role("one", 1)
    parts.barrier("bar", count)
    made = State(Layout(parts.plan()))
    for cta in range(cluster):
        made.apply(cta, MbarInit(0, count))
    return made


def test_the_phase_before_the_first_has_parity_1():
    s = state()
    assert s.enabled(0, MbarWait(0, 1)) and not s.enabled(0, MbarWait(0, 0))
    assert s.apply(0, MbarWait(0, 1)) == -1


def test_a_phase_completes_after_count_arrivals_and_flips_the_parity():
    s = state(count=3)
    for i in range(3):
        assert not s.enabled(0, MbarWait(0, 0))
        (counted,) = s.apply(0, MbarArrive(0))
        assert (counted.phase, counted.completed) == (0, i == 2)
    assert s.enabled(0, MbarWait(0, 0)) and not s.enabled(0, MbarWait(0, 1))
    assert s.apply(0, MbarWait(0, 0)) == 0
    assert s.pending == [3]


def test_armed_bytes_hold_the_phase_open():
    s = state()
    s.apply(0, MbarArriveTx(0, 64))
    assert s.pending == [0] and s.tx == [64] and s.phase == [0]
    with pytest.raises(HazardError, match=r"bar\[0\] of CTA 0.*phase 0.*64 bytes.*surplus-arrival"):
        s.copy().apply(0, MbarArrive(0))


def test_expect_tx_does_not_arrive():
    s = state()
    (counted,) = s.apply(0, MbarExpectTx(0, 64))
    assert counted.arrivals == 0 and s.pending == [1] and s.tx == [64]


def test_32_lanes_arrive_32_times():
    s = state(count=64)
    (counted,) = s.apply(0, MbarArrive(0, ALL_LANES))
    assert counted.arrivals == 32 and s.pending == [32]


def test_32_lanes_at_count_1_complete_32_phases():
    """cudnn-frontend#426: the count was 1 and 32 lanes arrived."""
    s = state(count=1)
    counted = s.apply(0, MbarArrive(0, ALL_LANES))
    assert [c.phase for c in counted] == list(range(32)) and all(c.completed for c in counted)
    assert s.phase == [32]


def test_lanes_split_over_two_phases():
    s = state(count=20)
    counted = s.apply(0, MbarArrive(0, ALL_LANES))
    assert [(c.phase, c.arrivals, c.completed) for c in counted] == [(0, 20, True), (1, 12, False)]


def test_lane_i_arrives_at_cta_i():
    s = state(count=2, cluster=4)
    counted = s.apply(0, MbarArriveCluster(0, 0b1010))
    assert [c.cta for c in counted] == [1, 3] and s.pending == [2, 1, 2, 1]


def test_a_mask_outside_the_cluster_is_refused():
    with pytest.raises(HazardError, match="mask-outside-cluster"):
        state(cluster=2).apply(0, MbarArriveCluster(0, 0b100))


@pytest.mark.parametrize("parity", [2, -1, 3])
def test_a_parity_is_0_or_1(parity):
    s = state(count=1)
    with pytest.raises(HazardError, match="wait-parity"):
        s.apply(0, MbarWait(0, parity))


@pytest.mark.parametrize("op", [MbarWait(0, 1), MbarArrive(0), MbarArriveTx(0, 16), MbarArriveCluster(0, 1)])
def test_use_before_init(op):
    parts = Parts()
    parts.role("one", 1)
    parts.barrier("bar", 1)
    s = State(Layout(parts.plan()))
    assert s.enabled(0, op)
    with pytest.raises(HazardError, match=r"one \(warp 0\) of CTA 0 uses bar\[0\].*before"):
        s.apply(0, op)


def test_init_twice_and_bad_counts():
    with pytest.raises(HazardError, match="barrier-init-twice"):
        state().apply(0, MbarInit(0, 1))
    parts = Parts()
    parts.role("one", 1)
    parts.barrier("bar", 1)
    with pytest.raises(HazardError, match="barrier-count"):
        State(Layout(parts.plan())).apply(0, MbarInit(0, 0))


@given(count=st.integers(1, 40), arrivals=st.lists(st.sampled_from([1, 32]), max_size=12))
@settings(max_examples=examples(60))
def test_arrivals_are_conserved(count, arrivals):
    """Without bytes, phase number x count + arrivals of the current phase = all arrivals."""
    s = state(count=count)
    for lanes in arrivals:
        facts = s.apply(0, MbarArrive(0, (1 << lanes) - 1))
        assert sum(c.arrivals for c in facts) == lanes
    assert s.phase[0] * count + count - s.pending[0] == sum(arrivals)
    assert 1 <= s.pending[0] <= count


@given(count=st.integers(1, 3), phases=st.integers(0, 6), parity=st.integers(0, 1))
def test_a_wait_passes_exactly_when_the_current_phase_has_the_other_parity(count, phases, parity):
    s = state(count=count)
    for _ in range(phases * count):
        s.apply(0, MbarArrive(0))
    assert s.enabled(0, MbarWait(0, parity)) == ((phases - 1) % 2 == parity)


def test_two_warps_hand_over_in_turn():
    parts = Parts()
    parts.role("a", 1)
    parts.role("b", 1)
    ping, pong = parts.barrier("ping"), parts.barrier("pong")
    plan = parts.plan()
    order = []

    def first(isa):
        for i in range(5):
            isa.mbarrier_wait(pong, 0, (i & 1) ^ 1)
            order.append(("a", i))
            isa.mbarrier_arrive(ping, 0)

    def second(isa):
        for i in range(5):
            isa.mbarrier_wait(ping, 0, i & 1)
            order.append(("b", i))
            isa.mbarrier_arrive(pong, 0)

    for seed in range(5):
        order.clear()
        run(plan, warps(plan, first, second), seed=seed)
        assert order == [(who, i) for i in range(5) for who in "ab"]


def test_arrive_when_false_does_nothing():
    parts = Parts()
    parts.role("a", 1)
    bar = parts.barrier("bar")
    plan = parts.plan()

    def program(isa):
        isa.mbarrier_arrive(bar, 0, when=False)
        isa.mbarrier_arrive_cluster(bar, 0, 1, when=False)
        isa.mbarrier_wait(bar, 0, 0)

    with pytest.raises(DeadlockError, match=r"bar\[0\] parity 0: it is in phase 0 with 0 of 1 arrivals"):
        run(plan, warps(plan, program))


def test_a_stage_outside_the_ring():
    parts = Parts()
    parts.role("a", 1)
    bar = parts.barrier("bar", stages=2)
    plan = parts.plan()
    with pytest.raises(HazardError, match="no-such-stage"):
        run(plan, warps(plan, lambda isa: isa.mbarrier_arrive(bar, 2)))
