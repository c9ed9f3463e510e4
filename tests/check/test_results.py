"""Results for a consumer in the same kernel: a full wait, a proxy fence of global memory, and a flag."""

import attrs
import numpy as np
import pytest

from tests.machine.parts import TILE, Parts, ramp, run, warps
from tests.oracle.one_run import check_program
from tmapipe.base.arithmetic import fp16
from tmapipe.check import Kind
from tmapipe.isa.ops import TileStore
from tmapipe.model import POLICIES

TILES = 3
SHAPES = {"x": (8 * TILES, 16), "y": (8 * TILES, 16), "z": (8 * TILES, 16)}


class Twice:
    """One warp copies x to y, tile by tile. Another one copies y to z: each tile once that of y is written and visible.

    fence: who fences, "storing" or "loading" or "nobody"; wait: "full", "read" (of the source only) or "none"; flag: whether
    the second warp waits for the first one; again: whether the first warp then stores to y again, "at once" or "after" the
    second one has got everything.
    """

    def __init__(self, fence="storing", wait="full", flag=True, again=""):
        parts = Parts()
        parts.role("first", 1)
        parts.role("second", 1)
        self.filled, self.done = parts.barrier("filled", 1), parts.barrier("done", 1)
        self.back, self.over = parts.barrier("back", 1), parts.barrier("over", 1)
        self.a, self.b = parts.buffer("x", TILE, dtype=fp16), parts.buffer("b", TILE, dtype=fp16)
        self.x, loaded = parts.load(self.a), parts.load(self.b)
        self.again_y = attrs.evolve(loaded, argument="y")
        parts.made["loads"][-1] = self.again_y
        self.y, self.z = parts.store("y", self.a), parts.store("z", self.b)
        self.fence, self.wait, self.flag, self.again = fence, wait, flag, again
        self.plan = attrs.evolve(parts.plan(), arguments=("x", "y", "z"))

    def first(self, isa):
        for i in range(TILES):
            isa.mbarrier_arrive_expect_tx(self.filled, 0, self.a.slot_bytes)
            isa.tma_load(self.x, 0, (8 * i, 0), self.filled)
            isa.mbarrier_wait(self.filled, 0, i & 1)
            isa.tma_store(self.y, 0, (8 * i, 0))
            isa.bulk_commit_group()
            if self.wait != "none" or i + 1 < TILES:
                isa.bulk_wait_group(0, read=self.wait != "full")
        if self.fence == "storing":
            isa.fence_proxy_async_global()
        isa.warp_sync()
        isa.mbarrier_arrive(self.done, 0)
        if self.again == "after":
            isa.mbarrier_wait(self.over, 0, 0)
        if self.again:
            isa.tma_store(self.y, 0, (0, 0))
            isa.bulk_commit_group()
        isa.bulk_wait_group(0, read=False)

    def second(self, isa):
        if self.flag:
            isa.mbarrier_wait(self.done, 0, 0)
        if self.fence == "loading":
            isa.fence_proxy_async_global()
        for i in range(TILES):
            isa.mbarrier_arrive_expect_tx(self.back, 0, self.b.slot_bytes)
            isa.tma_load(self.again_y, 0, (8 * i, 0), self.back)
            isa.mbarrier_wait(self.back, 0, i & 1)
            isa.tma_store(self.z, 0, (8 * i, 0))
            isa.bulk_commit_group()
            isa.bulk_wait_group(0, read=True)
        isa.mbarrier_arrive(self.over, 0)
        isa.bulk_wait_group(0, read=False)

    def check(self):
        return check_program(self.plan, warps(self.plan, self.first, self.second), SHAPES)

    def right(self, **options):
        """Whether z is x, on the model."""
        x = ramp(SHAPES["x"]).astype(np.float16) + 1
        y, z = np.zeros_like(x), np.zeros_like(x)
        run(self.plan, warps(self.plan, self.first, self.second), {"x": x, "y": y, "z": z}, **options)
        return (z == x).all()


RIGHT = [{}, {"fence": "loading"}, {"again": "after"}]
WRONG = [
    ({"wait": "read"}, Kind.RESULT_TOO_EARLY, "in full"),
    ({"wait": "none"}, Kind.RESULT_TOO_EARLY, "in full"),
    ({"flag": False}, Kind.RACE, "let the storing warp know"),  # in the run that is watched, the load comes first
    ({"flag": False, "wait": "none"}, Kind.RACE, "let the storing warp know"),
    ({"fence": "nobody"}, Kind.PROXY, "fence.proxy.async.global"),
]


@pytest.mark.parametrize("how", RIGHT)
def test_visible(how):
    report = Twice(**how).check()
    assert report.ok and not report.findings, str(report)
    assert all(Twice(**how).right(policy=policy, seed=seed) for policy in POLICIES for seed in range(4))


@pytest.mark.parametrize("how, kind, fix", WRONG)
def test_not_visible(how, kind, fix):
    report = Twice(**how).check()
    assert kind in report.kinds() and not report.ok
    found = next(finding for finding in report.errors if finding.kind is kind)
    assert fix in found.fix and " y" in found.message, str(report)


def test_a_store_while_a_load_may_be_on_its_way():
    """Or the load comes while the store may not have written: which of the two is found depends on the run that is watched."""
    report = Twice(again="at once").check()
    assert report.kinds() <= {Kind.RACE, Kind.RESULT_TOO_EARLY} and not report.ok


@pytest.mark.parametrize("how, seeds", [({"wait": "read"}, range(75, 90)), ({"flag": False}, range(8))])
def test_the_model_shows_what_was_there_before(how, seeds):
    """Some order of steps gives zeros. (A fence is nothing that a model without caches could miss.)"""
    assert not all(Twice(**how).right(policy="late", seed=seed) for seed in seeds)


class Overwritten(Twice):
    """The second warp loads a tile of y, and then the first one stores to it."""

    def __init__(self, early):
        super().__init__()
        self.early = early

    def first(self, isa):
        isa.mbarrier_wait(self.over, 0, 0)
        isa.tma_store(self.y, 0, (0, 0))
        isa.bulk_commit_group()
        isa.bulk_wait_group(0, read=False)

    def second(self, isa):
        isa.mbarrier_arrive_expect_tx(self.back, 0, self.b.slot_bytes)
        isa.tma_load(self.again_y, 0, (0, 0), self.back)
        if self.early:
            isa.mbarrier_arrive(self.over, 0)
        isa.mbarrier_wait(self.back, 0, 0)
        if not self.early:
            isa.mbarrier_arrive(self.over, 0)


def test_what_is_loaded_is_not_overwritten():
    assert Overwritten(early=False).check().ok
    report = Overwritten(early=True).check()
    assert report.kinds() == {Kind.RACE} and "wait for the load's mbarrier" in str(report)


class ByThreads(Twice):
    """The same, where threads store to y what they have."""

    def __init__(self, sync=True, fence="storing"):
        super().__init__(fence=fence)
        self.sync = sync
        self.y = attrs.evolve(self.y, vector=4)
        self.plan = attrs.evolve(self.plan, stores=(self.y, self.z))

    def first(self, isa):
        isa.emit(TileStore("y", (0, 0)))
        if self.fence == "storing":
            isa.fence_proxy_async_global()
        if self.sync:
            isa.warp_sync()
        isa.mbarrier_arrive(self.done, 0)


def test_stores_by_threads():
    assert ByThreads().check().ok and ByThreads(fence="loading").check().ok
    assert ByThreads(sync=False, fence="loading").check().kinds() == {Kind.RESULT_TOO_EARLY}
    assert ByThreads(fence="nobody").check().kinds() == {Kind.PROXY}
