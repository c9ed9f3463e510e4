"""SharedStage(group=): what CTAs of a cluster write into each other's slots, and read of them."""

import itertools

import numpy as np
import pytest

import tmapipe as tp
from examples.exchange import Counts, Votes
from tests.oracle.peer_forms import Counted, Looked, Reduced, Rotated, RotatedInPairs, Scattered, Swapped
from tests.sweeps import sample
from tests.unit.errors import refused
from tests.unit.test_added import expected
from tmapipe.errors import DeadlockError, HazardError, ScopeError
from tmapipe.model.layout import Kind

GROUP = tp.MulticastGroup("m")


def whole(*shape, seed=0):
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.float32)


@pytest.mark.parametrize("seed, peers", sample(itertools.product([0, 1], [2, 3, 4, 8]), 3))
def test_each_gets_its_neighbours_tile(peers, seed):
    schedule = Rotated()
    schedule.cluster = {"m": peers}
    x = whole(4 * peers * 3, 152)
    run = schedule.simulate(x, clusters=1, seed=seed)
    tiles = x.reshape(3, peers, 4, 152)
    assert (schedule(x) == (tiles + np.roll(tiles, -1, axis=1)).reshape(x.shape)).all()
    assert run.counts["PeerCopy"] == peers * 9


@pytest.mark.parametrize("seed", [0, 1])
def test_parts_go_to_all(seed):
    x = whole(2, 24, 96, seed=seed)
    assert (Scattered()(x) == x.sum(0)).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_tiles_of_peers_are_read(seed):
    x, y = whole(2, 24, 96, seed=seed), np.zeros((24, 96), np.float32)
    run = Looked().simulate(x, out=y, clusters=1, seed=seed)
    assert (y == x.sum(0)).all() and run.counts["PeerRead"] == 3 * 3 * 2 * 2


@pytest.mark.parametrize("kind", [Counted, Looked, Reduced, Rotated, Scattered, Swapped])
def test_they_are_proved(kind):
    report = kind().check()
    assert report.ok and report.trips == "every trip count"


def test_explain_says_who_sends_to_whom():
    text = Rotated().explain()
    assert "copies to peers z: 4 x 64 bf16 of x, among 2 CTAs along m" in text
    assert "expect-tx by send: 512 bytes a slot = z 4 x 64 x 2" in text
    assert "ring.free: 2 arrivals = (1 warps (work)) x 2 CTAs" in text


def test_pairs_of_four():
    x = np.random.default_rng(0).integers(-9, 9, (48, 128)).astype(np.float32)
    pairs = x.reshape(-1, 2, 4, 128)
    assert (RotatedInPairs()(x) == (pairs + pairs[:, ::-1]).reshape(x.shape)).all()
    report = RotatedInPairs().check()
    assert report.ok and not report.findings and report.trips == "every trip count"


class Same(Rotated):
    """All send to CTA 0, which gets two tiles; the other one gets none."""

    load, send, work = Rotated.load, Rotated.send, Rotated.work

    @send.jit
    def exchange(self, k, tile):
        with k.ring.consume() as slot:
            slot.z.send(0)


def test_a_tile_too_many_is_found():
    found = {finding.kind for finding in Same().check().errors}
    assert Kind.RACE in found and Kind.SURPLUS_ARRIVAL not in found
    with pytest.raises((HazardError, DeadlockError)):
        Same()(whole(8, 64))


class Overwritten(Rotated):
    """The last role changes its own tile, which may be on its way to the neighbour."""

    load, send, work = Rotated.load, Rotated.send, Rotated.work

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            total = slot.x.read() + slot.z.read()
            slot.x.write(total)
        k.y.store(tile, total)


def test_a_source_may_not_be_written_while_it_is_sent():
    report = Overwritten().check()
    assert {finding.kind for finding in report.errors} == {Kind.RACE}
    assert "a copy to a peer issued by send" in str(report)


class Elsewhere(Rotated):
    load, send, work = Rotated.load, Rotated.send, Rotated.work

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            slot.z.send(0)


