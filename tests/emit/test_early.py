"""What PTX does before it waits for the kernels before: in a role that starts early, the loads that it may."""

from tests.early import EarlyGemm
from tests.emit.kernels import Kernel, build


def test_only_constant_tensors_are_loaded_before_the_wait():
    kernel = build(Kernel(EarlyGemm, extents={"m": 100, "n": 200, "k": 200}))
    for warp in range(kernel.plan.warps):
        loader = warp == kernel.plan.role("load").first_warp
        before = kernel.ptx.thread(warp, 0).reached_without("griddepcontrol.wait")
        reached = kernel.ptx.reached(warp, 0)
        assert sum(what.is_a("cp.async.bulk.tensor") for what in before) == (1 if loader else 0)
        assert sum(what.is_a("griddepcontrol.wait") for what in reached) == (2 if loader else 1)
