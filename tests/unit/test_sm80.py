"""sm_80 to sm_89: what runs without the engines of sm_90, and what is refused by name."""

import numpy as np
import pytest

import tmapipe as tp
from tests.oracle.copy_forms import Added, CopiedGemm, Mapped
from tests.unit.errors import refused

S = tp.schedules
ARCHS = ("sm_80", "sm_86", "sm_89")


@pytest.mark.parametrize("arch", ARCHS)
def test_a_map_in_two_buffers(arch):
    schedule = Mapped()
    schedule.arch = arch
    x = np.random.default_rng(0).standard_normal((70, 98)).astype(np.float16)
    run = schedule.simulate(x, out=(y := np.zeros_like(x)), seed=3)
    assert (y == (x.astype(np.float32) ** 2 + 1).astype(np.float16)).all()
    assert not {"MbarArriveTx", "FenceMbarInit", "FenceProxyAsync", "TmaLoad", "BulkWait"} & set(run.counts)
    report = schedule.check()
    assert report.ok and not report.findings and "every trip count" in str(report)
    assert f"Mapped for {arch}: 96 threads" in schedule.explain()


@pytest.mark.parametrize("arch, smem", [("sm_80", 166912), ("sm_86", 101376), ("sm_89", 101376)])
def test_shared_memory(arch, smem):
    class Large(Mapped):
        copy, work = Mapped.copy, Mapped.work
        ring = tp.BarrierRing(None, producer=copy, consumer=work)
        x = tp.CpAsyncLoadStage("m n", tile=(64, 128), ring=ring)
        y = tp.ThreadStoreStage("m n", tile=(64, 128), role=work)

    plan = Large().plan(arch=arch)
    slot = 64 * 128 * 2
    assert plan.target.smem == smem and plan.smem_bytes <= smem
    assert plan.ring("ring").stages == min(12, (smem - 1024) // slot)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_the_architecture_lacks(arch):
    refused(S.Copy().plan, arch=arch, argument="TmaLoadStage(x)", value=arch, rule="needs the TMA engine")
    refused(Added().plan, arch=arch, argument="TmaLoadStage(z)", rule=f"{arch} lacks")

    class Multiplied(CopiedGemm):
        load, math = CopiedGemm.load, CopiedGemm.math
        b = tp.CpAsyncLoadStage("n k", tile=(64, 16), ring=CopiedGemm.ring, vector=4)
        mma = tp.Wgmma(CopiedGemm.a, b)
        d = tp.ThreadStoreStage("m n", tile=(64, 64), role=math)

    refused(Multiplied().plan, arch=arch, argument="Wgmma(mma)", rule="sm_90a only")

    class Stored(Mapped):
        copy, work = Mapped.copy, Mapped.work
        y = tp.TmaStoreStage("m n", tile=(4, 64), role=work)

    refused(Stored().plan, arch=arch, argument="TmaStoreStage(y)", rule=f"{arch} lacks")
    clusters, queued = Mapped(), Mapped()
    clusters.cluster = {"m": 2}
    refused(clusters.plan, arch=arch, argument="cluster", rule="at most 1")
    queued.tiles = tp.tiles.DynamicTiles()
    refused(queued.plan, arch=arch, argument="Schedule.tiles", rule="st.async")

    class Budgeted(Mapped):
        copy, work = tp.Role(warpgroups=1, registers=40), tp.Role(warpgroups=1)

    refused(Budgeted().plan, arch=arch, argument="Role(copy).registers", rule="setmaxnreg")
    if arch != "sm_89":
        refused(Mapped().plan, {"x": "fp8_e4m3", "y": "fp8_e4m3"}, arch=arch, argument="x.dtype", rule="cannot convert")


class Softmax(tp.Schedule):
    """Reductions, functions, scratch and an operand that repeats: all that threads do runs on sm_80 too."""

    arch = "sm_80"
    relations = (tp.Dim("n", at_most=256),)
    load, work = tp.Role(warps=2), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.CpAsyncLoadStage("m n", tile=(4, 256), ring=ring)
    w = tp.CpAsyncLoadStage("n", tile=(256,), ring=ring, vector=4, dtype="fp32")
    y = tp.ThreadStoreStage("m n", tile=(4, 256), role=work)
    sums = tp.ThreadStoreStage("m", tile=(4,), role=work, vector=4, dtype="fp32")
    room = tp.Scratch(work, tile=(4, 256), dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.w.load(n=0)

    @work.jit
    def normalize(self, k, tile):
        n = k.extent("n")
        with k.ring.consume() as slot:
            values = slot.x.read()
            weights = slot.w.read(columns_of=values)
        powers = tp.math.exp(values - tp.math.row_max(values, inside=n))
        k.room.write(tp.math.gelu(powers) + tp.math.tanh(powers))
        k.sync()
        total = tp.math.row_sum(powers, inside=n)
        k.y.store(tile, powers * (1 / total) * weights + k.room.read() * 0)
        k.sums.store(tile, total)


def test_a_softmax():
    x, w = np.random.default_rng(1).standard_normal((10, 200)).astype(np.float16), np.full(200, 2, np.float32)
    y, sums = Softmax()(x, w, sums=np.zeros(10, np.float32))
    powers = np.exp(x.astype(np.float32) - x.max(1, keepdims=True).astype(np.float32))
    np.testing.assert_allclose(sums, powers.sum(1), rtol=1e-5)
    np.testing.assert_allclose(y.astype(np.float32), 2 * powers / powers.sum(1, keepdims=True), rtol=2e-3)
    assert Softmax().check().ok
    compiled = Softmax().compile({"w": "fp32", "sums": "fp32"})
    assert ".target sm_80" in compiled.ptx and compiled.resources.spill_bytes == 0


def test_teams():
    class Turns(Mapped):
        copy, work = Mapped.copy, tp.Role(warps=4, teams=2)
        arch = "sm_80"

    x = np.random.default_rng(2).integers(-9, 9, (50, 98)).astype(np.float16)
    assert (Turns()(x) == x * x + 1).all() and Turns().check().ok