def test_what_does_not_fit_is_refused():
    x = Rotated.x

    def sent_by(sender=Rotated.send, source=x, group=GROUP, **more):
        return tp.SharedStage(group=tp.Exchange(group, sender, source), **more)

    refused(sent_by, source="x", argument="Exchange(source)", rule="TMA or threads fill")
    refused(sent_by, source=Rotated.z, argument="Exchange(source)", rule="TMA or threads fill")
    refused(sent_by, group="m", argument="group", rule="MulticastGroup")
    refused(sent_by, sender=None, argument="Exchange(sender)", rule="a phase of the ring")
    refused(sent_by, Rotated.work, argument="Exchange(sender)", rule="not in the last phase")
    refused(sent_by, Rotated.load, argument="sender", rule="after the source's")
    refused(sent_by, tp.Role(warps=1), argument="sender", rule="a phase of the ring")
    refused(sent_by, ring=Swapped.ring, argument="sender", rule="a phase of the ring")
    refused(sent_by, dtype="fp32", argument="SharedStage(dtype)", rule="the source's")
    refused(sent_by, writer=Rotated.load, argument="SharedStage(writer)", rule="unless it reduces")
    text = f"SharedStage(group=Exchange(group=MulticastGroup('m'), sender={Rotated.send!r}, source={x!r}, reduce=None))"
    assert repr(Rotated.z) == text
    alone = Rotated()
    alone.cluster = {}
    refused(alone.plan, argument="z.group", rule="a CTA has no peers in the cluster")
    wide = Rotated()
    wide.send = tp.Role(warps=2)
    refused(wide.plan, argument="Role(send)", rule="has one warp")
    with pytest.raises(ScopeError, match="Only its sender"):
        Elsewhere()(whole(8, 64))


class Outside(Rotated):
    load, send, work = Rotated.load, Rotated.send, Rotated.work

    @send.jit
    def exchange(self, k, tile):
        with k.ring.consume() as slot:
            slot.z.send(2)


class Uneven(Scattered):
    load, write, send, add = Scattered.load, Scattered.write, Scattered.send, Scattered.add
    cluster = {"s": 3}  # noqa: RUF012
    relations = (tp.Dim("q", of="m"), tp.Dim("s", at_most=3))


def test_indices_and_parts_are_checked():
    refused(Outside(), whole(8, 64), argument="send(to)", rule="the group's 2 CTAs")
    refused(Uneven(), whole(3, 24, 96), argument="send(part)", rule="3 equal parts")


# ---- reads ------------------------------------------------------------------------------------------------------------


def test_writers_signal_all_who_read():
    assert "ring.full: 4 arrivals = 2 warps (write) x 2 CTAs" in Looked().explain()


class Ahead(Looked):
    """The last role writes the tile again, which others may still read."""

    load, write, add = Looked.load, Looked.write, Looked.add

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            total = slot.mine.read_from(0, tile=(4, 32)) + slot.mine.read_from(1, tile=(4, 32))
            slot.mine.write(slot.mine.read())
        k.y.store(tile.also(q=2 * tile.m + k.rank("s")), total)


def test_a_tile_may_not_be_written_while_others_read_it():
    assert {finding.kind for finding in Ahead().check().errors} == {Kind.RACE}


class Third(Looked):
    load, write, add = Looked.load, Looked.write, Looked.add

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            k.y.store(tile, slot.mine.read_from(2, tile=(4, 32)))


class Odd(Looked):
    load, write, add = Looked.load, Looked.write, Looked.add

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            k.y.store(tile, slot.mine.read_from(1, tile=(4, 32), at=(6, 0)))


def test_which_peers_and_parts_there_are():
    x = whole(2, 8, 32)
    refused(Third(), x, argument="read_from(peer)", rule="the group's 2 CTAs")
    refused(Odd(), x, argument="read_from(at)", rule="elements of the tile")
    held = Looked()
    held.ring = tp.BarrierRing(producer=held.write, consumer=held.add, per="cta")
    refused(held.plan, argument="group", rule="slots are released")
    refused(
        tp.SharedStage, tile=(8, 32), ring=Looked.ring, writer=Looked.write, dtype="fp32", group="s",
        argument="group", rule="MulticastGroup",
    )  # fmt: skip


# ---- sent by threads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_threads_send_what_they_have(seed):
    x, y = whole(24, 96, seed=seed), np.zeros((24, 96), np.float32)
    run = Swapped().simulate(x, out=y, clusters=1, seed=seed)
    pairs = x.reshape(3, 2, 4, 96)
    assert (y.reshape(pairs.shape) == pairs + 2 * pairs[:, ::-1]).all()
    assert run.counts["StAsync"] == 3 * 2 * 2 * 2  # tiles of a cluster, CTAs, warps


