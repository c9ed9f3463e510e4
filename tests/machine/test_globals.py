"""Counters and tables in global memory, and what lanes tell each other: what is recorded, and what comes back."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.machine.parts import Parts, run
from tests.oracle.judged_bodies import program_of
from tests.oracle.plain import record
from tests.sweeps import examples
from tests.unit.errors import refused
from tmapipe.isa import ops as o
from tmapipe.tiles.dynamic import COUNTERS, MOST_GPCS
from tmapipe.tiles.persistent import count_entries

S = tp.schedules


def gemm(order):
    return S.Gemm((64, 64, 16), (1, 1), 2, tiles=order, epilogue=tp.epilogue.Epilogue(stages=1))


def recorded(schedule, tiles, clusters):
    """By cluster, what its warps do for so many tiles, one program after another."""
    shapes = {"a": (1, 64, 24), "b": (1, 64 * tiles, 24), "d": (1, 64, 64 * tiles)}
    plan, program = schedule.plan({}), program_of(schedule)
    programs = [record(plan, program, shapes, c, clusters) for c in range(clusters)]
    return [[op for program in programs for op in program] for programs in programs]


def added(clusters):
    """By counter, what the additions of all clusters found there."""
    found = defaultdict(list)
    for ops in clusters:
        for op in ops:
            if type(op) is o.CounterAdd:
                found[op.counter].append(op.before)
    return {counter: sorted(before) for counter, before in found.items()}


@pytest.mark.parametrize("clusters", [1, 2, 3])
@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_the_dynamic_order_counts_each_number_once_and_resets(tiles, clusters):
    programs = recorded(gemm(tp.tiles.DynamicTiles()), tiles, clusters)
    assert added(programs) == {0: list(range(tiles))}  # as many as there are tiles: the first of a cluster is its own
    last = [i for i, ops in enumerate(programs) if tiles - 1 in added([ops]).get(0, ())]
    resets = [[op for op in ops if type(op) is o.CounterStore] for ops in programs]
    assert resets == [[o.CounterStore(0, 0)] if [i] == last else [] for i in range(clusters)]


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_by_gpc_each_cluster_claims_once_and_the_last_resets(clusters):
    programs = recorded(gemm(tp.tiles.GpcTiles()), 4, clusters)
    assert added(programs) == {0: list(range(clusters)), MOST_GPCS: list(range(clusters))}
    resets = [[op for op in ops if type(op) is o.CounterStore] for ops in programs]
    assert resets == [[]] * (clusters - 1) + [[o.CounterStore(i, 0) for i in range(COUNTERS)]]
    for kind in (o.ReadSmid, o.Shuffle):
        assert [sum(type(op) is kind for op in ops) for ops in programs] == [1] * clusters


def test_by_gpc_a_byte_counts_the_clusters():
    schedule = gemm(tp.tiles.GpcTiles())
    shapes = {"a": (1, 64, 16), "b": (1, 64, 16), "d": (1, 64, 64)}
    entry = program_of(schedule)
    refused(record, schedule.plan({}), entry, shapes, 0, 256, argument="clusters", rule="is at most 255")


# ---- tables -----------------------------------------------------------------------------------------------------------


def look(entries, body, data=True):
    """What *body* answers in a warp that has a table "ends" of these entries, and the operations that it takes."""
    parts, found, done = Parts(), [], []
    parts.role("one", 1)
    ends = np.array(entries, np.int32)

    def observer(agent, op, facts):
        if type(op) is not o.Exit:
            done.append(op)
            assert facts is None

    if data:
        run(parts.plan(), lambda isa: found.append(body(isa)), {"ends": ends}, observer=observer)
    else:
        record(parts.plan(), lambda isa: found.append(body(isa)), {"ends": ends})
    return found[0], done


@settings(max_examples=examples(30))
@given(entries=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=100), data=st.data())
def test_entries_are_counted_32_at_a_time(entries, data):
    count, bound = data.draw(st.integers(0, len(entries))), data.draw(st.sampled_from([0, *entries]))
    found, ops = look(entries, lambda isa: count_entries(isa, "ends", count, lambda i, e: e + i < bound, 7))
    want = [e + i < bound for i, e in enumerate(entries[:count])]
    assert found == sum(want)
    firsts = range(0, count, 32)
    pairs = [
        (o.TableLoad("ends", tuple(range(i, min(i + 32, count)))), o.Ballot(sum(want[i : i + 32]))) for i in firsts
    ]
    assert ops == [op for pair in pairs for op in pair]
    nothing, _ = look(entries, lambda isa: count_entries(isa, "ends", count, lambda i, e: e == 7, 7), data=False)
    assert nothing == count, "without data, each entry is what the caller says"


def test_one_entry_in_all_lanes():
    entries = [5, -3, 2**31 - 1]
    for i, entry in enumerate(entries):
        assert look(entries, lambda isa, i=i: isa.load_entry("ends", i, 9)) == (entry, [o.TableLoad("ends", (i,))])
        assert look(entries, lambda isa, i=i: isa.load_entry("ends", i, 9), data=False)[0] == 9


def test_lane_0():
    def body(isa):
        taken = isa.cells(-1)

        def take():
            taken[0] = isa.atomic_add(3, lambda: 8)

        isa.lane_0(take)
        isa.lane_0(lambda: isa.store_counter(3, 0), when=taken[0] == 8)
        isa.lane_0(lambda: isa.store_counter(4, 0), when=taken[0] == 9)
        return isa.shuffle(taken[0])

    found, ops = look([0], body)
    assert found == 8 and ops == [o.CounterAdd(3, 8), o.CounterStore(3, 0), o.Shuffle()]
