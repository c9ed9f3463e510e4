"""One warp is recorded for all that do the same: their programs are those that each would be recorded with by itself."""

import functools
import itertools
import operator
import random

import pytest

import tmapipe as tp
from tests.oracle.registry import REGISTRY
from tests.programs import PROGRAMS
from tmapipe.check.problems import Problems
from tmapipe.isa.ops import WarpSync
from tmapipe.machine.alike import Alike, Own
from tmapipe.machine.programs import record_marked

NAMES = ("add", "sub", "mul", "floordiv", "mod", "lshift", "rshift", "and_", "or_", "xor", "eq", "ne", "lt", "le", "gt")


@pytest.mark.parametrize("seed", range(40))
def test_what_is_computed_of_own_numbers_is_right_for_every_warp(seed):
    draw = random.Random(seed)
    alike = Alike(3, range(8))
    each = {agent: [agent, agent // 4, agent % 4] for agent in range(8)}
    own = [alike.number(int), alike.number(lambda a: a // 4), alike.number(lambda a: a % 4)]
    for _ in range(12):
        function = getattr(operator, draw.choice(NAMES))
        i, j = draw.choices([i for i, x in enumerate(own) if abs(int(each[3][i])) < 60], k=2)
        plain = draw.randint(1, 5)
        left, right = draw.choice([(i, j), (i, None), (None, j)])
        try:
            made = {a: function(*(plain if x is None else each[a][x] for x in (left, right))) for a in each}
        except (ZeroDivisionError, ValueError):
            continue
        own.append(function(*(plain if x is None else own[x] for x in (left, right))))
        for a, value in made.items():
            each[a].append(value)
    for i, number in enumerate(own):
        assert all((number.values[a] if type(number) is Own else number) == each[a][i] for a in alike.agents)
        assert type(number) is Own or {each[a][i] for a in alike.agents} == {number}
    assert alike.agents == list(range(8))  # nothing has been decided


def test_a_number_settles_where_it_is_looked_at():
    looks = {
        "branch": (lambda own: 1 if own % 2 else 0, [1, 3]),
        "index": (lambda own: [5, 6, 5, 8][own], [1]),
        "key": (lambda own: {0: 0, 1: 1, 2: 2, 3: 3}[own], [1]),
        "count": (lambda own: len(range(own)), [1]),
        "text": (lambda own: f"{own}", [1]),
        "float": (lambda own: own * 1.5, [1]),
        "smaller one": (lambda own: min(own, 2), [0, 1, 2]),
        "order": (lambda own: sorted([1, own]), [1, 2, 3]),
        "nowhere": (lambda own: own * 2 + 1, [0, 1, 2, 3]),
    }
    for name, (look, left) in looks.items():
        alike = Alike(1, range(4))
        look(alike.number(int))
        assert alike.agents == left, name


def test_a_settled_number_of_another_recording_is_its_value():
    before = Alike(1, range(4))
    old = before.number(int)
    now = Alike(2, range(4))
    assert (now.number(int) + old).values == {0: 1, 1: 2, 2: 3, 3: 4}
    assert before.agents == [1]


def _table(k):
    return [2, 0, 3, 1, 1, 1][k.isa.warp]


@functools.cache
def _kept(number):
    return number + 1


COUNTS = {
    "nothing": lambda k, tile: 2,
    "warp": lambda k, tile: k.isa.warp,
    "whether": lambda k, tile: 3 if k.isa.warp % 2 == 0 else 1,
    "both": lambda k, tile: ((k.isa.warp > 1) & (k.rank("n") == 1)) + 1,
    "rank": lambda k, tile: k.rank("n"),
    "list": lambda k, tile: _table(k),
    "kept": lambda k, tile: _kept(k.isa.warp),
    "coordinate": lambda k, tile: tile.n % 2,
    "coordinates": lambda k, tile: 2 if tile.n + k.isa.warp > 3 else 1,
    "largest": lambda k, tile: max(k.isa.warp, k.rank("n") + 2),
    "text": lambda k, tile: len(f"{10**k.isa.warp}"),
    "unused": lambda k, tile: 1 + 0 * (k.isa.warp + tile.n),
}


class Odd(tp.Schedule):
    """Copies, and synchronizes the lanes of a warp as often as *count* says."""

    cluster = {"m": 1, "n": 2}  # noqa: RUF012
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(stages=2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=work)

    def __init__(self, name):
        self.name = name

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        for _ in range(COUNTS[self.name](k, tile)):
            k.isa.warp_sync()
        k.y.store(tile, values)


def recorded(schedule, tiles, steps, each):
    """(programs, how many warps were recorded)."""
    problems = Problems(schedule, schedule.plan())
    calls = []

    def entry(isa):
        calls.append(isa)
        problems.entry(isa)

    with problems.recording():
        shapes = problems.shapes(tiles * problems.group, steps)
        return record_marked(
            problems.layout, entry, lambda agent, emit: problems.isa(problems.layout, agent, 0, 1, shapes, emit), each
        ), len(calls)


@pytest.mark.parametrize("name", COUNTS)
def test_bodies_that_look_at_their_warp(name):
    alike, few = recorded(Odd(name), 3, 1, False)
    each, every = recorded(Odd(name), 3, 1, True)
    assert every == 2 * Odd(name).plan().warps and few <= every
    for one, other in itertools.zip_longest(alike, each):
        assert one.ops == other.ops and one.tiles == other.tiles
        assert [(loop.start, loop.end, loop.terms) for loop in one.loops] == [
            (loop.start, loop.end, loop.terms) for loop in other.loops
        ]
    if name == "nothing":
        assert few < every / 2
    if name == "warp":
        assert len({sum(type(op) is WarpSync for op in program.ops) for program in alike}) > 3


class Outside(Odd):
    """Its third warp arrives at a slot that the ring does not have."""

    @Odd.work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            k.y.store(tile, slot.x.read())
        free = k.plan.barrier("ring.free")
        k.isa.when(k.isa.warp == 3, lambda: k.isa.mbarrier_wait(free, k.isa.warp, 0))


def test_a_report_names_the_warp_that_is_not_like_the_others():
    (finding,) = Outside("nothing").check().findings
    assert finding.agents == ("work (warp 3) of CTA 0",), finding.agents
    assert "ring.free[3]" in finding.message


SOME = {made.name: made.make for made in REGISTRY if made.name in ("Gemm", "PingPong", "ClusterSplitK")}
SOME |= {name: PROGRAMS[name].make for name in ("softmax over CTAs", "gemm_row_max", "attention", "row_sums over CTAs")}


@pytest.mark.parametrize("name", SOME)
def test_programs_of_schedules(name):
    alike, few = recorded(SOME[name](), 2, 3, False)
    each, every = recorded(SOME[name](), 2, 3, True)
    assert few < every
    assert [(one.ops, one.tiles) for one in alike] == [(one.ops, one.tiles) for one in each]
