"""How a call of the instruction set becomes operations: what the files of operations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tmapipe.isa.values import Carried, Value
from tmapipe.plan.model import Barrier, Buffer, Load, NamedBarrier, Plan, Store
from tmapipe.plan.syncs import Syncs

__all__ = ["Lowering"]


class Lowering(Carried):
    """Base of the instruction set. By default an instruction makes its operations, whose operands are flat numbers, and hands
    them to `emit`, as the machine wants it; the GPU's backend overrides every instruction.

    plan: of the kernel; syncs: barriers that bodies use and the plan does not have; warp: index of the calling warp in the
    CTA; cta_rank: of the CTA in its cluster; cluster_id: of the cluster in the grid; clusters: in the grid.
    """

    plan: Plan
    syncs: Syncs
    warp: Value
    cta_rank: Value
    cluster_id: Value
    clusters: Value

    def emit(self, op: Any) -> None:
        """Executes an operation, or records it."""
        raise NotImplementedError

    def ask(self, op: Any, without_data: Callable[[], Sequence[int]]) -> Sequence[int]:
        """Executes an operation that reads memory. Returns what it has read; in the machine without data, *without_data*."""
        raise NotImplementedError

    def bar(self, barrier: Barrier, stage: Value) -> int:
        """The flat number of an mbarrier of the CTA."""
        raise NotImplementedError

    def slot(self, buffer: Buffer, stage: Value) -> int:
        """The flat number of a slot of the CTA."""
        raise NotImplementedError

    def start(self, of: Load | Store, at: Sequence[Value]) -> tuple[int, ...]:
        """Where a tile of a tensor starts (elements), one index for each of its dimensions."""
        raise NotImplementedError

    def part(self, of: Load | Store, index: Value) -> int:
        """Which of the parts of a slot is moved by itself; None for all of it."""
        raise NotImplementedError

    def plain(self, number: Value) -> int:
        """A number that only data depends on."""
        raise NotImplementedError

    def barrier_id(self, barrier: NamedBarrier, instance: Value) -> int:
        """The id of a hardware barrier of the CTA."""
        raise NotImplementedError