def test_each_warp_arms_its_part():
    text = Swapped().explain()
    assert "ring.full: 4 arrivals = 2 expect-tx (work) + 2 warps (work)" in text
    assert "copies to peers theirs: 4 x 64 fp32 of registers, among 2 CTAs along m" in text


class Itself(Swapped):
    """CTA 1 sends to itself, so that CTA 0 gets nothing, and CTA 1 two tiles."""

    load, work, add = Swapped.load, Swapped.work, Swapped.add

    @work.jit
    def double(self, k, tile):
        with k.loaded.consume() as slot:
            values = slot.x.read()
        with k.ring.produce() as slot:
            slot.theirs.send(1, values)
            slot.mine.write(values)


def test_two_tiles_for_one_are_found():
    assert Kind.RACE in {finding.kind for finding in Itself().check().errors}
    with pytest.raises((HazardError, DeadlockError)):
        Itself()(whole(8, 64))


class Narrow(Swapped):
    load, work, add = Swapped.load, Swapped.work, Swapped.add

    @work.jit
    def double(self, k, tile):
        with k.loaded.consume() as slot:
            values = slot.x.read()
        with k.ring.produce() as slot:
            slot.theirs.send(0, tp.math.row_sum(values))


def test_what_threads_cannot_send():
    how = {"tile": (4, 64), "ring": Swapped.ring, "dtype": "fp32"}
    last = tp.Exchange(tp.MulticastGroup("m"), sender=Swapped.add)
    refused(tp.SharedStage, **how, group="m", argument="group", rule="MulticastGroup")
    refused(tp.SharedStage, **how, group=last, argument="sender", rule="not in the last phase")
    refused(Narrow(), whole(8, 64), argument="theirs.send", rule="the shape of")
    text = "SharedStage(group=Exchange(group=MulticastGroup('m'), sender=Role(warps=2), source=None, reduce=None), "
    assert repr(Swapped.theirs).startswith(f"{text}tile=(4, 64), ring=")


# ---- reductions into peers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "peers, reduce",
    sample(itertools.product([2, 4], ["add", "min", "max", "and", "or", "xor", "inc", "dec"]), 3),
)
def test_parts_are_reduced_in_place(reduce, peers):
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**31), 2**31, (peers, 12 * peers, 96)).astype(np.int32)
    if reduce in ("inc", "dec"):  # whose order makes a difference
        x = np.broadcast_to(rng.integers(0, 6, x.shape[1:]).astype(np.int32), x.shape).copy()
    wanted = expected(reduce, np.full(x.shape[1:], 3, np.int32), x)
    for seed in range(3):
        y = np.zeros(x.shape[1:], np.int32)
        Reduced(reduce, peers).simulate(x, out=y, clusters=2, seed=seed)
        assert (y == wanted).all()


@pytest.mark.parametrize("peers, reduce", [(2, "add"), (4, "max"), (2, "xor"), (4, "inc")])
def test_numbers_of_threads_are_reduced_in_place(reduce, peers):
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**31), 2**31, (peers, 12 * peers, 96)).astype(np.int32)
    if reduce == "inc":
        x = np.broadcast_to(rng.integers(0, 6, x.shape[1:]).astype(np.int32), x.shape).copy()
    y = np.zeros(x.shape[1:], np.int32)
    run = Counted(reduce, peers).simulate(x, out=y, clusters=2, seed=peers)
    assert (y == expected(reduce, np.full(x.shape[1:], 3, np.int32), x)).all()
    assert run.counts["RedAsync"] == 3 * 3 * peers * peers * 2  # tiles of a cluster, CTAs, those reduced in, warps


class Unawaited(Counted):
    """A CTA reads its own tile while other CTAs reduce into the tile."""

    load, write, count, store = Counted.load, Counted.write, Counted.count, Counted.store

    @count.jit
    def add(self, k, tile):
        with k.loaded.consume() as loaded, k.ring.consume() as slot:
            values = loaded.x.read(tile=(4, 32), at=(0, 0))
            for i in range(2):
                slot.sums.reduce(i, values)
            slot.sums.read()


class Once(Counted):
    """Nothing goes to the other CTA."""

    load, write, count, store = Counted.load, Counted.write, Counted.count, Counted.store

    @count.jit
    def add(self, k, tile):
        with k.loaded.consume() as loaded, k.ring.consume() as slot:
            slot.sums.reduce(slot.sums.rank, loaded.x.read(tile=(4, 32), at=(0, 0)))


class Unset(Counted):
    """What sums begin with is not written."""

    load, write, count, store = Counted.load, Counted.write, Counted.count, Counted.store

    @write.jit
    def begin(self, k, tile):
        with k.ring.produce():
            pass


