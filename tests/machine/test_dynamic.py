"""The dynamic order on the model: whichever cluster gets which tiles, each is taken once, by all CTAs of the cluster alike."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.oracle.judged_bodies import program_of
from tests.sweeps import examples, sample
from tests.unit.errors import refused
from tmapipe.model import POLICIES, Machine, MachineIsa
from tmapipe.tiles.dynamic import COUNTERS, keep_positions

S = tp.schedules


def small(cluster=(2, 1), order=None, kind=S.Gemm):
    return kind(
        (64, 64, 16),
        cluster,
        2,
        tiles=order or tp.tiles.DynamicTiles(tp.tiles.Grouped(2)),
        epilogue=tp.epilogue.Epilogue(stages=1),
    )


def numbers(m, n, k=24):
    """Small integers, whose sums are exact."""
    rng = np.random.default_rng(m + n)
    a, b = (rng.integers(-2, 3, (1, rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    arrays = {"a": a, "b": b, "d": np.full((1, m, n), np.nan, ml_dtypes.bfloat16)}
    return arrays, (a[0].astype(np.float32) @ b[0].astype(np.float32).T).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "clusters, cluster, kind",
    sample(itertools.product([1, 2, 3], [(1, 1), (2, 1), (2, 2)], [S.Gemm, S.PingPong]), 5),
)
def test_results(kind, cluster, clusters):
    schedule, policy = small(cluster, kind=kind), POLICIES[(clusters + cluster[0] + cluster[1]) % len(POLICIES)]
    arrays, want = numbers(200, 264)
    Machine(schedule.plan({}), policy=policy, seed=clusters).run(program_of(schedule), arrays, clusters=clusters)
    assert (arrays["d"][0] == want).all()


def claims(data, tiles):
    """The numbers that each cluster gets from the counter, the last of which are beyond the *tiles*. The first numbers are the
    clusters' own; those that have no such tile ask for no other."""
    clusters = data.draw(st.integers(1, 3))
    working = range(min(clusters, tiles))
    takers = {number: data.draw(st.sampled_from(working)) for number in range(clusters, tiles)}
    first = max(clusters, tiles)
    beyond = data.draw(st.permutations(range(first, first + len(working))))
    own = [[number for number, taker in takers.items() if taker == c] for c in range(clusters)]
    return [numbers + ([beyond[c]] if c in working else []) for c, numbers in enumerate(own)]


def run_claimed(schedule, arrays, claimed):
    """Runs with a counter whose numbers, from that of clusters on, these get as *claimed*. Each stops at its first one beyond
    the tiles. The last number resets the counter."""
    queues, drawn, resets = [iter(own) for own in claimed], {}, []

    class Claimed(MachineIsa):
        def atomic_add(self, counter, in_turn):
            drawn[self.cluster_id] = next(queues[self.cluster_id])
            return super().atomic_add(counter, lambda: drawn[self.cluster_id] - len(claimed))

        def store_counter(self, counter, value):
            resets.append((counter, value, drawn[self.cluster_id]))

    program = program_of(schedule)

    def entry(isa):
        isa.__class__ = Claimed
        program(isa)

    Machine(schedule.plan({})).run(entry, arrays, clusters=len(claimed))
    assert all(next(queue, None) is None for queue in queues), "a cluster that stopped early"
    assert resets == [(0, 0, max(itertools.chain(*claimed)))]


@settings(max_examples=examples(40))
@given(m=st.integers(1, 4), n=st.integers(1, 4), stages=st.integers(0, 3), kind=st.sampled_from([S.Gemm, S.PingPong]),
       data=st.data())  # fmt: skip
def test_any_assignment(m, n, stages, kind, data):
    """Whoever comes first."""
    arrays, want = numbers(64 * m, 64 * n)
    run_claimed(small((1, 1), tp.tiles.DynamicTiles(tp.tiles.Snake(2), stages), kind), arrays, claims(data, m * n))
    assert (arrays["d"][0] == want).all()


@settings(max_examples=examples(30))
@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=5), n=st.integers(1, 3),
       kind=st.sampled_from([S.Gemm, S.PingPong]), data=st.data())  # fmt: skip
