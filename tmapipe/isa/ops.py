"""All operations, the facts that the machine answers with, and the steps that engines take by themselves.

An operation is what a warp asks of the machine: one immutable record. Its operands are small integers that
`tmapipe.machine.layout.Layout` numbers and names: ``bar`` is a flat number of one mbarrier of the CTA, ``slot`` of one slot of
shared memory, both without the CTA, which the agent supplies. The last line of each docstring states the *facts* with which
`State.apply` answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tmapipe.isa.barriers import *  # noqa: F403 - the operations
from tmapipe.isa.compute import *  # noqa: F403
from tmapipe.isa.copies import *  # noqa: F403
from tmapipe.isa.descriptors import *  # noqa: F403
from tmapipe.isa.globals import *  # noqa: F403
from tmapipe.isa.operands import ALL_LANES, ELECTED
from tmapipe.isa.peers import *  # noqa: F403
from tmapipe.isa.rows import *  # noqa: F403

__all__ = [
    "ALL_LANES", "ELECTED", "Agent", "Counted", "Flight", "LoadComplete", "LoadWrite", "Op", "Step", "StoreRead",
    "StoreWrite", "WgmmaDone",
]  # fmt: skip

Op = Any  #: one of the operations, each a `NamedTuple` declared in the table


class Counted(NamedTuple):
    """Arrivals or bytes counted by ``bar`` of CTA `cta` in its phase number `phase` (from 0), and whether they completed it.

    arrivals: 0 for expect-tx and complete-tx; nbytes: armed, or if negative landed.
    """

    cta: int
    bar: int
    phase: int
    arrivals: int
    nbytes: int
    completed: bool


class Flight(NamedTuple):
    """An asynchronous agent: a load on its way to CTA `cta`, a store, or a wgmma.

    kind: "load", "store" or "wgmma"; issuer: the agent that issued it (a wgmma's: the global warpgroup); serial: counts
    the issuer's loads and stores (a wgmma's: those of the warpgroup), so it is the same in every interleaving.
    """

    kind: str
    issuer: int
    serial: int
    cta: int


# ---- engine steps -----------------------------------------------------------------------------------------------------


class LoadWrite(NamedTuple):
    """The load's bytes land in its destination CTA. Only in states made with ``split_loads``. Facts: None."""


class LoadComplete(NamedTuple):
    """The load's bytes are counted (after they landed). Facts: tuple of one `Counted`."""


class StoreRead(NamedTuple):
    """The store has read its slot. Facts: None."""


class StoreWrite(NamedTuple):
    """The store has written global memory. Facts: None."""


class WgmmaDone(NamedTuple):
    """The oldest wgmma of a warpgroup has read its slots and written its accumulators. Facts: None."""


Step = LoadWrite | LoadComplete | StoreRead | StoreWrite | WgmmaDone
Agent = int | Flight
