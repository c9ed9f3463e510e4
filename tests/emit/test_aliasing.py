"""Ring state survives every way in which a body can reach it: through `self`, a dict, a list, a closure, a second name, in a
called function.

Loops carry the values of `Isa.cells`, whoever holds them. Here each way is compiled, executed and compared with the CPU
backend, where Python's own semantics hold. That the comparison would notice is shown with lists in the place of cells.
"""

import functools
import itertools

import cutlass.cute as cute
import pytest

import tmapipe as tp
from tests.emit.kernels import Kernel, build
from tests.emit.lower import lower
from tests.oracle.ptx_execution import Execution
from tests.oracle.ptx_launch import Launch
from tests.sweeps import ALL, sample
from tests.unit.fake_isa import record
from tmapipe.isa.fragment import Carried
from tmapipe.program.isa import TracingIsa


class Plain(tp.Schedule):
    """Both bodies take a slot a tile of n in a loop, then one more: the ring's own name throughout."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        for n in range(k.steps("x", "n")):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=n)
        with k.ring.produce() as slot:
            slot.x.load(tile, n=0)

    @store.jit
    def drain(self, k, tile):
        for n in range(k.steps("x", "n")):
            with k.ring.consume() as slot:
                slot.y.store(tile, n=n)
        with k.ring.consume() as slot:
            slot.y.store(tile, n=0)


load, store = Plain.load, Plain.store


class LocalName(Plain):
    @load.jit
    def fill(self, k, tile):
        ring = k.ring
        for n in range(k.steps("x", "n")):
            with ring.produce() as slot:
                slot.x.load(tile, n=n)
        with ring.produce() as slot:
            slot.x.load(tile, n=0)

    @store.jit
    def drain(self, k, tile):
        ring = k.ring
        for n in range(k.steps("x", "n")):
            with ring.consume() as slot:
                slot.y.store(tile, n=n)
        with ring.consume() as slot:
            slot.y.store(tile, n=0)


class SecondName(Plain):
    """Advanced under one name, used under the other."""

    @load.jit
    def fill(self, k, tile):
        ring = k.ring
        other = ring
        for n in range(k.steps("x", "n")):
            with ring.produce() as slot:
                slot.x.load(tile, n=n)
        with other.produce() as slot:
            slot.x.load(tile, n=0)

    @store.jit
    def drain(self, k, tile):
        ring = k.ring
        other = ring
        for n in range(k.steps("x", "n")):
            with ring.consume() as slot:
                slot.y.store(tile, n=n)
        with other.consume() as slot:
            slot.y.store(tile, n=0)


class InDict(Plain):
    @load.jit
    def fill(self, k, tile):
        rings = {"one": k.ring}
        for n in range(k.steps("x", "n")):
            with rings["one"].produce() as slot:
                slot.x.load(tile, n=n)
        with rings["one"].produce() as slot:
            slot.x.load(tile, n=0)

    @store.jit
    def drain(self, k, tile):
        rings = {"one": k.ring}
        for n in range(k.steps("x", "n")):
            with rings["one"].consume() as slot:
                slot.y.store(tile, n=n)
        with rings["one"].consume() as slot:
            slot.y.store(tile, n=0)


class InList(Plain):
    @load.jit
    def fill(self, k, tile):
        rings = [k.ring]
        for n in range(k.steps("x", "n")):
            for ring in rings:
                with ring.produce() as slot:
                    slot.x.load(tile, n=n)
        with rings[0].produce() as slot:
            slot.x.load(tile, n=0)

    @store.jit
    def drain(self, k, tile):
        rings = [k.ring]
        for n in range(k.steps("x", "n")):
            for ring in rings:
                with ring.consume() as slot:
                    slot.y.store(tile, n=n)
        with rings[0].consume() as slot:
            slot.y.store(tile, n=0)


class InClosure(Plain):
    """A closure over the ring, run by a loop that stands elsewhere."""

    @load.jit
    def fill(self, k, tile):
        ring = k.ring

        def one(n):
            with ring.produce() as slot:
                slot.x.load(tile, n=n)

        k.isa.loop(k.steps("x", "n"), one)
        one(0)

    @store.jit
    def drain(self, k, tile):
        ring = k.ring

        def one(n):
            with ring.consume() as slot:
                slot.y.store(tile, n=n)

        k.isa.loop(k.steps("x", "n"), one)
        one(0)


class CalledClosure(Plain):
    """A closure over the ring, called in a loop of the body itself."""

    @load.jit
    def fill(self, k, tile):
        ring = k.ring

        def one(n):
            with ring.produce() as slot:
                slot.x.load(tile, n=n)

        for n in range(k.steps("x", "n")):
            one(n)
        one(0)

    @store.jit
    def drain(self, k, tile):
        ring = k.ring

        def one(n):
            with ring.consume() as slot:
                slot.y.store(tile, n=n)

        for n in range(k.steps("x", "n")):
            one(n)
        one(0)


class Holder(Carried):
    """Something of the user's that keeps a ring."""

    def __init__(self, ring):
        self.ring = ring

    @cute.jit
    def fill(self, k, tile):
        for n in range(k.steps("x", "n")):
            with self.ring.produce() as slot:
                slot.x.load(tile, n=n)

    @cute.jit
    def drain(self, k, tile):
        for n in range(k.steps("x", "n")):
            with self.ring.consume() as slot:
                slot.y.store(tile, n=n)


