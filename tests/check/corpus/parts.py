"""What the cases are made of: a program that the checker can run, and a ring written out by hand.

The programs use the instruction set directly, so that they can do what the library's objects do not let one write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tests.machine.parts import TILE, Parts
from tests.machine.slots import read_slot
from tmapipe.isa.fragment import SlotRef
from tmapipe.model.layout import Kind
from tmapipe.plan.model import Load, Plan, RoleWarps
from tmapipe.plan.rings import Barrier

__all__ = [
    "TILE",
    "Case",
    "HandRing",
    "Parts",
    "Program",
    "by_role",
    "fill_all",
    "init",
    "leave_together",
    "program",
    "read_and_release",
]

Body = Callable[[Any], None]


@attrs.frozen
class Program:
    """One concrete run: a plan, ``entry(isa)``, the tensors' shapes, and how many clusters."""

    plan: Plan
    entry: Body
    shapes: dict[str, tuple[int, ...]]
    clusters: int = 1


@attrs.frozen
class Case:
    """One real bug. name: as in its tracker; bad: what was wrong; wanted: kinds of which the checker must report at least
    one; says: patterns, each of which some finding of a wanted kind must contain; fixed: the same program, put right;
    notes: kinds that the fixed program must get as notes."""

    name: str
    bad: tuple[Program, ...]
    wanted: frozenset[Kind]
    says: tuple[str, ...]
    fixed: tuple[Program, ...]
    notes: frozenset[Kind] = frozenset()


def init(isa: Any, fence: bool = True, cluster: bool = True) -> None:
    """All mbarriers by warp 0, then the sync that makes them visible. fence, cluster: whether the fence and the barrier of
    the whole cluster are there."""

    def body() -> None:
        for barrier in isa.plan.barriers:
            isa.mbarrier_init(barrier, barrier.count)
        if fence:
            isa.fence_mbarrier_init()

    isa.when(isa.warp == 0, body)
    if isa.plan.cluster_size > 1 and cluster:
        isa.cluster_arrive()
        isa.cluster_wait()
    else:
        isa.cta_sync()


def by_role(bodies: dict[str, Body], setup: Body = init) -> Body:
    """An entry: after *setup*, each warp runs the body of its role."""

    def entry(isa: Any) -> None:
        setup(isa)
        for role in isa.plan.roles:
            if role.first_warp <= isa.warp < role.first_warp + role.warps:
                bodies[role.name](isa)

    return entry


def program(plan: Plan, bodies: dict[str, Body], tiles: int, setup: Body = init) -> Program:
    """A program on matrices of *tiles* tiles, one above the other."""
    shapes = {part.argument: (tiles * part.tile[0], part.tile[1]) for part in plan.transfers}
    return Program(plan, by_role(bodies, setup), shapes)


class HandRing:
    """A ring of `stages` slots with its two barriers, and the arithmetic of stage and parity. Turn i is the i-th slot handed
    over since the kernel began."""

    def __init__(
        self,
        parts: Parts,
        stages: int,
        *,
        full: int = 1,
        free: int = 1,
        names: tuple[str, ...] = ("x",),
        peers: int = 1,
    ):
        self.stages = stages
        self.full: Barrier = parts.barrier("full", full, stages)
        self.free: Barrier = parts.barrier("free", free, stages)
        self.buffers = {name: parts.buffer(name, TILE, stages) for name in names}
        self.loads: dict[str, Load] = {name: parts.load(b, peers=peers) for name, b in self.buffers.items()}

    @property
    def nbytes(self) -> int:
        """Of one slot, all buffers together."""
        return sum(buffer.slot_bytes for buffer in self.buffers.values())

    def slot(self, turn: int, name: str = "x") -> SlotRef:
        return SlotRef(self.buffers[name], turn % self.stages)

    def wait_free(self, isa: Any, turn: int) -> None:
        isa.mbarrier_wait(self.free, turn % self.stages, (turn // self.stages & 1) ^ 1)

    def wait_full(self, isa: Any, turn: int) -> None:
        isa.mbarrier_wait(self.full, turn % self.stages, turn // self.stages & 1)

    def arm(self, isa: Any, turn: int, nbytes: int | None = None) -> None:
        """expect-tx of *nbytes* (None: of the whole slot), and the producer's arrival."""
        isa.mbarrier_arrive_expect_tx(self.full, turn % self.stages, self.nbytes if nbytes is None else nbytes)

    def load(self, isa: Any, turn: int, name: str = "x", tile: int | None = None, mask: int | None = None) -> None:
        """The load of tile *tile* (None: the turn's own); with *mask*, this CTA's share of it, for all CTAs of the mask."""
        at = ((turn if tile is None else tile) * TILE[0], 0)
        share = 0 if mask is None else isa.cta_rank % mask.bit_count()
        isa.tma_load(self.loads[name], turn % self.stages, at, self.full, mask, share)

    def fill(self, isa: Any, turn: int) -> None:
        """One correct turn of the producer."""
        self.wait_free(isa, turn)
        self.arm(isa, turn)
        for name in self.loads:
            self.load(isa, turn, name)

    def release(self, isa: Any, turn: int, mask: int | None = None) -> None:
        """One lane's arrival at this CTA, or at each CTA of *mask*."""
        if mask is None:
            isa.mbarrier_arrive(self.free, turn % self.stages)
        else:
            isa.mbarrier_arrive_cluster(self.free, turn % self.stages, mask)


def fill_all(ring: HandRing, tiles: int) -> Body:
    """A correct producer."""

    def body(isa: Any) -> None:
        for turn in range(tiles):
            ring.fill(isa, turn)

    return body


def leave_together(isa: Any) -> None:
    """A barrier of the whole cluster at the end, so that no CTA leaves while its peers signal it."""
    isa.cluster_arrive()
    isa.cluster_wait()


def read_and_release(ring: HandRing, role: RoleWarps, tiles: int, mask: int | None = None) -> Body:
    """A correct consumer: its threads read each slot of the ring, and one lane a warp releases it (to the CTAs of *mask*)."""

    def body(isa: Any) -> None:
        for turn in range(tiles):
            ring.wait_full(isa, turn)
            for name in ring.buffers:
                read_slot(isa, ring.slot(turn, name), role)
            isa.fence_proxy_async()
            isa.warp_sync()
            ring.release(isa, turn, mask)

    return body
