"""The transition system by itself: searched in all interleavings, copied, observed, recorded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machine.parts import TILE, CopyRing, Parts, init, ramp, run, run_recorded
from tests.machine.slots import write_slot
from tests.machine.test_tma import Pair
from tests.machine.test_wgmma import SmallGemm
from tests.oracle.plain import record
from tests.oracle.states import snapshot, steps
from tests.sweeps import examples
from tmapipe.errors import HazardError, ScopeError
from tmapipe.isa import ops as o
from tmapipe.model import POLICIES, Layout, Scheduler, State
from tmapipe.plan.thread_layout import vectors_of


def explore(plan, entry, shapes, limit: int = 200_000) -> tuple[set[str], int]:
    """All interleavings of the recorded programs: rules broken, "deadlock" if some order ends so, and the states seen."""
    programs = record(plan, entry, shapes)
    first = (tuple([0] * len(programs)), State(Layout(plan)))
    seen, stack, found = set(), [first], set()
    while stack:
        places, state = stack.pop()
        key = (places, snapshot(state))
        if key in seen:
            continue
        seen.add(key)
        assert len(seen) < limit
        moves = [
            (agent, programs[agent][place])
            for agent, place in enumerate(places)
            if place < len(programs[agent]) and state.enabled(agent, programs[agent][place])
        ]
        moves += steps(state)
        if not moves and any(place < len(p) for place, p in zip(places, programs, strict=True)):
            found.add("deadlock")
        for agent, op in moves:
            following = state.copy()
            try:
                following.apply(agent, op)
            except HazardError as error:
                found.add(error.rule)
                continue
            step = type(agent) is int
            stack.append((tuple([p + (step and a == agent) for a, p in enumerate(places)]), following))
    return found, len(seen)


@pytest.mark.parametrize(
    "fault, expected",
    [
        ("", set()),
        ("no arrive", {"deadlock"}),
        ("count", {"deadlock"}),
        ("bytes", {"deadlock"}),
        ("few bytes", {"tx-below-zero"}),
        ("no load", {"deadlock"}),
        ("no read wait", {"slot-being-stored"}),
    ],
)
def test_all_interleavings_of_a_ring(fault, expected):
    ring = CopyRing(1, fault)
    found, _ = explore(ring.made, ring.entry, {"x": (3 * TILE[0], TILE[1]), "y": (3 * TILE[0], TILE[1])})
    if fault == "few bytes":  # the last bytes may also land when an arrival is pending again
        assert expected <= found
    else:
        assert found == expected


def test_all_interleavings_of_a_multicast_pair():
    pair = Pair(tiles=1, stages=1)
    assert explore(pair.plan, pair.entry, {"x": (8, 16), "y": (8, 32)})[0] == set()
    pair = Pair("no tail", tiles=1, stages=1)
    assert explore(pair.plan, pair.entry, {"x": (8, 16), "y": (8, 32)})[0] == {"peer-exited"}


# ---- copies ------------------------------------------------------------------------------------------------------------


@given(length=st.integers(0, 60), seed=st.integers(0, 5))
@settings(max_examples=examples(25))
def test_a_copy_equals_and_then_leads_its_own_life(length, seed):
    """Runs a prefix, copies, runs on: the copy is what the original was."""
    ring = CopyRing(2)
    programs = [iter(p) for p in record(ring.made, ring.entry, {"x": (64, 16), "y": (64, 16)})]
    state = State(ring_layout := Layout(ring.made))
    taken = []

    def watch(agent, op, facts):
        if len(taken) < length:
            taken.append((agent, op))

    Scheduler(state, programs, "random", seed, (watch,)).run()
    again, other = State(ring_layout), State(ring_layout)
    for agent, op in taken:
        assert again.enabled(agent, op)
        again.apply(agent, op)
        other.apply(agent, op)
    copied, before = again.copy(), snapshot(again)
    assert snapshot(copied) == before == snapshot(other)
    assert hash(snapshot(copied)) == hash(before)
    for flight, step in list(steps(again)):
        again.apply(flight, step)
        assert snapshot(copied) == before != snapshot(again)
        break


# ---- recording, observing, tracing ------------------------------------------------------------------------------------


def test_recorded_programs_are_what_is_executed():
    gemm = SmallGemm(2)
    shapes = {"a": (128, 80), "b": (32, 80), "d": (128, 32)}
    programs = record(gemm.plan, gemm.entry, shapes)
    assert all(type(program[-1]) is o.Exit for program in programs)
    done = [[] for _ in programs]

    def observer(agent, op, facts):
        if type(agent) is int:
            done[agent].append(op)

    arrays = {n: np.zeros(s, np.float32 if n == "d" else gemm.dtype.numpy) for n, s in shapes.items()}
    for policy in POLICIES:
        for ops in done:
            ops.clear()
        run(gemm.plan, gemm.entry, arrays, observer=observer, policy=policy)
        assert done == programs


def test_facts_tell_which_phase_each_operation_met():
    ring = CopyRing(2)
    waits, counted = [], []

    def observer(agent, op, facts):
        if type(op) is o.MbarWait:
            waits.append((agent, op.bar, facts))
        elif type(op) in (o.MbarArrive, o.MbarArriveTx, o.LoadComplete):
            counted.extend(facts)

    run_recorded(ring.made, ring.entry, {"x": (64, 16), "y": (64, 16)}, observer=observer)
    # full: barriers 0 and 1; free: 2 and 3. The consumer's n-th wait on a slot sees phase n, the producer's phase n - 1.
    assert [w for w in waits if w[0] == 1] == [(1, i % 2, i // 2) for i in range(8)]
    assert [w for w in waits if w[0] == 0] == [(0, 2 + i % 2, i // 2 - 1) for i in range(8)]
    completions = [(c.bar, c.phase) for c in counted if c.completed]
    assert sorted(completions) == sorted({(b, p) for b in range(4) for p in range(4)})
    assert sum(c.nbytes for c in counted) == 0


def test_the_trace_is_in_order_and_shows_who_waited():
    ring = CopyRing(1)
    arrays = {name: np.zeros((64, 16), np.float16) for name in "xy"}
    made = run(ring.made, ring.entry, arrays, trace=True, policy="fair")
    assert [e.number for e in made.trace] == list(range(made.steps))
    assert all(e.reached <= e.number for e in made.trace)
    assert any(e.reached < e.number for e in made.trace if type(e.op) is o.MbarWait)
    assert {type(e.agent) for e in made.trace} == {int, o.Flight}


def test_locations_are_the_users_lines():
    ring = CopyRing(1)
    located = record(ring.made, ring.entry, {"x": (8, 16), "y": (8, 16)}, locate=True)
    assert all("parts.py:" in op.where for program in located for op in program[:-1])
    plain = record(ring.made, ring.entry, {"x": (8, 16), "y": (8, 16)})
    assert [[op._replace(where=None) for op in program] for program in located] == plain


def test_operations_are_hashable_values():
    ring = CopyRing(1)
    (a, b), (c, d) = (record(ring.made, ring.entry, {"x": (8, 16), "y": (8, 16)}) for _ in range(2))
    assert a == c and len({*a, *c}) == len({*a}) and hash(tuple(b)) == hash(tuple(d))


# ---- without data -----------------------------------------------------------------------------------------------------


def test_a_branch_on_values_is_refused():
    parts = Parts()
    role = parts.role("one", 1)
    slots = parts.buffer("x", TILE)
    plan = parts.plan()
    from tmapipe.isa.fragment import SlotRef

    def entry(isa):
        init(isa)
        write_slot(isa, SlotRef(slots, 0), ramp(TILE).reshape(-1), role)
        isa.when(bool(isa.fragments.read(SlotRef(slots, 0), vectors_of("x", TILE, role)) > 1e9), isa.warp_sync)

    for perform in (run, run_recorded):
        with pytest.raises(ScopeError, match="a branch on the values of a fragment"):
            perform(plan, entry, {})


def test_a_users_exception_comes_through():
    parts = Parts()
    parts.role("one", 2)

    def entry(isa):
        isa.cta_sync()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(parts.plan(), entry)
