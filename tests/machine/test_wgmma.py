"""wgmma: numbers against NumPy, groups and waits, slots and accumulators in flight."""

from __future__ import annotations

import numpy as np
import pytest

from tests.machine.parts import Parts, init, run, run_recorded, warps
from tests.machine.slots import write_slot
from tests.oracle.states import steps
from tmapipe.base.arithmetic import bf16, fp16, fp32
from tmapipe.errors import HazardError
from tmapipe.isa import ops as o
from tmapipe.isa.fragment import SlotRef
from tmapipe.model import POLICIES, Layout, State

FOUR = range(4)


class SmallGemm:
    """One output tile (64 * warpgroups * blocks) x 32, k tiles of 16, a 2-stage ring; the epilogue writes 16 columns at a
    time. fault: "early" (slots released before the wgmma has retired), "no fence", "no wait" (accumulators read at once)."""

    def __init__(self, warpgroups: int = 1, blocks: int = 1, dtype=bf16, out=fp32, fault: str = ""):
        parts = Parts()
        self.m, self.n, self.k, self.groups, self.fault = 64 * warpgroups * blocks, 32, 16, warpgroups, fault
        self.loader = parts.role("load", 1)
        self.math = parts.role("math", 4 * warpgroups, first=4)
        self.full = parts.barrier("full", 1, 2)
        self.free = parts.barrier("free", self.math.warps, 2)
        self.sync = parts.named("sync", 1, 128, warpgroups)
        self.a = parts.buffer("a", (self.m, self.k), 2, dtype)
        self.b = parts.buffer("b", (self.n, self.k), 2, dtype)
        self.c = parts.buffer("d", (64, 16), warpgroups, out)
        self.load_a, self.load_b = parts.load(self.a, ("m", "k")), parts.load(self.b, ("n", "k"))
        self.d = parts.store("d", self.c, ("m", "n"))
        self.mma = parts.matmul(self.a, self.b, warpgroups, 4)
        self.plan, self.blocks, self.dtype, self.out = parts.plan(), blocks, dtype, out

    def entry(self, isa):
        init(isa)
        steps = isa.extent("a", 1) // self.k
        if isa.warp == 0:
            for i in range(steps):
                isa.mbarrier_wait(self.free, i % 2, (i // 2 & 1) ^ 1)
                isa.mbarrier_arrive_expect_tx(self.full, i % 2, self.a.slot_bytes + self.b.slot_bytes)
                isa.tma_load(self.load_a, i % 2, (0, i * self.k), self.full)
                isa.tma_load(self.load_b, i % 2, (0, i * self.k), self.full)
        elif isa.warp >= 4:
            self.multiply(isa, steps)

    def multiply(self, isa, steps):
        acc = isa.fragments.accumulator(self.mma)
        if self.fault != "no fence":
            isa.wgmma_fence()
        for i in range(steps):
            isa.mbarrier_wait(self.full, i % 2, i // 2 & 1)
            isa.wgmma(self.mma, acc, SlotRef(self.a, i % 2), SlotRef(self.b, i % 2))
            isa.wgmma_commit()
            if self.fault != "early":
                isa.wgmma_wait(0)
            isa.mbarrier_arrive(self.free, i % 2)
        if self.fault != "no wait":
            isa.wgmma_wait(0)
        group = isa.warp // 4 - 1
        for block in range(self.blocks):
            for first in range(0, self.n, 16):
                values = isa.fragments.accumulator_columns(self.mma, acc, block, first, 16)
                isa.fragments.write_columns(values, SlotRef(self.c, group))
                isa.fence_proxy_async()
                isa.named_barrier_sync(self.sync, group)
                if isa.warp % 4 == 0:
                    isa.tma_store(self.d, group, ((block * self.groups + group) * 64, first))
                    isa.bulk_commit_group()
                    isa.bulk_wait_group(0, read=True)
                isa.named_barrier_sync(self.sync, group)

    def run(self, steps=5, **options):
        rng = np.random.default_rng(1)
        a = rng.standard_normal((self.m, steps * self.k), np.float32).astype(self.dtype.numpy)
        b = rng.standard_normal((self.n, steps * self.k), np.float32).astype(self.dtype.numpy)
        d = np.zeros((self.m, self.n), self.out.numpy)
        run(self.plan, self.entry, {"a": a, "b": b, "d": d}, **options)
        return d, a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("warpgroups, blocks", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("dtype", [bf16, fp16])
def test_numbers(warpgroups, blocks, dtype):
    d, want = SmallGemm(warpgroups, blocks, dtype).run()
    np.testing.assert_allclose(d, want, rtol=1e-4, atol=1e-4)


def test_outputs_round_to_nearest_even():
    d, want = SmallGemm(out=bf16).run()
    wide, _ = SmallGemm(out=fp32).run()
    assert (d == wide.astype(bf16.numpy)).all()
    np.testing.assert_allclose(d.astype(np.float32), want, rtol=1e-2, atol=1e-2)


def test_no_k_tiles_give_zero():
    d, _ = SmallGemm().run(steps=0)
    assert (d == 0).all()


def test_bit_identical_for_every_order():
    results = {SmallGemm(2).run(policy=p, seed=s)[0].tobytes() for p in POLICIES for s in range(7)}
    assert len(results) == 1


def test_a_slot_released_before_its_wgmma_has_retired():
    rules = set()
    for policy in POLICIES:
        for seed in range(5):
            try:
                SmallGemm(fault="early").run(policy=policy, seed=seed)
            except HazardError as error:
                rules.add(error.rule)
    assert rules == {"slot-read-by-wgmma"}


def test_a_missing_fence_and_accumulators_read_in_flight():
    with pytest.raises(HazardError, match="wgmma-fence"):
        SmallGemm(fault="no fence").run()
    gemm = SmallGemm(fault="no wait")
    gemm.fault = ""
    assert np.isfinite(gemm.run()[0]).all()

    def entry(isa):
        init(isa)
        if isa.warp >= 4:
            acc = isa.fragments.accumulator(gemm.mma)
            isa.wgmma_fence()
            isa.wgmma(gemm.mma, acc, SlotRef(gemm.a, 0), SlotRef(gemm.b, 0))
            isa.wgmma_commit()
            isa.fragments.accumulator_columns(gemm.mma, acc, 0, 0, 16)

    arrays = {
        "a": np.zeros((64, 16), bf16.numpy),
        "b": np.zeros((32, 16), bf16.numpy),
        "d": np.zeros((64, 32), np.float32),
    }
    for policy in POLICIES:
        with pytest.raises(HazardError, match="reads the accumulators of mma with 1 wgmma not waited for"):
            run(gemm.plan, entry, arrays, policy=policy)


def machine_state() -> tuple[SmallGemm, State]:
    gemm = SmallGemm()
    return gemm, State(Layout(gemm.plan))


def issue(s: State, a: int = 0, warps_=FOUR):
    return [s.apply(4 + w, o.Wgmma("mma", a, 2 + a)) for w in warps_]


def test_a_wgmma_ends_once_all_four_warps_have_issued_it():
    _, s = machine_state()
    issue(s, warps_=range(3))
    assert list(steps(s)) == []
    ((flight,),) = issue(s, warps_=[3])
    assert list(steps(s)) == [(flight, o.WgmmaDone())]


def test_wait_group_counts_groups_not_matmuls():
    _, s = machine_state()
    for a in (0, 1):
        issue(s, a)
        issue(s, a)
        for w in FOUR:
            s.apply(4 + w, o.WgmmaCommit())
    assert s.enabled(4, o.WgmmaWait(2)) and not s.enabled(4, o.WgmmaWait(1))
    for done in range(4):
        ((flight, step),) = steps(s)
        assert flight.serial == done  # in order
        s.apply(flight, step)
        assert s.enabled(4, o.WgmmaWait(1)) == (done >= 1) and s.enabled(4, o.WgmmaWait(0)) == (done == 3)
    assert s.apply(4, o.WgmmaWait(1)) == 2 and s.apply(4, o.WgmmaWait(0)) == 4


def test_slots_of_a_wgmma_in_flight():
    _, s = machine_state()
    s.apply(0, o.MbarInit(0, 1))
    issue(s)
    with pytest.raises(
        HazardError, match=r"load \(warp 0\) of CTA 0 loads a into slot a\[0\].*wgmma 0 of math.*may still read a\[0\]"
    ):
        s.copy().apply(0, o.TmaLoad("a", 0, 0, 2048))
    with pytest.raises(HazardError, match="slot-read-by-wgmma"):
        s.copy().apply(4, o.SlotWrite(2))
    s.apply(4, o.SlotRead(0))
    s.apply(0, o.TmaLoad("a", 1, 0, 2048))
    with pytest.raises(HazardError, match=r"multiplies \(mma\) slot a\[1\].*slot-being-loaded"):
        issue(s, 1)


def test_returning_with_wgmma_in_flight():
    _, s = machine_state()
    issue(s)
    with pytest.raises(HazardError, match="exit-unawaited-wgmma"):
        s.apply(4, o.Exit())


def test_warps_of_a_warpgroup_must_agree():
    _, s = machine_state()
    issue(s, 0, [0])
    with pytest.raises(HazardError, match="wgmma-diverged"):
        issue(s, 1, [1])


def test_a_role_of_single_warps_cannot_use_wgmma():
    _, s = machine_state()
    with pytest.raises(HazardError, match="not all 4 warps of its warpgroup play the role load"):
        s.apply(0, o.Wgmma("mma", 0, 2))


def test_without_data():
    gemm = SmallGemm(2)
    made = run_recorded(gemm.plan, gemm.entry, {"a": (128, 80), "b": (32, 80), "d": (128, 32)})
    assert made.counts["WgmmaDone"] == 10 and made.counts["Wgmma"] == 40 and made.counts["TmaStore"] == 4


def test_a_premature_release_corrupts_numbers_where_nothing_else_would_notice():
    """Operands are read when the wgmma ends: what a peer warp writes before that (ordered or not) is what it sees."""
    parts = Parts()
    math = parts.role("math", 4)
    a, b = parts.buffer("a", (64, 16), 1, fp16), parts.buffer("b", (8, 16), 1, fp16)
    mma = parts.matmul(a, b, 1, 0)
    plan = parts.plan()
    seen = []

    def program(isa):
        write_slot(isa, SlotRef(a, 0), np.ones(256, np.float32), math)
        write_slot(isa, SlotRef(b, 0), np.ones(32, np.float32), math)
        isa.fence_proxy_async()
        isa.cta_sync()
        acc = isa.fragments.accumulator(mma)
        isa.wgmma_fence()
        isa.wgmma(mma, acc, SlotRef(a, 0), SlotRef(b, 0))
        isa.wgmma_commit()
        isa.wgmma_wait(0)
        seen.append(isa.fragments.accumulator_columns(mma, acc, 0, 0, 8))

    run(plan, warps(plan, *[program] * 4), {}, policy="late")
    assert len(seen) == 4 and all((each.data == 16).all() and each.data.shape == (1, 16, 8) for each in seen)
