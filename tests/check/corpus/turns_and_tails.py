"""Ring state across tiles, and what a role does after its last one."""

from __future__ import annotations

from typing import Any

import attrs

from tests.check.corpus.parts import TILE, Case, HandRing, Parts, Program, program
from tests.machine.slots import read_slot, write_slot
from tmapipe.isa.fragment import SlotRef
from tmapipe.model.layout import Kind
from tmapipe.plan.rings import Ring


def tiles_of_steps(reset: tuple[str, ...]) -> Program:
    """Three output tiles of three steps each through two slots. The roles *reset* start each tile at slot 0, first phase."""
    steps, tiles = 3, 3
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2)

    def turn(role: str, tile: int, step: int) -> int:
        return step if role in reset else tile * steps + step

    def load(isa: Any) -> None:
        for tile in range(tiles):
            for step in range(steps):
                ring.fill(isa, turn("load", tile, step))

    def read(isa: Any) -> None:
        for tile in range(tiles):
            for step in range(steps):
                now = turn("use", tile, step)
                ring.wait_full(isa, now)
                read_slot(isa, ring.slot(now), use)
                isa.fence_proxy_async()
                isa.warp_sync()
                ring.release(isa, now)

    return program(parts.plan(), {"load": load, "use": read}, tiles * steps)


# The pipeline was lowered inside a loop over output tiles: its counters start again with every tile, its barriers do not.
TILELANG_2674 = Case(
    "tilelang#2674",
    bad=(tiles_of_steps(("load", "use")), tiles_of_steps(("load",)), tiles_of_steps(("use",))),
    wanted=frozenset({Kind.DEADLOCK, Kind.LAPPED_WAIT, Kind.RACE, Kind.SURPLUS_ARRIVAL, Kind.EARLY_ARRIVAL}),
    says=(r"(full|free)\[\d\]",),
    fixed=(tiles_of_steps(()),),
)


def foreign_tail(by: str) -> Program:
    """Role cg1 writes results into a ring, which role store reads. Role *by* runs the ring's tail: it waits for every slot."""
    tiles, stages = 5, 2
    parts = Parts()
    parts.role("cg0", 1)
    cg1, store = parts.role("cg1", 1), parts.role("store", 1)
    ready, free = parts.barrier("o.ready", 1, stages), parts.barrier("o.free", 1, stages)
    results = parts.buffer("o", stages=stages)

    def tail(isa: Any, turns: int) -> None:
        for turn in range(turns, turns + stages):
            isa.mbarrier_wait(free, turn % stages, (turn // stages & 1) ^ 1)

    def produce(isa: Any) -> None:
        for turn in range(tiles):
            isa.mbarrier_wait(free, turn % stages, (turn // stages & 1) ^ 1)
            write_slot(isa, SlotRef(results, turn % stages), 0.0, cg1)
            isa.warp_sync()
            isa.mbarrier_arrive(ready, turn % stages)
        if by == "cg1":
            tail(isa, tiles)

    def other(isa: Any) -> None:
        if by == "cg0":
            tail(isa, tiles)

    def consume(isa: Any) -> None:
        for turn in range(tiles):
            isa.mbarrier_wait(ready, turn % stages, turn // stages & 1)
            read_slot(isa, SlotRef(results, turn % stages), store)
            isa.warp_sync()
            isa.mbarrier_arrive(free, turn % stages)

    made = program(parts.plan(), {"cg0": other, "cg1": produce, "store": consume}, tiles)
    ring = Ring("o", stages, (("cg1",), ("store",)), (ready, free), {}, ("cg1", "store"), {}, {})
    return attrs.evolve(made, plan=attrs.evolve(made.plan, rings=(ring,)))


# A warpgroup ran the tail of a ring that another one fills; it had never acquired or committed a slot of it.
FLASHINFER_3581 = Case(
    "flashinfer#3581",
    bad=(foreign_tail("cg0"),),
    wanted=frozenset({Kind.TAIL_OWNER}),
    says=(r"cg0", r"\bo\b"),
    fixed=(foreign_tail("cg1"), foreign_tail("nobody")),
)


def last_releases(released: bool) -> Program:
    """The loader's tail acquires every slot once more. *released*: whether the consumer gives the last ones back."""
    tiles = 5
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", 1)
    ring = HandRing(parts, 2)

    def load(isa: Any) -> None:
        for turn in range(tiles):
            ring.fill(isa, turn)
        for turn in range(tiles, tiles + ring.stages):
            ring.wait_free(isa, turn)

    def read(isa: Any) -> None:
        for turn in range(tiles):
            ring.wait_full(isa, turn)
            read_slot(isa, ring.slot(turn), use)
            isa.fence_proxy_async()
            isa.warp_sync()
            if released or turn + ring.stages < tiles:
                ring.release(isa, turn)

    return program(parts.plan(), {"load": load, "use": read}, tiles)


# A pipeline object inherited a tail that acquires every slot. Its consumer releases a slot only if it will be filled again,
# and has left.
FLASH_ATTENTION_2CTA = Case(
    "flash-attention DEBUG_2CTA",
    bad=(last_releases(released=False),),
    wanted=frozenset({Kind.DEADLOCK, Kind.MISSING_ARRIVAL}),
    says=(r"free\[\d\]",),
    fixed=(last_releases(released=True),),
)


def drain_loop(loads_past_end: bool) -> Program:
    """A loop that loads tile i + stages while it uses tile i. In its last turns there is nothing left to load."""
    tiles, stages = 5, 2
    parts = Parts()
    parts.role("copy", 1)
    role = parts.roles[0]
    full = parts.barrier("full", 1, stages)
    slots = parts.buffer("x", stages=stages)
    load = parts.load(slots)

    def body(isa: Any) -> None:
        def fill(turn: int) -> None:
            if turn < tiles or loads_past_end:
                isa.mbarrier_arrive_expect_tx(full, turn % stages, slots.slot_bytes)
                isa.tma_load(load, turn % stages, (turn * TILE[0], 0), full)

        def wait(turn: int) -> None:
            isa.mbarrier_wait(full, turn % stages, turn // stages & 1)

        for turn in range(stages):
            fill(turn)
        for turn in range(tiles):
            wait(turn)
            read_slot(isa, SlotRef(slots, turn % stages), role)
            isa.fence_proxy_async()
            isa.warp_sync()
            fill(turn + stages)
        if loads_past_end:
            for turn in range(tiles, tiles + stages):
                wait(turn)

    return program(parts.plan(), {"copy": body}, tiles)


# The last turns of the mainloop issue loads of tiles that the tensor does not have.
CUTLASS_2944 = Case(
    "cutlass#2944",
    bad=(drain_loop(loads_past_end=True),),
    wanted=frozenset({Kind.OUT_OF_RANGE}),
    says=(r"\bx\b",),
    fixed=(drain_loop(loads_past_end=False),),
)

CASES = (TILELANG_2674, FLASHINFER_3581, FLASH_ATTENTION_2CTA, CUTLASS_2944)
