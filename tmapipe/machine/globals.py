"""Operations that leave the cluster's state as it is: threads' accesses to global memory, the lanes of a warp, and fences,
which order accesses as only clocks can follow.

What counters hold belongs to the whole grid, of which a state has one cluster (see `tmapipe.isa.globals`).
"""

from __future__ import annotations

from tmapipe.isa.ops import (
    Ballot,
    CounterAdd,
    CounterStore,
    DescriptorRelease,
    FenceMbarInit,
    FenceProxyAsync,
    FenceProxyAsyncGlobal,
    PrefetchDescriptor,
    ReadSmid,
    Shuffle,
    TableLoad,
    WarpSync,
)
from tmapipe.machine.state import State, applies

__all__: list[str] = []


@applies(CounterAdd, CounterStore, TableLoad, Ballot, Shuffle, ReadSmid)
@applies(WarpSync, FenceMbarInit, FenceProxyAsync, FenceProxyAsyncGlobal, PrefetchDescriptor, DescriptorRelease)
def _nothing(state: State, agent: int, op: object) -> None:
    pass
