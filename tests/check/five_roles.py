"""A chain of five roles, right and wrong: also timed by `benchmarks.checker`."""

from typing import Any

import tmapipe as tp


class FiveRoles(tp.Schedule):
    """Five roles hand on the slots of one ring of three."""

    a, b, c, d, e = (tp.Role(warps=1) for _ in range(5))
    ring = tp.BarrierRing(stages=3, chain=(a, b, c, d, e))
    x = tp.TmaLoadStage(tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @a.jit
    def load(self, k: Any, tile: Any) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @b.jit
    def double(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() * 2)

    @c.jit
    def increase(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() + 1)

    @d.jit
    def look(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            slot.x.read()

    @e.jit
    def store(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            slot.y.store(tile)


class FiveRolesOneSilent(FiveRoles):
    """The same, but one of them does not hand its slots on."""

    @FiveRoles.d.jit
    def look(self, k: Any, tile: Any) -> None:
        slot = k.ring.wait()
        slot.x.read()
