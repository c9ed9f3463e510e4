"""Roles that start before the kernels before have ended: what they may load then, and what is found of the rest."""

import pytest
import torch

import tmapipe as tp
from tests.early import EarlyGemm
from tests.unit.fake_isa import record
from tmapipe.check import Kind
from tmapipe.errors import HazardError, InputError, ScopeError

EXTENTS = {"a": (64, 128), "b": (128, 128), "d": (64, 128)}


class Late(EarlyGemm):
    """Both operands are loaded before the wait."""

    @EarlyGemm.load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.b.load(tile, k=step)
                slot.a.load(tile, k=step)  # before the wait
                k.dependency_wait()


class OnlyFirst(EarlyGemm):
    """Waits in the first tile only, by a condition that does not hold for all warps of all CTAs."""

    @EarlyGemm.load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.b.load(tile, k=step)
                if tile.m == 0:
                    k.dependency_wait()
                slot.a.load(tile, k=step)


class Launching(EarlyGemm):
    """Lets the next kernel start behind its last load."""

    load = tp.Role(warps=1, early=("b",), dependents=True)

    @EarlyGemm.load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.b.load(tile, k=step)
                k.dependency_wait()
                slot.a.load(tile, k=step)
        k.launch_dependents()


class Undeclared(Launching):
    """The same, where its role does not say so."""

    load = EarlyGemm.load


def operands():
    return [torch.randn(rows, 72).to(torch.bfloat16) for rows in (100, 136)]


def test_it_computes_the_product_and_is_proved():
    a, b = operands()
    torch.testing.assert_close(EarlyGemm()(a, b).float(), a.float() @ b.float().T, atol=0.1, rtol=0.02)
    assert EarlyGemm().check().ok


@pytest.mark.parametrize("schedule", [Late, OnlyFirst])
def test_a_load_before_the_wait_is_found(schedule):
    report = schedule().check()
    assert {finding.kind for finding in report.errors} == {Kind.DEPENDENCY}
    assert "load (warp 0) of CTA 0 touches a before it has waited for the kernels before this one" in str(report)
    with pytest.raises(HazardError, match="touches a before it has waited"):
        schedule()(*operands())


def test_each_warp_waits_before_it_ends():
    plan = EarlyGemm().plan()
    for warp in range(plan.warps):
        kinds = [event[0] for event in record(EarlyGemm(), plan, warp, EXTENTS)]
        loads = [i for i, kind in enumerate(kinds) if kind == "load"]
        waits = [i for i, kind in enumerate(kinds) if kind == "grid_wait"]
        assert len(waits) == (3 if loads else 1) and (not loads or loads[0] < waits[0] < loads[1])
        assert kinds[-1] == "grid_wait" or not loads


@pytest.mark.parametrize(
    ("early", "text"),
    [(("c",), "leave c out"), (("d",), "leave d out"), ((1,), "names of tensors"), ("bd", "leave bd out")],
)
def test_what_is_no_tensor_that_is_loaded_is_refused(early, text):
    with pytest.raises(InputError, match=text):
        type("Wrong", (EarlyGemm,), {"load": tp.Role(warps=1, early=early)})().plan()


def test_threads_of_such_a_role_touch_no_global_memory():
    class Stored(tp.Schedule):
        load, add = tp.Role(warps=1), tp.Role(warps=4, early=("x",))
        ring = tp.BarrierRing(2, producer=load, consumer=add)
        x = tp.TmaLoadStage(tile=(64, 64), ring=ring)
        y = tp.ThreadStoreStage(role=add, tile=(64, 64))

    with pytest.raises(InputError, match="whose threads touch no global memory"):
        Stored().plan()


def test_a_role_says_that_it_starts_early():
    assert repr(tp.Role(warps=1, early=["b"])) == "Role(warps=1, early=('b',))"


def test_a_body_lets_the_next_kernel_start():
    plan = Launching().plan()
    for warp in range(plan.warps):
        kinds = [event[0] for event in record(Launching(), plan, warp, EXTENTS)]
        assert (
            "grid_launch_dependents" not in kinds if "load" not in kinds else kinds.index("grid_launch_dependents") > 5
        )
        assert record(EarlyGemm(), EarlyGemm().plan(), warp, EXTENTS)[0][0] == "grid_launch_dependents"
    assert Launching().check().ok
    with pytest.raises(ScopeError, match=r"load. Declare it as Role\(..., dependents=True\)"):
        Undeclared().check()


def test_whether_a_role_says_so_is_true_or_false():
    assert repr(tp.Role(warps=1, dependents=True)) == "Role(warps=1, dependents=True)"
    with pytest.raises(InputError, match="True or False"):
        tp.Role(warps=1, dependents=1)
