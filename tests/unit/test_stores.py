"""Stores through buffers of their own: wait, write, fence, sync, store, in this order, on the right warp; and turnstiles."""

import itertools
from types import SimpleNamespace

import pytest

import tmapipe as tp
from tests.unit.fake_isa import RecordingIsa, record
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.protocol.matmuls import TeamsInTurn

S = tp.schedules
EXTENTS = {"a": (1, 300, 100), "b": (1, 520, 100), "d": (1, 300, 520)}


def pieces(gemm, warp, extents=EXTENTS, **place):
    """The events between mainloops, split at each wait for a free buffer."""
    plan = gemm.plan()
    stages = plan.store("d").buffer.stages // (plan.role("math").warps // 4)
    events = record(gemm, plan, warp, extents, **place)
    kinds = ("wait_group", "named_sync", "write_columns", "proxy_fence", "store", "commit")
    events = [event for event in events if event[0] in kinds]
    starts = [n for n, event in enumerate(events) if event[0] == "named_sync"][::2]
    return stages, events, starts


@pytest.mark.parametrize("store_stages", [1, 2, 3])
@pytest.mark.parametrize("warp", [4, 5, 8, 11])
def test_the_way_of_a_buffer(store_stages, warp):
    """All warps of the warpgroup write, its first one stores; a buffer is used again when its store has been read."""
    gemm = S.Gemm((128, 128, 64), (1, 1), epilogue=tp.epilogue.Epilogue(stages=store_stages))
    stages, events, starts = pieces(gemm, warp)
    assert stages == store_stages
    issuer = warp % 4 == 0
    unit = (warp - 4) // 4
    per_piece = len(events) // len(starts)
    assert len(starts) == 3 * 5 * 2  # tiles of m and n, pieces of 64 columns
    assert per_piece == (7 if issuer else 4)
    for n in range(len(starts)):
        piece = events[n * per_piece : (n + 1) * per_piece]
        buffer = unit * stages + n % stages
        expected = [
            ("named_sync", "d.sync", unit),
            ("write_columns", "d", buffer),
            ("proxy_fence",),
            ("named_sync", "d.sync", unit),
        ]
        if issuer:
            expected = [("wait_group", stages - 1, True), *expected, ("store", "d", buffer), ("commit",)]
        assert [event[: len(want)] for event, want in zip(piece, expected, strict=True)] == expected
    assert events[len(starts) * per_piece :] == ([("wait_group", 0, True)] if issuer else [])


@pytest.mark.parametrize(
    "kind,tile,columns,store_stages",
    [
        (S.Gemm, (128, 128, 64), None, 2),
        (S.Gemm, (64, 72, 64), None, 2),
        (S.Gemm, (192, 128, 64), 48, 1),
        (S.Gemm, (256, 104, 64), 80, 2),
        (S.Gemm, (128, 200, 64), None, 3),
        (S.PingPong, (128, 128, 64), None, 2),
        (S.PingPong, (64, 200, 64), 96, 1),
        (S.PingPong, (64, 72, 64), None, 3),
    ],
)
def test_stores_cover_the_output_exactly(kind, tile, columns, store_stages):
    """Every element of every output tile by some warpgroup's store, from the accumulator columns of that place. Where the
    width does not divide the tile, the last piece starts earlier: columns are stored twice, with the same values."""

    class Wide(kind):
        load, math = kind.load, kind.math

        def __init__(self):
            super().__init__(tile, (1, 1), 2)
            self.d = tp.TmaStoreStage("l m n", source=self.mma, stages=store_stages, columns=columns)

    gemm = Wide()
    plan = gemm.plan()
    m, n, _ = tile
    extents = {"a": (2, 2 * m, 64), "b": (2, 3 * n, 64), "d": (2, 2 * m, 3 * n)}
    stored = {}
    math = plan.role("math")
    (matmul,) = plan.matmuls
    for warp in range(math.first_warp, math.first_warp + math.warps, 4):
        events = record(gemm, plan, warp, extents)
        written = [event[3] for event in events if event[0] == "write_columns"]
        stores = [event[3] for event in events if event[0] == "store"]
        group = AccumulatorLayout.of(matmul).group(warp)
        for (_, block, first, width), (batch, row, column) in zip(written, stores, strict=True):
            assert width == plan.store("d").buffer.tile[1]
            assert row % m == 64 * (block * matmul.warpgroups + group) and column % n == first
            for i in range(width):
                stored[batch, row, column + i] = stored.get((batch, row, column + i), 0) + 1
    rows = range(0, 2 * m, 64)
    assert set(stored) == set(itertools.product(range(2), rows, range(3 * n)))
    overlap = -n % plan.store("d").buffer.tile[1]  # columns of the last piece that the one before it stored too
    assert sum(stored.values()) == len(stored) + 2 * len(rows) * 3 * overlap


def test_fragments_are_stored_by_the_role_that_made_them():
    gemm = S.AddParts((4, 256))
    plan = gemm.plan({"x": "fp32", "d": "bf16"})
    extents = {"x": (3, 1, 8, 512), "d": (1, 8, 512)}
    for warp in (1, 2, 4):
        events = [
            e
            for e in record(gemm, plan, warp, extents)
            if e[0] in ("write", "store", "commit", "wait_group", "named_sync")
        ]
        kinds = [event[0] for event in events]
        if warp == 1:
            assert kinds == ["wait_group", "named_sync", "write", "named_sync", "store", "commit"] * 4 + ["wait_group"]
            assert [e[2] for e in events if e[0] == "store"] == [0, 1, 0, 1]
        else:
            assert kinds == ["named_sync", "write", "named_sync"] * 4


