"""setmaxnreg, and what warps leave behind when they return."""

from __future__ import annotations

import pytest

from tests.machine.parts import Parts, init, run, warps
from tmapipe.errors import DeadlockError, HazardError
from tmapipe.isa import ops as o
from tmapipe.model import POLICIES, Layout, State

# ---- setmaxnreg -------------------------------------------------------------------------------------------------------


def registers_plan(groups: int = 2):
    parts = Parts(launch_registers=168)
    for g in range(groups):
        parts.role(f"g{g}", 4)
    return parts.plan()


@pytest.mark.parametrize("policy", POLICIES)
def test_an_increase_waits_for_the_decrease(policy):
    plan, log = registers_plan(), []

    def entry(isa):
        if isa.warp < 4:
            log.append("down")
            isa.setmaxnreg(40, increase=False)
        else:
            isa.setmaxnreg(256, increase=True)
            log.append("up")

    for seed in range(10):
        log.clear()
        run(plan, entry, policy=policy, seed=seed)
        assert log == ["down"] * 4 + ["up"] * 4


def test_sums_that_disagree_deadlock():
    """cutlass#2007, and 80 + 2 x 224 > 3 x 168."""
    plan = registers_plan(3)

    def entry(isa):
        isa.setmaxnreg(80 if isa.warp < 4 else 224, increase=isa.warp >= 4)

    with pytest.raises(DeadlockError, match=r"more registers a warp \(setmaxnreg 224\); the CTA's pool has"):
        run(plan, entry)


def test_a_warp_that_leaves_out_its_decrease():
    plan = registers_plan()

    def entry(isa):
        if isa.warp < 3:
            isa.setmaxnreg(40, increase=False)
        elif isa.warp >= 4:
            isa.setmaxnreg(240, increase=True)

    with pytest.raises(DeadlockError, match="when all 4 of its warps have decreased"):
        run(plan, entry)

    with pytest.raises(HazardError, match="setmaxnreg-warpgroup"):
        run(plan, lambda isa: isa.when(isa.warp < 3, lambda: isa.setmaxnreg(40, increase=False)))


@pytest.mark.parametrize("registers, increase", [(40, False), (168, True), (168, False)])
def test_one_warp_of_four(registers, increase):
    """PTX: all warps of a warpgroup execute it, even if it changes nothing."""
    with pytest.raises(HazardError, match="setmaxnreg-warpgroup"):
        run(registers_plan(), lambda isa: isa.when(isa.warp == 1, lambda: isa.setmaxnreg(registers, increase)))


@pytest.mark.parametrize(
    "registers, increase, rule",
    [(20, False, "range"), (100, False, "range"), (176, False, "direction"), (40, True, "direction")],
)
def test_bad_register_counts(registers, increase, rule):
    with pytest.raises(HazardError, match=f"setmaxnreg-{rule}"):
        run(registers_plan(), lambda isa: isa.setmaxnreg(registers, increase))


# ---- exit -------------------------------------------------------------------------------------------------------------


def test_bytes_armed_and_never_delivered_at_exit():
    parts = Parts()
    parts.role("one", 1)
    bar = parts.barrier("bar")
    plan = parts.plan()
    with pytest.raises(HazardError, match=r"bar\[0\] waits for 64 bytes in phase 0 that nothing delivers"):
        run(plan, warps(plan, lambda isa: isa.mbarrier_expect_tx(bar, 0, 64)))


def test_idle_warps_are_called_idle():
    parts = Parts()
    parts.role("one", 1)
    bar = parts.barrier("bar")
    plan = parts.plan(warps=4)

    def entry(isa):
        init(isa)
        if isa.warp == 3:
            isa.mbarrier_wait(bar, 0, 0)

    with pytest.raises(DeadlockError, match=r"idle \(warp 3\) of CTA 0"):
        run(plan, entry)
    assert State(Layout(plan)).live == [4]
    assert o.Exit() == o.Exit()
