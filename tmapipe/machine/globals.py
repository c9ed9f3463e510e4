"""Global memory that threads access, and the lanes of a warp: these operations leave the cluster's state as it is.

What counters hold belongs to the whole grid, of which a state has one cluster (see `tmapipe.isa.globals`).
"""

from __future__ import annotations

from tmapipe.isa.ops import Ballot, CounterAdd, CounterStore, ReadSmid, Shuffle, TableLoad
from tmapipe.machine.state import State, applies


@applies(CounterAdd)
@applies(CounterStore)
@applies(TableLoad)
@applies(Ballot)
@applies(Shuffle)
@applies(ReadSmid)
def _nothing(state: State, agent: int, op: object) -> None:
    pass
