"""The instruction set on architectures before sm_90, whose mbarriers count no bytes and whose warps elect no lane."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from tmapipe.gpu import control
from tmapipe.gpu.copies import copy_tile
from tmapipe.gpu.inline import emit_ptx
from tmapipe.gpu.isa import GpuIsa
from tmapipe.plan.model import Barrier, Plan

__all__ = ["Sm80Isa", "backend_for"]

WAIT = """{
.reg .pred done;
wait_${:uid}:
mbarrier.test_wait.parity.shared.b64 done, [$0], $1;
@!done bra wait_${:uid};
}"""


class Sm80Isa(GpuIsa):
    """`GpuIsa` for sm_80 to sm_89. CuTe DSL has these instructions for sm_90 and later only, so they are inline PTX."""

    def mbarrier_init(self, barrier: Barrier, count: int) -> None:
        def init() -> None:
            for stage in range(barrier.stages):
                cute.arch.mbarrier_init(self.mbarrier(barrier, stage), count)

        control.when(self.lane == 0, init)

    def mbarrier_wait(self, barrier: Barrier, stage: Any, parity: Any) -> None:
        emit_ptx(WAIT, "rr", self._address(barrier, stage), parity)

    def mbarrier_arrive(self, barrier: Barrier, stage: Any, lanes: int = 1, when: Any = True) -> None:
        def arrive() -> None:
            emit_ptx("mbarrier.arrive.shared.b64 _, [$0];", "r", self._address(barrier, stage))

        self.when(when, arrive if lanes == 32 else lambda: control.when(self.lane == 0, arrive))

    def cp_async(
        self, load: Any, stage: Any, at: Any, barrier: Barrier, share: Any, shares: int, anywhere: bool
    ) -> None:
        copy_tile(self, load, stage, at, share, shares)
        emit_ptx("cp.async.mbarrier.arrive.noinc.shared.b64 [$0];", "r", self._address(barrier, stage))

    def _address(self, barrier: Barrier, stage: Any) -> Any:
        return self.mbarrier(barrier, stage).toint()


def backend_for(plan: Plan) -> type[GpuIsa]:
    """The class that emits instructions for the plan's architecture."""
    return GpuIsa if plan.target.tma else Sm80Isa