class ThroughSelf(Plain):
    @load.jit
    def fill(self, k, tile):
        Holder(k.ring).fill(k, tile)
        with k.ring.produce() as slot:
            slot.x.load(tile, n=0)

    @store.jit
    def drain(self, k, tile):
        Holder(k.ring).drain(k, tile)
        with k.ring.consume() as slot:
            slot.y.store(tile, n=0)


@cute.jit
def fill_one(ring, tile, n):
    with ring.produce() as slot:
        slot.x.load(tile, n=n)


@cute.jit
def drain_one(ring, tile, n):
    with ring.consume() as slot:
        slot.y.store(tile, n=n)


class InCalledFunction(Plain):
    @load.jit
    def fill(self, k, tile):
        ring = k.ring
        for n in range(k.steps("x", "n")):
            fill_one(ring, tile, n)
        fill_one(ring, tile, 0)

    @store.jit
    def drain(self, k, tile):
        ring = k.ring
        for n in range(k.steps("x", "n")):
            drain_one(ring, tile, n)
        drain_one(ring, tile, 0)


class ByEvents(Plain):
    """acquire and commit, wait and release."""

    @load.jit
    def fill(self, k, tile):
        for n in range(k.steps("x", "n")):
            slot = k.ring.acquire()
            slot.x.load(tile, n=n)
            k.ring.commit(slot)
        slot = k.ring.acquire()
        slot.x.load(tile, n=0)
        k.ring.commit(slot)

    @store.jit
    def drain(self, k, tile):
        for n in range(k.steps("x", "n")):
            slot = k.ring.wait()
            slot.y.store(tile, n=n)
            k.ring.release(slot)
        slot = k.ring.wait()
        slot.y.store(tile, n=0)
        k.ring.release(slot)


class InWhile(Plain):
    @load.jit
    def fill(self, k, tile):
        n = k.steps("x", "n") - k.steps("x", "n")
        while n < k.steps("x", "n"):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=n)
            n = n + 1
        with k.ring.produce() as slot:
            slot.x.load(tile, n=0)

    @store.jit
    def drain(self, k, tile):
        n = k.steps("x", "n") - k.steps("x", "n")
        while n < k.steps("x", "n"):
            with k.ring.consume() as slot:
                slot.y.store(tile, n=n)
            n = n + 1
        with k.ring.consume() as slot:
            slot.y.store(tile, n=0)


#: Other ways to write `Plain`: its events are expected of each.
SAME = [
    LocalName,
    SecondName,
    InDict,
    InList,
    InClosure,
    ThroughSelf,
    InCalledFunction,
    ByEvents,
    CalledClosure,
    InWhile,
]


class TwoScopes(Plain):
    """Two `with` blocks in one loop, of one name for the slot."""

    @load.jit
    def fill(self, k, tile):
        for n in range(k.steps("x", "n")):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=n)
            with k.ring.produce() as slot:
                slot.x.load(tile, n=n + 1)

    @store.jit
    def drain(self, k, tile):
        for n in range(k.steps("x", "n")):
            with k.ring.consume() as slot:
                slot.y.store(tile, n=n)
            with k.ring.consume() as slot:
                slot.y.store(tile, n=n + 1)


class InBranch(Plain):
    """A slot in every other trip only."""

    @load.jit
    def fill(self, k, tile):
        for n in range(k.steps("x", "n")):
            if n % 2 == 1:
                with k.ring.produce() as slot:
                    slot.x.load(tile, n=n)

    @store.jit
    def drain(self, k, tile):
        for n in range(k.steps("x", "n")):
            if n % 2 == 1:
                with k.ring.consume() as slot:
                    slot.y.store(tile, n=n)