def test_any_assignment_of_groups(sizes, n, kind, data):
    """Also of the numbers that stand for no tile."""
    ends, rows = np.cumsum(sizes, dtype=np.int32), max(1, sum(sizes))
    arrays, _ = numbers(rows, 64 * n * len(sizes))
    a, b = arrays["a"][0], arrays["b"].reshape(len(sizes), 64 * n, -1)
    out = np.full((rows, 64 * n), 7.5, ml_dtypes.bfloat16)
    want = out.copy()
    for i, matrix in enumerate(b):
        group = slice(ends[i] - sizes[i], ends[i])
        want[group] = a[group].astype(np.float32) @ matrix.astype(np.float32).T
    schedule = small((1, 1), tp.tiles.GroupedTiles(tp.tiles.Grouped(2)), kind)
    tiles = (rows + len(sizes) * 63) // 64 * n
    run_claimed(schedule, {"a": a, "b": b, "offsets": ends, "d": out}, claims(data, tiles))
    assert (out == want).all()


@settings(max_examples=examples(20))
@given(m=st.integers(1, 5), n=st.integers(1, 4), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
       kind=st.sampled_from([S.Gemm, S.PingPong, S.SplitK]), data=st.data())  # fmt: skip
def test_any_position(m, n, sizes, kind, data):
    """By GPC: wherever the clusters run, each claims another position, and the last leaves the counters at 0."""
    ends = [2 * sum(sizes[: i + 1]) for i in range(len(sizes))]
    gpcs = [range(end - 2 * size, end) for size, end in zip(sizes, ends, strict=True)]
    clusters, *words = keep_positions(gpcs, 2, sum(sizes), m * n)
    smids = data.draw(st.lists(st.integers(0, ends[-1] - 1), min_size=clusters, max_size=clusters))
    order = tp.tiles.GpcTiles(tp.tiles.Grouped(2))
    schedule = S.SplitK(1, (64, 64, 16), (1, 1), 2, tiles=order) if kind is S.SplitK else small((1, 1), order, kind)
    arrays, want = numbers(64 * m, 64 * n)
    if kind is S.SplitK:
        arrays["d"] = np.full((1, 64 * m, 64 * n), np.nan, np.float32)
    counters, claimed = [0] * COUNTERS, []

    class Placed(MachineIsa):
        def launch_words(self, in_machine):
            return words

        def smid(self):
            return smids[self.cluster_id]

        def atomic_add(self, counter, in_turn):
            counters[counter] += 1
            return super().atomic_add(counter, lambda: counters[counter] - 1)

        def store_counter(self, counter, value):
            super().store_counter(counter, value)
            counters[counter] = value

        def shuffle(self, value):
            claimed.append(value)
            return super().shuffle(value)

    program = program_of(schedule)

    def entry(isa):
        isa.__class__ = Placed
        program(isa)

    Machine(schedule.plan({})).run(entry, arrays, clusters=clusters)
    assert (arrays["d"][0].astype(np.float32) == want.astype(np.float32)).all()
    assert sorted(claimed) == list(range(clusters)) and not any(counters)


@pytest.mark.parametrize("stages, late", [(0, True), (1, False)])
def test_when_the_next_tile_is_taken(stages, late):
    """With no tile fetched ahead, when all loads of a tile have been started; else at its beginning."""
    lines = small((1, 1), tp.tiles.DynamicTiles(stages=stages)).program().splitlines()
    first = next(i for i, line in enumerate(lines) if "role load" in line)
    turn = next(i for i in range(first, len(lines)) if "while " in lines[i])
    loads = next(i for i in range(turn, len(lines)) if "starts the TMA load" in lines[i])
    released = next(i for i in range(turn, len(lines)) if "arrives at tiles.free" in lines[i])
    before = [i for i in range(first, turn) if "arrives at tiles.free" in lines[i]]
    assert released > loads and bool(before) != late


def test_a_batch_of_four_dimensions():
    """More coordinates than one st.async of four words holds."""

    class Copy(tp.Schedule):
        load, store = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(stages=2, producer=load, consumer=store)
        x = tp.TmaLoadStage("p q m n", tile=(8, 32), ring=ring, dtype="fp32")
        y = tp.TmaStoreStage(source=x)
        tiles = tp.tiles.DynamicTiles()

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    assert Copy().plan().queue.buffer.tile == (8,)
    x = np.random.default_rng(0).standard_normal((2, 3, 20, 40), np.float32)
    assert (Copy()(x) == x).all()


def test_refused():
    for stages in (-1, 0.0, 1.5, False, None):
        refused(
            tp.tiles.DynamicTiles, stages=stages, argument="DynamicTiles(stages)", value=stages, rule="number of tiles"
        )

    class Taken(tp.Schedule):
        load, scheduler = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(stages=2, producer=load, consumer=scheduler)
        x = tp.TmaLoadStage(tile=(8, 64), ring=ring)
        y = tp.TmaStoreStage(source=x)
        tiles = tp.tiles.DynamicTiles()

    refused(Taken().plan, argument="Schedule.tiles", rule="role 'scheduler' of its own")
