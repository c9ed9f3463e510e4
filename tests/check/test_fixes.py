"""What a report of a deadlock tells to change: the cause, not the arrival that is missing in the end."""

import tmapipe as tp
from tmapipe.check import Kind
from tmapipe.schedules import Copy


class FirstParity(Copy):
    load, store = Copy.load, Copy.store

    @load.jit
    def fill(self, k, tile):
        k.isa.mbarrier_wait(k.plan.barrier("ring.free"), 0, 0)
        with k.ring.produce() as slot:
            slot.x.load(tile)


class TwoRings(tp.Schedule):
    """One role takes a slot of each ring after the other, the other role in the other order, while it holds the first."""

    load, add = tp.Role(warps=1), tp.Role(warps=1)
    left = tp.BarrierRing(1, producer=load, consumer=add)
    right = tp.BarrierRing(1, producer=load, consumer=add)
    a = tp.TmaLoadStage("m n", tile=(4, 64), ring=left)
    b = tp.TmaLoadStage("m n", tile=(4, 64), ring=right)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=add)

    @load.jit
    def fill(self, k, tile):
        for _ in range(2):
            with k.left.produce() as slot:
                slot.a.load(tile)
        for _ in range(2):
            with k.right.produce() as slot:
                slot.b.load(tile)

    @add.jit
    def total(self, k, tile):
        with k.right.consume() as slot:
            values = slot.b.read()
        with k.right.consume() as slot:
            values = values + slot.b.read()
        for _ in range(2):
            with k.left.consume() as slot:
                values = values + slot.a.read()
        k.y.store(tile, values)


def fixes(schedule, kind=Kind.DEADLOCK):
    found = schedule.check().errors
    return " ".join(finding.fix for finding in found if finding.kind is kind)


def test_the_first_lap_of_free_slots():
    assert "wait for parity 1 in the first lap" in fixes(FirstParity((4, 64), stages=1, pending=0))


def test_rings_in_different_orders():
    found = fixes(TwoRings())
    assert "take the rings in one order" in found and "left.free" in found and "right.full" in found
