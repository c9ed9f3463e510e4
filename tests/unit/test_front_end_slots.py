"""Open slots, their tiles and the protocol's facts where paths meet: operations of a trace are those of the body as it is."""

import collections
from typing import NamedTuple

import pytest

import tmapipe as tp
from tests.oracle.plain import record
from tmapipe.kernel import kernel_main
from tmapipe.program import replay, trace


def sums(body, stages=6, fill=None):
    """A schedule whose consumer does *body*."""

    class Sums(tp.Schedule):
        over = "m"
        load, work = tp.Role(warps=1), tp.Role(warps=4)
        ring = tp.BarrierRing(stages, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(32, 64), ring=ring, dtype="fp32")
        y = tp.TmaStoreStage("m", tile=(32,), role=work, dtype="fp32")

        def produced(self, k, tile):
            for n in range(k.steps("x", "n")):
                with k.ring.produce() as slot:
                    slot.x.load(tile, n=n)

        fills = load.jit(fill or produced)
        works = work.jit(body)
        del produced

    return Sums()


def same_operations(schedule, columns=(64, 65, 129, 192, 257, 640)):
    plan = schedule.plan()
    program = trace(schedule, plan)
    for n in columns:
        for rows in (32, 100):
            shapes = {"x": (rows, n), "y": (rows,)}
            wanted = record(plan, lambda isa: kernel_main(isa, schedule), shapes, 0, 1)
            found = record(plan, lambda isa: replay(program, isa), shapes, 0, 1)
            assert found == wanted, n


def total(k, slot):
    return tp.math.row_sum(slot.x.read())


def a_slot_that_iterations_hand_on(self, k, tile):
    slot = k.ring.wait()
    result = k.full("x", 0.0, along="rows")
    for _ in range(k.steps("x", "n") - 1):
        following = k.ring.wait()
        result = result + total(k, slot)
        k.ring.release(slot)
        slot = following
    result = result + total(k, slot)
    k.ring.release(slot)
    k.y.store(tile, result)


def a_deque_of_held_slots(self, k, tile):
    held = collections.deque()
    result = k.full("x", 0.0, along="rows")
    held.append(k.ring.wait())
    for _ in range(k.steps("x", "n") - 1):
        held.append(k.ring.wait())
        slot = held.popleft()
        result = result + total(k, slot)
        k.ring.release(slot)
    result = result + total(k, held[0])
    k.ring.release(held.pop())
    k.y.store(tile, result)


def tiles_of_slots(self, k, tile):
    slot = k.ring.wait()
    part = slot.x
    result = k.full("x", 0.0, along="rows")
    for _ in range(k.steps("x", "n") - 1):
        following = k.ring.wait()
        result = result + tp.math.row_sum(part.read())
        k.ring.release(slot)
        slot, part = following, following.x
    result = result + tp.math.row_sum(part.read())
    k.ring.release(slot)
    k.y.store(tile, result)


class Pair(NamedTuple):
    slot: object
    result: object


def a_named_tuple(self, k, tile):
    pair = Pair(k.ring.wait(), k.full("x", 0.0, along="rows"))
    for _ in range(k.steps("x", "n") - 1):
        following = k.ring.wait()
        result = pair.result + total(k, pair.slot)
        k.ring.release(pair.slot)
        pair = Pair(following, result)
    result = pair.result + total(k, pair.slot)
    k.ring.release(pair.slot)
    k.y.store(tile, result)


def a_slot_of_either_branch(self, k, tile):
    result = k.full("x", 0.0, along="rows")
    for n in range(k.steps("x", "n")):
        if n == 1:
            slot = k.ring.wait()
            result = result + 1.0
        else:
            slot = k.ring.wait()
        result = result + total(k, slot)
        k.ring.release(slot)
    k.y.store(tile, result)


def a_rare_row(self, k, tile):
    result = k.full("x", 0.0, along="rows")

    def some(result):
        n = 0
        while n < k.steps("x", "n"):
            n += 1
            with k.ring.consume() as slot:
                if n % 2 == 1:
                    continue
                result = result + total(k, slot)
        return result

    k.y.store(tile, some(result))


def a_skipped_end(self, k, tile):
    result = k.full("x", 0.0, along="rows")

    def one(n):
        with k.ring.consume() as slot:
            if n == 2:
                return result
            return result + total(k, slot)

    for n in range(k.steps("x", "n")):
        result = one(n)
    if tile.m == 0 and k.steps("x", "n") > 1:
        k.y.store(tile, result)
    else:
        k.y.store(tile, result + 1.0)


def an_outer_slot_that_a_loop_reads(self, k, tile):
    with k.ring.consume() as slot:
        result = total(k, slot)
        for _ in range(k.steps("x", "n") - 1):
            with k.ring.consume() as other:
                result = result + total(k, slot) + total(k, other)
    k.y.store(tile, result)


BODIES = (
    a_slot_that_iterations_hand_on,
    a_deque_of_held_slots,
    tiles_of_slots,
    a_named_tuple,
    a_slot_of_either_branch,
    a_rare_row,
    a_skipped_end,
    an_outer_slot_that_a_loop_reads,
)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_the_operations_are_those_of_the_body(body):
    same_operations(sums(body))


def refused(body):
    with pytest.raises(tp.errors.ScopeError) as caught:
        trace(sums(body))
    return str(caught.value)


def test_a_slot_that_is_left_on_one_path_is_not_left_again():
    def body(self, k, tile):
        slot = k.ring.wait()
        if tile.m == 1:
            k.ring.release(slot)
        k.ring.release(slot)

    assert "whether a slot or an accumulator is open" in refused(body)


def test_a_slot_that_a_loop_leaves_is_not_left_in_the_next_iteration():
    def body(self, k, tile):
        slot = k.ring.wait()
        for _ in range(k.steps("x", "n")):
            k.ring.release(slot)

    assert "whether a slot or an accumulator is open" in refused(body)


def test_deques_that_grow():
    def body(self, k, tile):
        held = collections.deque()
        for _ in range(k.steps("x", "n")):
            held.append(k.ring.wait())

    said = refused(body)
    assert "has 0 elements where an iteration begins, and 1 where it ends" in said
