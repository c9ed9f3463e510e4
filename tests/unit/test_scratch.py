"""Scratch and k.sync(): values that the threads of a role pass to each other, and what orders them."""

import numpy as np
import pytest

import tmapipe as tp
from tmapipe.check import Kind


def reversed_on_gpu(source, target):
    """Each lane copies every 32nd element of the warp's rows: row i gets row `rows - 1 - i` of the whole."""
    import cutlass.cute as cute

    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx() - 1
    rows, columns = target.shape
    for row in range(rows):
        for first in range(0, columns, 32):
            target[row, first + lane] = source[rows * 4 - 1 - warp * rows - row, first + lane]


class Reversed(tp.Schedule):
    """y has the rows of each 16 of x in the other order: each warp takes what another one has written."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=4), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)
    between = tp.Scratch(work, tile=(16, 64), dtype="fp32")
    before, after = True, True

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def reverse(self, k, tile):
        first = k.isa.warp - k.role.first_warp

        def on_cpu(source, target):
            rows = target.shape[0]
            target[...] = source[::-1][first * rows : (first + 1) * rows]

        with k.ring.consume() as slot:
            k.between.write(slot.x.read())
            if self.before:
                k.sync()
            k.raw(reversed_on_gpu, on_cpu, reads=(k.between,), writes=(slot.x,))
            if self.after:
                k.sync()

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def reversed_in_tiles(x):
    return np.concatenate([x[i : i + 16][::-1] for i in range(0, len(x), 16)])


def test_values_pass_from_warp_to_warp():
    x = np.random.default_rng(0).standard_normal((96, 128)).astype(np.float32)
    assert (Reversed()(x) == reversed_in_tiles(x)).all()


def test_proved_for_every_trip_count():
    report = Reversed().check()
    assert report.ok and report.trips == "every trip count", str(report)


@pytest.mark.parametrize("missing", ["before", "after"])
def test_a_missing_sync_is_a_race(missing):
    schedule = Reversed()
    setattr(schedule, missing, False)
    findings = schedule.check().findings
    assert any(finding.kind is Kind.RACE and "between" in finding.message for finding in findings), findings


def test_two_copies_in_turn_need_one_sync():
    class InTurn(Reversed):
        between = tp.Scratch(Reversed.work, tile=(16, 64), dtype="fp32", copies=2)

        @Reversed.work.jit
        def reverse(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
                for i in range(2):
                    copy = k.between.copy(i)
                    copy.write(values)
                    k.sync()
                    k.raw(reversed_on_gpu, lambda source, target: None, reads=(copy,), writes=(slot.x,))

    class Once(InTurn):
        between = tp.Scratch(Reversed.work, tile=(16, 64), dtype="fp32")

        @Reversed.work.jit
        def reverse(self, k, tile):
            with k.ring.consume() as slot:
                k.between.write(slot.x.read())
                k.sync()
                k.raw(reversed_on_gpu, lambda source, target: None, reads=(k.between,), writes=(slot.x,))

    assert InTurn().check().ok
    assert not Once().check().ok


class Handed(tp.Schedule):
    """y = 2 x: one role takes the slot, and another the store; a sync of both orders them instead of a ring."""

    load, work, other = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(16, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        k.sync(self.other)
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values * 2)

    @other.jit
    def wait(self, k, tile):
        k.sync(self.work)


def test_a_role_that_syncs_for_some_tiles_alone_is_named():
    class Sometimes(Handed):
        @Handed.other.jit
        def wait(self, k, tile):
            if tile.m < 5:
                k.sync(self.work)

    (finding,) = Sometimes().check().errors
    assert finding.kind is Kind.DEADLOCK and "let other come to" in finding.fix and "k.sync by both" in finding.fix


def test_several_roles_have_one_barrier():
    x = np.ones((32, 64), np.float32)
    assert (Handed()(x) == 2).all()
    assert Handed().check().ok
    ptx = Handed().compile({"x": "fp32", "y": "fp32"}, unroll=False).ptx
    assert ptx.count("bar.sync \t2, 96;") == 2  # the store's has id 1


def test_a_role_that_does_not_come_is_a_deadlock():
    class Alone(Handed):
        @Handed.other.jit
        def wait(self, k, tile):
            pass

    report = Alone().check()
    assert not report.ok and "work+other.threads" in str(report)


def body_of(sync, *, warps=4, teams=1, stores=1):
    """A schedule whose second role calls *sync*."""

    class Body(tp.Schedule):
        load, work, rest = tp.Role(warps=1), tp.Role(warps=warps, teams=teams), tp.Role(warps=1)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(32, 64), ring=ring)
        y = tp.TmaStoreStage("m n", tile=(32, 64), role=work)
        for i in range(1, stores):
            locals()[f"y{i}"] = tp.TmaStoreStage("m n", tile=(32, 64), role=work, stages=1)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def consume(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            sync(self, k)
            k.y.store(tile, values)

        @rest.jit
        def idle(self, k, tile):
            pass

    return Body()


def test_ids_run_out_by_name():
    schedule = body_of(lambda self, k: k.sync(), stores=15)
    with pytest.raises(tp.InputError, match=r"k\.sync = 'work'.*y14\.sync"):
        schedule(np.ones((32, 64), np.float32))


def test_one_warp_needs_no_id():
    schedule = body_of(lambda self, k: k.sync(), warps=1)
    assert (schedule(np.ones((32, 64), np.float32)) == 1).all()


def test_only_roles_of_the_schedule_are_synced():
    for wrong in ("load", tp.Role(warps=1)):
        with pytest.raises(tp.InputError, match=r"k\.sync|Role"):
            body_of(lambda self, k, wrong=wrong: k.sync(wrong))(np.ones((32, 64), np.float32))


class InTeams(tp.Schedule):
    """Two teams of two warps, each of which syncs at every tile."""

    load, work, rest = tp.Role(warps=1), tp.Role(warps=4, teams=2), tp.Role(warps=1)
    ring = tp.BarrierRing(4, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(32, 64), ring=ring)
    with_others = False

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def consume(self, k, tile):
        with k.ring.consume() as slot:
            slot.x.read()
        k.sync(*((self.rest,) if self.with_others else ()))

    @rest.jit
    def idle(self, k, tile):
        pass


def test_a_team_syncs_alone():
    report = InTeams().check()
    assert report.ok, str(report)
    ptx = InTeams().compile({"x": "fp32"}, unroll=False).ptx
    assert "bar.sync" in ptx and ", 64;" in ptx  # an id for each team of two warps
    schedule = InTeams()
    schedule.with_others = True
    with pytest.raises(tp.InputError, match="must have one team each"):
        schedule(np.ones((32, 64), np.float32))


def test_threads_of_teams_do_not_store_what_they_compute():
    with pytest.raises(tp.InputError, match=r"y\.role.*one team"):
        body_of(lambda self, k: None, teams=2).plan()


def test_scratch_of_any_size():
    class Few(Reversed):
        sums = tp.Scratch(Reversed.work, tile=(16,), dtype="bf16", copies=3)
        odd = tp.Scratch(Reversed.work, tile=(5, 3), dtype="fp32")

        @Reversed.work.jit
        def reverse(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
                k.sums.copy(2).write(tp.math.row_max(values))
                k.sync()
                slot.x.write(values - k.sums.copy(2).read(rows_of=values))
                k.sync()

    x = np.random.default_rng(0).integers(-9, 9, (32, 64)).astype(np.float32)
    np.testing.assert_array_equal(Few()(x), x - x.max(1, keepdims=True))
    kinds = {"x": "fp32", "y": "fp32"}
    assert Few().plan(kinds).buffer("sums").pitch == 128 and Few().plan(kinds).buffer("odd").slot_bytes == 60
    assert Few().check(kinds).ok and Few().compile(kinds).resources.spill_bytes == 0


def test_wrong_scratch_is_refused():
    work = tp.Role(warps=4)
    for wrong in ({"tile": (0,)}, {"tile": "ab"}, {"dtype": "tf32"}, {"dtype": "bf17"}, {"copies": 0}):
        with pytest.raises(tp.InputError):
            tp.Scratch(work, **{"tile": (16, 64), "dtype": "fp32", **wrong})
    for role in ("work", tp.Role(warps=4, teams=2)):
        with pytest.raises(tp.InputError, match="one team"):
            tp.Scratch(role, tile=(16, 64), dtype="fp32")


def test_a_copy_that_is_not_there_is_refused():
    class Beyond(Reversed):
        @Reversed.work.jit
        def reverse(self, k, tile):
            with k.ring.consume() as slot:
                k.between.copy(1).write(slot.x.read())

    with pytest.raises(tp.InputError, match=r"between\.copy"):
        Beyond()(np.ones((16, 64), np.float32))


def test_only_its_role_has_it():
    class Other(Reversed):
        @Reversed.load.jit
        def fill(self, k, tile):
            k.between.read()

    with pytest.raises(tp.PipelineError, match="between"):
        Other()(np.ones((16, 64), np.float32))