class InBothBranches(Plain):
    """One slot in one branch, two in the other, one after."""

    @load.jit
    def fill(self, k, tile):
        for n in range(k.steps("x", "n")):
            if n == 1:
                with k.ring.produce() as slot:
                    slot.x.load(tile, n=n)
            else:
                with k.ring.produce() as slot:
                    slot.x.load(tile, n=n)
                with k.ring.produce() as slot:
                    slot.x.load(tile, n=n + 1)
            with k.ring.produce() as slot:
                slot.x.load(tile, n=n + 2)

    @store.jit
    def drain(self, k, tile):
        for n in range(k.steps("x", "n")):
            if n == 1:
                with k.ring.consume() as slot:
                    slot.y.store(tile, n=n)
            else:
                with k.ring.consume() as slot:
                    slot.y.store(tile, n=n)
                with k.ring.consume() as slot:
                    slot.y.store(tile, n=n + 1)
            with k.ring.consume() as slot:
                slot.y.store(tile, n=n + 2)


class NestedScopes(Plain):
    """The next slot entered before the last is left, in nested loops."""

    @load.jit
    def fill(self, k, tile):
        for n in range(k.steps("x", "n")):
            for _ in range(n):
                with k.ring.produce() as slot:
                    slot.x.load(tile, n=n)
                    with k.ring.produce() as following:
                        following.x.load(tile, n=n + 1)

    @store.jit
    def drain(self, k, tile):
        for n in range(k.steps("x", "n")):
            for _ in range(n):
                with k.ring.consume() as slot:
                    slot.y.store(tile, n=n)
                with k.ring.consume() as slot:
                    slot.y.store(tile, n=n + 1)


def halves(filling, draining):
    """One schedule of the one's load and the other's store."""
    name = f"{filling.__name__} and {draining.__name__}"
    return type(name, (Plain,), {"fill": filling.fill, "drain": draining.drain})


#: For one compilation instead of two: nothing is shared by the roles.
TOGETHER = [
    InWhile,
    *(halves(*pair) for pair in itertools.zip_longest(SAME[:-1:2], SAME[1:-1:2], fillvalue=CalledClosure)),
]

#: Bodies with a meaning of their own: what they do in plain Python is expected.
OTHER = [TwoScopes, InBranch, InBothBranches, NestedScopes]


def compiled(schedule):
    return build(Kernel(schedule, {}, {"m": 20, "n": 64}))


def mismatch(kernel, expected):
    """The first difference between the compiled kernel and the CPU backend of *expected*, or None."""
    for tiles in (0, 1, 2, 3, 7):
        extents = {"x": (20, 64 * tiles), "y": (20, 64)}
        launch = Launch(extents)
        for warp in (0, 1):
            wanted = lower(record(expected(), kernel.plan, warp, extents), kernel.plan, launch, warp)
            found = Execution(kernel.ptx, kernel.schedule, launch, warp).run(20_000)
            if found != wanted:
                return tiles, warp, [pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]][:1]
    return None


@functools.cache
def plain_opcodes():
    return [i.opcode for i in compiled(Plain).ptx.instructions]


@pytest.mark.parametrize("schedule", SAME if ALL else TOGETHER, ids=lambda schedule: schedule.__name__)
def test_another_way_to_reach_the_ring(schedule):
    """State in cells costs nothing however it is reached: the same instructions, none of them of local memory."""
    kernel = compiled(schedule)
    assert mismatch(kernel, Plain) is None
    if schedule is not InWhile:  # another loop
        assert [i.opcode for i in kernel.ptx.instructions] == plain_opcodes()
    assert kernel.compiled.resources.spill_bytes == 0


@pytest.mark.parametrize("schedule", OTHER)
def test_scopes_in_control_flow(schedule):
    assert mismatch(compiled(schedule), schedule) is None


@pytest.mark.parametrize("schedule", sample([Plain, *SAME, *OTHER], 8, first=2))
def test_state_that_nothing_carries_would_be_wrong(schedule, monkeypatch):
    """Of a loop that is traced once, the state after a turn is what it begins with: every turn takes the same slot."""
    monkeypatch.setattr(TracingIsa, "cells", lambda self, *initial, **named: list(initial))
    assert mismatch(compiled(schedule), schedule if schedule in OTHER else Plain) is not None