def test_epilogue_is_applied_to_each_piece():
    seen = []

    def epilogue(values):
        seen.append(values.data)
        return values * 2

    gemm = S.Gemm((128, 128, 64), (1, 1), epilogue=epilogue)
    events = record(gemm, gemm.plan(), 4, {"a": (1, 128, 64), "b": (1, 128, 64), "d": (1, 128, 128)})
    assert [event[3] for event in events if event[0] == "write_columns"] == seen
    assert [values[1:] for values in seen] == [(0, 0, 64), (0, 64, 64)]


# ---- accumulators -----------------------------------------------------------------------------------------------------


def body(gemm, write):
    """*gemm* with another body for its matmul."""

    class Made(type(gemm)):
        load, math = type(gemm).load, type(gemm).math

        @math.jit
        def multiply(self, k, tile):
            write(k, tile)

    made = Made((128, 128, 64), (1, 1))
    record(made, made.plan(), 4, {"a": (1, 128, 64), "b": (1, 128, 64), "d": (1, 128, 128)})


def test_accumulators_are_read_after_their_block():
    def early(k, tile):
        with k.mma.accumulate() as acc:
            k.d.store(tile, acc)

    with pytest.raises(tp.errors.ScopeError, match="read inside its `accumulate` block"):
        body(S.Gemm(), early)


def test_accumulators_are_read_before_the_next_block():
    """The next block has the same registers."""

    def later(k, tile):
        with k.mma.accumulate() as first, k.ring.consume() as slot:
            first.add(slot.a, slot.b)
        with k.mma.accumulate():
            pass
        k.d.store(tile, first)

    with pytest.raises(tp.errors.ScopeError, match="after the next `accumulate` block has begun"):
        body(S.Gemm(), later)


def test_accumulators_are_added_to_inside_their_block():
    def late(k, tile):
        with k.mma.accumulate() as acc:
            pass
        with k.ring.consume() as slot:
            acc.add(slot.a, slot.b)

    with pytest.raises(tp.errors.ScopeError, match=r"acc\.add\(\) outside `with k\.<mma>\.accumulate\(\)"):
        body(S.Gemm(), late)


def test_operands_are_those_declared():
    def swapped(k, tile):
        with k.mma.accumulate() as acc:
            with k.ring.consume() as slot:
                acc.add(slot.b, slot.a)

    with pytest.raises(tp.errors.ScopeError, match=r"takes slot\.a and slot\.b, in this order"):
        body(S.Gemm(), swapped)

    def closed(k, tile):
        with k.mma.accumulate() as acc:
            with k.ring.consume() as slot:
                a, b = slot.a, slot.b
            acc.add(a, b)

    with pytest.raises(tp.errors.ScopeError, match="outside its `with` block"):
        body(S.Gemm(), closed)


# ---- turnstiles -------------------------------------------------------------------------------------------------------


def turnstile(warp, teams=2):
    class Teams(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warpgroups=teams, teams=teams)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage(tile=(8, 64), ring=ring)
        order = tp.Turnstile(work)

    schedule = Teams()
    plan = schedule.plan()
    k = SimpleNamespace(isa=RecordingIsa(plan, warp), plan=plan, role=plan.role("work"))
    return TeamsInTurn(k, "order"), k.isa


@pytest.mark.parametrize("teams", [2, 3, 4])
def test_turns(teams):
    """Team t's n-th turn waits for its own barrier's n-th phase (the first team's first for none) and lets t + 1 in."""
    for team in range(teams):
        made, isa = turnstile(4 + 4 * team, teams)
        for _ in range(5):
            with made.turn():
                pass
        expected = []
        for n in range(5):
            expected.append(("wait", "order.turn", team, (n + (team == 0)) % 2))
            expected.append(("arrive", "order.turn", (team + 1) % teams, 1))
        assert isa.events == expected


def test_a_turn_within_a_turn():
    made, _ = turnstile(4)
    with made.turn():
        with pytest.raises(tp.errors.ScopeError, match="entered twice"):
            with made.turn():
                pass


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_teams_share_tiles_and_slots(count):
    """Team t takes the tiles t, t + 2, ... and the slots of those tiles; between them both teams take every slot once."""
    gemm = S.PingPong((64, 64, 64), (1, 1), 3)
    plan = gemm.plan()
    extents = {"a": (1, 64 * max(count, 1), 5 * 64), "b": (1, 64, 5 * 64), "d": (1, 64 * max(count, 1), 64)}
    if count == 0:
        extents = {"a": (1, 64, 5 * 64), "b": (1, 64, 5 * 64), "d": (1, 64, 64)}
    clusters, cluster_id = (1, 0) if count else (2, 1)  # the second of two CTAs gets no tile
    tiles, slots = [], []
    for team in (0, 1):
        events = record(gemm, plan, 4 + 4 * team, extents, clusters=clusters, cluster_id=cluster_id)
        mine = [event[3][1] // 64 for event in events if event[0] == "store"]
        assert mine == list(range(team, count, 2))
        waits = [event[2:] for event in events if event[:2] == ("wait", "ring.full")]
        expected = [5 * tile + step for tile in mine for step in range(5)]
        assert waits == [(n % 3, n // 3 % 2) for n in expected]
        tiles += mine
        slots += expected
    assert sorted(tiles) == list(range(count)) and sorted(slots) == list(range(5 * count))
