"""What run-time loops carry: fragments and numbers keep their form, or the model, the check and compiling say so."""

import numpy as np
import pytest

import tmapipe as tp
from tests.sweeps import sample


class Stack(tp.Schedule):
    """Of what is made of the matrices of a stack."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(4, producer=load, consumer=work)
    x = tp.TmaLoadStage("s m n", tile=(8, 256), ring=ring)
    d = tp.TmaStoreStage("m n", tile=(8, 256), role=work)

    @load.jit
    def fill(self, k, tile):
        for s in range(k.steps("x", "s")):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=s)


def maxima(begin):
    """d[m, n] = max over s of x[s, m, n]. begin: what the maximum begins with, made of k."""

    class Maxima(Stack):
        @Stack.work.jit
        def greatest(self, k, tile):
            top = begin(k)
            for _ in range(k.steps("x", "s")):
                with k.ring.consume() as slot:
                    top = tp.math.maximum(top, slot.x.read())
            k.d.store(tile, top)

    return Maxima()


class Counted(Stack):
    """A number becomes one of another kind."""

    @Stack.work.jit
    def count(self, k, tile):
        turns = 0
        for _ in range(k.steps("x", "s")):
            with k.ring.consume() as slot:
                slot.x.read()
            turns = turns + 0.5
        k.d.store(tile, k.full("x", 0.0) + turns)


class Last(Stack):
    """A name that a loop assigns first is used after it."""

    @Stack.work.jit
    def keep(self, k, tile):
        for _ in range(k.steps("x", "s")):
            with k.ring.consume() as slot:
                last = slot.x.read()
        k.d.store(tile, last)


class Branch(Stack):
    """A number becomes a fragment in a branch."""

    @Stack.work.jit
    def choose(self, k, tile):
        last = 0.0
        for _ in range(k.steps("x", "s")):
            with k.ring.consume() as slot:
                slot.x.read()
        if tile.m > 0:
            last = k.full("x", 1.0)
        k.d.store(tile, k.full("x", 1.0) + last)


def test_a_fragment_is_carried():
    assert maxima(lambda k: k.full("x", float("-inf"))).compile(arch="sm_90a").resources.spill_bytes == 0


def refused(schedule, name):
    """By the model, the check and the compiler."""
    for call in (lambda: schedule(X), schedule.check, lambda: schedule.compile(arch="sm_90a")):
        with pytest.raises(tp.errors.ScopeError, match=rf"(?s)`{name}`.*k\.full") as error:
            call()
        assert "test_carried.py" in str(error.value)


X = np.zeros((2, 8, 256), np.float32)


@pytest.mark.parametrize("begin", [lambda k: -1e30, lambda k: k.full("x", 0), lambda k: k.full("x", 0.0, "rows")])
def test_what_becomes_a_fragment_of_another_form_is_refused(begin):
    """CuTe DSL fixes the types of what a loop carries where it begins."""
    refused(maxima(begin), "top")


def test_a_number_that_becomes_another_kind_is_refused():
    for call in (lambda: Counted()(X), Counted().check, lambda: Counted().compile(arch="sm_90a")):
        with pytest.raises(tp.errors.ScopeError, match=r"`turns`.*test_carried\.py"):
            call()


def test_what_a_loop_assigns_first_is_unknown_after_it():
    refused(Last(), "last")


def test_what_is_seen_when_compiling_alone():
    with pytest.raises(tp.errors.ScopeError, match=r"(?s)`last`.*test_carried.py:\d+.*before the loop or branch"):
        Branch().compile(arch="sm_90a")


def test_names_that_are_assigned_again_after_a_loop():
    class Again(Stack):
        @Stack.work.jit
        def add(self, k, tile):
            total = k.full("x", 0.0)
            for i in range(k.steps("x", "s")):
                with k.ring.consume() as slot:
                    values = slot.x.read() + i
                total = total + values
            for i in range(2):
                values = total + i
                total = values
            values = total * 2
            k.d.store(tile, values)

    assert (Again()(X) == 4).all() and Again().check().ok and Again().compile(arch="sm_90a")


def test_ranges_are_ranges_outside_of_loops():
    class Backwards(Stack):
        @Stack.work.jit
        def add(self, k, tile):
            order = range(3)
            total = k.full("x", 0.0) + len(order) + order[2] + sum(reversed(order)) + (1 in order)
            for _ in range(k.steps("x", "s")):
                with k.ring.consume() as slot:
                    total = total + slot.x.read()
            k.d.store(tile, total)

    assert (Backwards()(X) == 9).all()


def optional(scaled):
    """Sums over a stack, times w and 2 if *scaled*, else plus 1: options that Python knows."""
    factor = 2 if scaled else None

    class Optional(Stack):
        if scaled:
            w = tp.TmaLoadStage("n", tile=(256,), ring=Stack.ring)

        @Stack.load.jit
        def fill(self, k, tile):
            for s in range(k.steps("x", "s")):
                with k.ring.produce() as slot:
                    slot.x.load(tile, s=s)
                    if scaled:
                        slot.w.load(tile)

        @Stack.work.jit
        def add(self, k, tile):
            total = k.full("x", 0.0)
            for _ in range(k.steps("x", "s")):
                with k.ring.consume() as slot:
                    if scaled:
                        total = total + slot.x.read() * slot.w.read(columns_of=total)
                    else:
                        total = total + slot.x.read()
            if factor is not None:
                total = total * factor
            elif not self.cluster:
                total = total + 1
            else:
                total = 0.0
            k.d.store(tile, total)

    return Optional()


@pytest.mark.parametrize("scaled", [False, True])
def test_a_branch_that_an_option_excludes_is_not_traced(scaled):
    """What it would use need not be declared, and what it assigns may have another form."""
    schedule, x = optional(scaled), np.arange(4096, dtype=np.float32).reshape(2, 8, 256) % 7
    w = {"w": np.arange(256, dtype=np.float32) % 3} if scaled else {}
    assert (schedule(x=x, **w) == (2 * x.sum(0) * w["w"] if scaled else x.sum(0) + 1)).all() and schedule.check().ok
    assert schedule.compile(dict.fromkeys(("x", "d", *w), "fp32"), arch="sm_90a").resources.spill_bytes == 0


@pytest.mark.parametrize("option", sample(range(4), 2))
def test_which_branch_of_several_is_traced(option):
    """One name or several are assigned, in some of the branches."""

    class Chosen(Stack):
        @Stack.work.jit
        def add(self, k, tile):
            total = k.full("x", 0.0)
            for _ in range(k.steps("x", "s")):
                with k.ring.consume() as slot:
                    total = total + slot.x.read()
            one, two = [0], 0
            if option == 0:
                one = [1]
            elif option == 1:
                one = [2]
            elif option == 2:
                pass
            else:
                one = [3]
            if option == 0:
                one, two = [*one, 4], 4
            elif option == 3:
                two = 5
            if option == 2:
                two = 6
            if tile.m > 0:
                if option:
                    total = total + 1
            assert (one, two) == (([1, 4], 4), ([2], 0), ([0], 6), ([3], 5))[option]
            k.d.store(tile, total)

    Chosen().compile({"x": "fp32", "d": "fp32"}, arch="sm_90a")
