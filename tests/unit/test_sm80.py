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
    refused(S.Copy().plan, arch=arch, argument="TmaLoadStage(x)", value=arch, rule="by an engine that")
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
    queued.tiles = tp.DynamicTiles()
    refused(queued.plan, arch=arch, argument="Schedule.tiles", rule="st.async")

    class Budgeted(Mapped):
        copy, work = tp.Role(warpgroups=1, registers=40), tp.Role(warpgroups=1)

    refused(Budgeted().plan, arch=arch, argument="Role(copy).registers", rule="setmaxnreg")
    if arch != "sm_89":
        refused(
            Mapped().plan, {"x": "fp8_e4m3", "y": "fp8_e4m3"}, arch=arch, argument="x.dtype", rule="does not convert"
        )
