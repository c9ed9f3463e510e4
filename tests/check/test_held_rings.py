"""Rings that are filled once a CTA by threads: right ones, and mistakes beside them."""

from __future__ import annotations

import numpy as np
import pytest

import tmapipe as tp
from tests.check.test_filled import Narrowed, found
from tmapipe.check import Kind


class Doubled(tp.Schedule):
    """y = x t, of a t that a role writes once a CTA: 2 everywhere."""

    relations = (tp.Dim("n", at_most=64),)
    make, load, work = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=2)
    once = tp.BarrierRing(producer=make, consumer=work, per="cta")
    t = tp.SharedStage(tile=(4, 64), ring=once, writer=make, dtype="fp32")
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work)

    @make.before.jit
    def prepare(self, k):
        with k.once.produce() as slot:
            slot.t.write(k.full("t", 2.0))

    @make.jit
    def nothing(self, k, tile):
        pass

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * k.once.t.read()
        k.y.store(tile, values)


class Ones(tp.Schedule):
    """d = a z^T, of a z that a role writes once a CTA, and wgmma reads: its fence is needed, also where a CTA gets no tile."""

    relations = (tp.Dim("n", at_most=64), tp.Dim("k", at_most=64))
    load, make, math = tp.Role(warps=1), tp.Role(warps=4), tp.Role(warpgroups=1)
    held = tp.BarrierRing(producer=make, consumer=math, per="cta")
    z = tp.SharedStage("n k", tile=(64, 64), ring=held, writer=make, dtype="bf16")
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
    mma = tp.Wgmma(a, z)
    d = tp.TmaStoreStage("m n", source=mma)

    @make.before.jit
    def prepare(self, k):
        with k.held.produce() as slot:
            slot.z.write(k.full("z", 1.0))

    @make.jit
    def nothing(self, k, tile):
        pass

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.a.load(tile, k=0)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc, k.ring.consume() as slot:
            acc.add(slot.a, k.held.z)
        k.d.store(tile, acc)


class AtTheSecondColumn(Ones):
    """wgmma reads z in tiles of the second column alone, so not in each problem that is run."""

    relations = (tp.Dim("k", at_most=64),)
    math = Ones.math

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate(empty=True) as acc, k.ring.consume() as slot:
            if tile.n == 1:
                acc.add(slot.a, k.held.z)
        k.d.store(tile, acc)


@pytest.mark.parametrize("make", [Doubled, Ones, AtTheSecondColumn])
def test_the_right_ones_are_proved_and_nothing_is_said_of_fences(make):
    report = make().check()
    assert report.ok and report.trips == "every trip count" and not report.findings, str(report)


class OneMore(Doubled):
    @Doubled.work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * k.once.t.read()
        with k.ring.consume():
            pass
        k.y.store(tile, values)


def test_a_mistake_in_another_ring_is_not_laid_to_it():
    report = OneMore().check()
    assert {each.barrier for each in report.errors}.isdisjoint({"once.full"}), str(report)
    assert report.errors[0].kind is Kind.TRIP_COUNTS and "ring" in report.errors[0].message


class ArrivesTwice(Doubled):
    @Doubled.make.before.jit
    def prepare(self, k):
        with k.once.produce() as slot:
            slot.t.write(k.full("t", 2.0))
        k.isa.mbarrier_arrive(k.plan.barrier("once.full"), 0)


def test_a_surplus_arrival_is_said():
    first = ArrivesTwice().check().errors[0]
    assert first.kind is Kind.SURPLUS_ARRIVAL and "enters 1 slot of once and gives back 2" in first.message


class NeverWritten(Doubled):
    @Doubled.make.before.jit  # <- here
    def prepare(self, k):
        with k.once.produce():
            pass


def test_a_tile_that_is_never_written_is_said_with_the_body_that_should():
    finding = found(NeverWritten())
    assert finding.kind is Kind.UNFILLED and "make has written nothing of it" in finding.message
    assert np.isnan(NeverWritten()(np.ones((4, 64), np.float32))).all()


class InTeams(Narrowed):
    """Two teams write every other slot. few: the later tiles alone, so that a slot holds what the other team has written."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=4, teams=2), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring, dtype="fp32")
    z = tp.SharedStage(tile=(16, 64), ring=ring, writer=work, dtype="bf16")
    y = tp.TmaStoreStage("m n", source=z)
    order = tp.Turnstile(work)
    few = False

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit  # <- here
    def double(self, k, tile):
        with k.order.turn(), k.ring.consume() as slot:
            values = slot.x.read() * 2
            if not self.few or tile.m < 3:
                slot.z.write(values)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def test_teams_write_the_slots_that_they_enter():
    report, broken = InTeams().check(), InTeams()
    assert report.ok and report.trips == "every trip count", str(report)
    broken.few = True
    finding = found(broken)
    assert finding.kind is Kind.UNFILLED and "has written nothing" in finding.message
