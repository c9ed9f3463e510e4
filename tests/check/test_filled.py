"""Tiles that threads write are read in slots in which they have been written, all of them."""

from __future__ import annotations

import inspect

import pytest

import tmapipe as tp
from tmapipe.check import Kind


class Narrowed(tp.Schedule):
    """y = 2 x in bf16, by way of a tile that threads write."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=4), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring, dtype="fp32")
    z = tp.SharedStage(tile=(16, 64), ring=ring, writer=work, dtype="bf16")
    y = tp.TmaStoreStage("m n", source=z)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            for part in (0, 1):  # known numbers: a part to write is no number of the kernel
                slot.z.write(slot.x.read(tile=(8, 64), at=(8 * part, 0)) * 2, at=(8 * part, 0))

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Never(Narrowed):
    @Narrowed.work.jit  # <- here
    def double(self, k, tile):
        with k.ring.consume() as slot:
            slot.x.read()


class Half(Narrowed):
    @Narrowed.work.jit  # <- here
    def double(self, k, tile):
        with k.ring.consume() as slot:
            slot.z.write(slot.x.read(tile=(8, 64), at=(0, 0)) * 2, at=(0, 0))


class NotAtTheEdge(Narrowed):
    @Narrowed.work.jit  # <- here
    def double(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * 2
            if tile.n > 0:
                slot.z.write(values)


def found(schedule):
    """The one error, which begins with the marked line of the schedule's class."""
    report = schedule.check()
    (finding,) = report.errors
    lines, first = inspect.getsourcelines(type(schedule))
    marked = [first + i for i, line in enumerate(lines) if line.rstrip().endswith("# <- here")]
    assert int(finding.where[0].rpartition(":")[2]) in marked, str(report)
    return finding


@pytest.mark.parametrize(
    ("broken", "said"), [(Never, "has written nothing"), (Half, "4 of 8 parts"), (NotAtTheEdge, "has written nothing")]
)
def test_a_tile_that_is_read_has_been_written(broken, said):
    finding = found(broken())
    assert (
        finding.kind is Kind.UNFILLED
        and said in finding.message
        and finding.slot == "z[0]"
        and "slot.z.write(...)" in finding.fix
    )


def test_a_tile_that_is_written_in_parts_is_right():
    report = Narrowed().check()
    assert report.ok and report.trips == "every trip count", str(report)


class Passed(tp.Schedule):
    """y = 2 x, through scratch."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring, dtype="fp32")
    between = tp.Scratch(work, tile=(16, 64), dtype="fp32", copies=2)
    y = tp.ThreadStoreStage("m n", tile=(16, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            k.between.write(slot.x.read(tile=(8, 64), at=(0, 0)), at=(0, 0))
            k.between.write(slot.x.read(tile=(8, 64), at=(8, 0)), at=(8, 0))
        k.sync()
        k.y.store(tile, k.between.read() * 2)
        k.sync()


class OneHalf(Passed):
    """The lower half of the scratch is read, and was never written."""

    @Passed.work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            k.between.write(slot.x.read(tile=(8, 64), at=(0, 0)), at=(0, 0))
        k.sync()
        k.y.store(tile, k.between.read())  # <- here
        k.sync()


class OtherCopy(Passed):
    @Passed.work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            k.between.write(slot.x.read())
        k.sync()
        k.y.store(tile, k.between.copy(1).read())  # <- here
        k.sync()


class TooEarly(Passed):
    """The first tile reads what only later ones find there."""

    @Passed.work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values + k.between.read())  # <- here
        k.sync()
        k.between.write(values)
        k.sync()


@pytest.mark.parametrize(
    ("broken", "said"), [(OneHalf, "4 of 8 parts"), (OtherCopy, "written nothing"), (TooEarly, "written nothing")]
)
def test_scratch_that_is_read_has_been_written(broken, said):
    finding = found(broken())
    assert finding.kind is Kind.UNFILLED and said in finding.message and "k.between.write(...)" in finding.fix


def test_scratch_that_is_written_in_parts_or_in_turn_is_right():
    class OnlyHalf(Passed):
        y = tp.ThreadStoreStage("m n", tile=(8, 64), role=Passed.work)

        @Passed.load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.m * 8, tile.n * 64)

        @Passed.work.jit
        def double(self, k, tile):
            with k.ring.consume() as slot:
                k.between.write(slot.x.read(tile=(8, 64), at=(0, 0)), at=(8, 0))
            k.sync()
            k.y.store(tile, k.between.read(tile=(8, 64), at=(8, 0)))
            k.sync()

    class InTurn(Passed):
        over = "m"

        @Passed.load.jit
        def fill(self, k, tile):
            for n in range(k.steps("x", "n")):
                with k.ring.produce() as slot:
                    slot.x.load(tile, n=n)

        @Passed.work.jit
        def double(self, k, tile):
            i = 0
            for n in range(k.steps("x", "n")):
                with k.ring.consume() as slot:
                    k.between.copy(i).write(slot.x.read())
                k.sync()
                k.y.store_from(tile.m * 16, n * 64, values=k.between.copy(i).read() * 2)
                i = i ^ 1

    for right in (Passed(), OnlyHalf(), InTurn()):
        report = right.check()
        assert report.ok and report.trips == "every trip count", str(report)