def test_wrong_reductions_by_threads_are_found():
    assert Kind.RACE in Unawaited().check().kinds()
    assert Kind.UNFILLED in Unset().check().kinds()
    assert not Once().check().ok


def test_explain_says_what_comes_from_all():
    text = Reduced("max", 4).explain()
    assert "max to peers sums: 4 x 32 int32 of mine, among 4 CTAs along s" in text
    assert "expect-tx by send: 2048 bytes a slot = sums 4 x 32 x 4 x 4 CTAs" in text
    assert repr(Reduced("max").sums).endswith("reduce='max'), tile=(4, 32), writer=Role(warps=1))")


class Hasty(Reduced):
    """It reads what is reduced in the phase in which it is sent."""

    load, write, send, store = Reduced.load, Reduced.write, Reduced.send, Reduced.store

    @send.jit
    def scatter(self, k, tile):
        with k.ring.consume() as slot:
            for i in range(2):
                slot.sums.reduce(i)
            slot.sums.write(slot.sums.read() + 1)


class Some(Reduced):
    """One part is not sent."""

    load, write, send, store = Reduced.load, Reduced.write, Reduced.send, Reduced.store

    @send.jit
    def scatter(self, k, tile):
        with k.ring.consume() as slot:
            slot.sums.reduce(0)


def test_wrong_reductions_are_found():
    assert Kind.RACE in Hasty().check().kinds()
    assert not Some().check().ok


def test_only_reductions_overlap():
    """Copies of the same parts do not."""

    class Copied(Scattered):
        load, write, send, add = Scattered.load, Scattered.write, Scattered.send, Scattered.add

        @send.jit
        def scatter(self, k, tile):
            with k.ring.consume() as slot:
                for i in range(2):
                    slot.theirs.send(i, part=i, into=0)

    assert Kind.RACE in Copied().check().kinds()


def test_reductions_that_are_refused():
    right = Reduced()

    def reduced(writer=right.write, sender=right.send, source=right.mine, reduce="add"):
        return tp.SharedStage(
            tile=(4, 32),
            writer=writer,
            group=tp.Exchange(tp.MulticastGroup("s"), sender=sender, source=source, reduce=reduce),
        )

    refused(reduced, reduce="mul", argument="Exchange(reduce)", rule="is one of add, min")
    refused(reduced, source="x", argument="Exchange(source)", rule="TMA or threads fill")
    refused(reduced, writer=None, argument="SharedStage(writer)", rule="one of the ring's roles")
    refused(reduced, reduce=None, argument="writer", rule="unless it reduces")
    refused(reduced, sender=right.store, argument="sender", rule="not in the last")
    real = tp.SharedStage(tile=(8, 32), dtype="fp32", ring=right.ring, writer=right.write)
    refused(reduced, source=real, argument="reduce", rule="the tile is of fp32")
    wide = Reduced()
    wide.mine = tp.SharedStage(tile=(4, 32), ring=wide.ring, writer=wide.write, dtype="int32")
    refused(wide.plan, argument="sums.tile", rule=r"needs a source with tiles of \(8, 32\)")


def test_earlier_names_say_how_it_is_written_now():
    for name, now in tp.RENAMED.items():
        with pytest.raises(AttributeError, match=r"is written tmapipe\.SharedStage") as error:
            getattr(tp, name)
        assert now in str(error.value)


def test_verbs_are_those_that_the_stage_declares():
    class Wrong(Rotated):
        load, send, work = Rotated.load, Rotated.send, Rotated.work

        @send.jit
        def exchange(self, k, tile):
            with k.ring.consume() as slot:
                self.call(slot)

        def call(self, slot): ...

    def of(call):
        return type("Wrong", (Wrong,), {"call": lambda self, slot: call(slot)})()

    x = whole(8, 64)
    refused(of(lambda slot: slot.z.reduce(0)), x, argument="slot.z.reduce", rule="sender= and reduce= are declared")
    refused(of(lambda slot: slot.z.read_from(0)), x, argument="slot.z.read_from", rule="without a sender")
    refused(of(lambda slot: slot.z.send(0, slot.x.read())), x, argument="send(values)", rule="has a source")


@pytest.mark.parametrize("kind", [Counts, Votes])
def test_the_example_counts(kind):
    x = whole(4, 16, 128)
    assert (kind()(x) == (x > 0).sum(0)).all()
