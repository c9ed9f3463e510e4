"""Programs as Python code, as the model runs them: the numbers of other readers, each computed once, and lines of bodies."""

import itertools
import operator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import tmapipe as tp
from tests.unit.traced import evaluate
from tmapipe.model import Layout
from tmapipe.program import operations, trace
from tmapipe.program.expressions import FOLD, Call, Expr, Let, select, wrapped
from tmapipe.program.python_text import code_of

EDGES = (-(2**31), -(2**31) + 1, -65537, -7, -1, 0, 1, 2, 7, 31, 65536, 2**31 - 2, 2**31 - 1)
A, B = Expr.of("symbol", "warp"), Expr.of("symbol", "cluster")
OPERATIONS = sorted(FOLD.keys() - {"abs", "neg", "invert", "not", "select", "next", "flipped"})


def code(values, nodes=()):
    """What gives these values of A and B."""
    call = Call("act", tuple(values), {}, [], [], "body.py:1")
    run = code_of(SimpleNamespace(nodes=[*nodes, call], isa=SimpleNamespace(symbols={"extents": {}})))

    def of(a, b):
        found = []
        act = lambda *numbers: found.extend(numbers)  # noqa: E731
        run(SimpleNamespace(warp=a, cluster_id=b, fragments=None, memory=None, act=act))
        return found

    return of


@pytest.mark.parametrize("name", OPERATIONS)
def test_numbers_have_32_bits(name):
    value = Expr.of(name, A, B)
    of = code([value])
    for a, b in itertools.product(EDGES, EDGES):
        if name in ("floordiv", "mod") and b == 0:
            with pytest.raises(ZeroDivisionError):
                of(a, b)
        elif name in ("lshift", "rshift") and not 0 <= b <= 31:
            with pytest.raises(tp.errors.ScopeError, match="shift it by 0 to 31"):
                of(a, b)
        else:
            assert of(a, b) == [evaluate(value, {A: a, B: b})] == [FOLD[name](a, b)], (a, b)


@pytest.mark.parametrize(
    "divisor", [B, select(A > 0, B, 1), select(B > 0, B, 0), select(B > 0, B, 1), select(B > 0, B, A - 5)]
)
def test_a_quotient_that_is_not_chosen_may_have_no_value(divisor):
    """It is computed before the choice only of a divisor that is positive for certain."""
    quotient = Expr.of("floordiv", A, divisor)
    of = code([select(B > 0, quotient, 0), select(B > 0, quotient + 1, 0)], [Let(quotient)])
    assert of(5, 0) == [0, 0] and of(5, 2) == [2, 3]


def test_operations_of_one_number_and_of_slots():
    values = [
        -A,
        abs(A),
        ~A,
        Expr.of("not", A < B),
        Expr.of("next", A, 3),
        Expr.of("flipped", B, A, 3),
        select(A < B, A, B),
    ]
    of = code(values)
    for a, b in itertools.product(EDGES, (0, 1)):
        assert of(a, b) == [evaluate(value, {A: a, B: b}) for value in values]


def test_nothing_is_computed_under_a_condition_that_does_not_hold():
    quotient = A // B
    value = select(B != 0, quotient + quotient * 3, 7)
    of = code([value, value], [Let(quotient), Let(value)])
    assert of(6, 2) == [12, 12] and of(6, 0) == [7, 7]


@pytest.mark.parametrize("operate", [operator.add, operator.mul, lambda x, y: (x + 1) ^ y], ids=["add", "mul", "xor"])
def test_a_value_with_many_parts_is_computed_once(operate):
    twice, long = [A], [A]
    for i in range(60):
        twice.append(operate(twice[-1], twice[-1]))
        long.append((long[-1] * 3 + B) % (i + 5))
    of = code([twice[-1], long[-1]], map(Let, twice[1:] + long[1:]))
    wanted, last = 5, 5
    for i in range(60):
        wanted, last = wrapped(operate(wanted, wanted)), (last * 3 + 11) % (i + 5)
    assert of(5, 11) == [wanted, last]


class Copy(tp.Schedule):
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=work)
    of = tp.Table("e")
    scale = 1

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile, m=tile.m * (8 // k.of.entry(0)))

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * self.scale
        k.y.store(tile, values)


X = np.ones((16, 64), np.float32)


def test_a_number_without_a_value_is_said_with_its_line():
    line = Copy.fill.__code__.co_firstlineno + 3
    with pytest.raises(tp.errors.ScopeError, match=rf"by zero\. At .*test_replay.py:{line}\."):
        Copy()(X, np.zeros(8, np.int32))


def test_each_call_runs_what_the_bodies_say_now(monkeypatch):
    schedule, table = Copy(), np.full(8, 8, np.int32)
    assert (schedule(X, table) == 1).all()
    schedule.scale = 2
    assert (schedule(X, table) == 2).all()
    monkeypatch.setattr(Copy, "scale", 3)
    del schedule.scale
    assert (schedule(X, table) == 3).all()


def test_calls_in_several_threads():
    table = np.full(8, 8, np.int32)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: Copy()(X, table), range(8)))
    assert all((each == 1).all() for each in found)


def test_operations_of_a_warp_by_the_entries_of_a_table():
    schedule = Copy()
    plan, shapes = schedule.plan(), {"x": (16, 64), "y": (16, 64), "of": (8,)}
    program, layout = trace(schedule, plan), Layout(plan)
    starts = {}
    for entry in (1, 2, 8):
        known = {"of": [entry]}
        found = operations(program, layout, 0, shapes, tables=known)
        starts[entry] = [op.at for op in found if type(op).__name__ == "TmaLoad"]
        taken = []
        assert [*taken, *operations(program, layout, 0, shapes, tables=known, emit=taken.append)] == found[-1:]
        assert taken == found[:-1]
    assert starts == {1: [(0, 0), (64, 0)], 2: [(0, 0), (32, 0)], 8: [(0, 0), (8, 0)]}
