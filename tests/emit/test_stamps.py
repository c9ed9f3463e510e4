"""Stamps: where a kernel reads the clock, how it writes what it has read, and the trace that is made of the words."""

import functools
import itertools
import re

import numpy as np
import pytest

import tmapipe as tp
from examples.softmax import softmax_of
from tests.unit.test_timeline import well_formed
from tmapipe.errors import InputError
from tmapipe.gpu import records, stamps_of, watchdog
from tmapipe.gpu.build import build
from tmapipe.isa.ops import ARRIVALS
from tmapipe.program import places, trace
from tmapipe.timeline.stamped import pace_of_rows, recorded, row_of
from tmapipe.timeline.trace import Trace

S = tp.schedules
STAMPED = {
    "softmax": softmax_of(1024, 2, 8, held=True),
    "attention": S.Attention(64),
    "gemm": S.Gemm(),
    "pingpong": S.PingPong((64, 128, 64)),
}


def places_of(schedule):
    return places(trace(schedule, schedule.plan()))


@functools.cache
def ptx_of(name, instrument):
    """The text of a kernel of `STAMPED`."""
    return build(STAMPED[name], STAMPED[name].plan(), keep=True, unroll=False, instrument=instrument).ptx


def method(place):
    return getattr(place.node, "method", "end of tiles" if place.after else "tile")


def test_stamps_are_in_a_kernel_of_their_own():
    copy = S.Copy((4, 64), 2, 0)
    plain = build(copy, copy.plan(), keep=True)
    assert "%clock" not in plain.ptx and "stamp_at" not in plain.ptx
    stamped = build(copy, copy.plan(), keep=True, instrument="stamps")
    at = places_of(copy)
    assert stamped.ptx.count("%clock;") >= len(at) + 2 > 9 and stamped.used.spill_bytes == 0
    assert build(copy, copy.plan(), keep=True).ptx == plain.ptx


# As in tests/conftest.py, all tests of one kernel run in one process: their names begin alike.
@pytest.mark.parametrize("name", STAMPED, ids=lambda name: f"stamped {name}")
def test_each_record_is_written_as_it_is_read(name):
    """The stores of a record are in units of 16 bytes, and together as long as the record."""
    at = places_of(STAMPED[name])
    made = records(at)
    ptx = ptx_of(name, "stamps")
    assert ptx.count("stamp_clock") > len(at)
    numbers, end = [], 0
    for group in re.findall(r"\.reg \.pred room;.*?\n\}", ptx, re.DOTALL):
        for store in re.findall(r"@room (st\.global.*?);", group):
            offset, size = int(re.search(r"\+(\d+)\]", store)[1]), {"v2": 8, "v4": 16}.get(store.split(".")[2], 4)
            assert offset % size == 0 and offset >= end, "aligned, and one after another"
            end = offset + size
        if last := re.search(r"add\.u32 low, low, (\d+);", group):
            numbers.append(int(re.search(r"(?:mov|xor)\.b32 word\d+,(?: word\d+,)? (\d+);", group)[1]))
            assert int(last[1]) == 4 * made[numbers[-1]].words == end
            end = 0
    assert set(numbers) == set(range(len(made))) and sum(len(record.places) for record in made) == len(at)
    assert all(4 * record.words <= watchdog.ROOM for record in made)


@pytest.mark.parametrize(
    "name, times", [("attention", 2), ("pingpong", 3)], ids=["stamped attention", "stamped pingpong"]
)
def test_ctas_without_rows_and_later_tiles_read_no_clock(name, times):
    """The program is there twice, and a loop over tiles that are shared out in advance once more. One of them has stamps."""
    schedule, plain, stamped = STAMPED[name], ptx_of(name, ""), ptx_of(name, "stamps")
    for instruction in ("cp.async.bulk.tensor", "wgmma.mma_async"):
        assert stamped.count(instruction) == times * plain.count(instruction)
    at = places_of(schedule)
    clocks = len(re.findall(r"%clock;", stamped))
    assert clocks == sum(not place.shared for place in at) + 2, "each place once, and the kernel's beginning and end"
    assert plain.count("%clock") == 0
    after = [place for place in at if method(place) == "end of tiles"]
    assert [place.warps for place in after] == ([{0}, {4, 8}] if times == 3 else [])
    assert len({id(place.node) for place in at if method(place) == "tile"}) == len(schedule.plan().roles)


def test_the_same_tiles_are_stamped_in_all_roles():
    """A third of them, in whole turns of the teams: of one that takes 5 % longer, a CTA with several ends 2.5 % later."""
    copy, ping_pong = S.Copy((4, 64), 2, 0).plan(), S.PingPong((64, 128, 64)).plan()
    for tiles in range(1, 200):
        for plan, teams in ((copy, 1), (ping_pong, 2)):
            address, number = watchdog.launched(plan, [1 << 40, 8], tiles)
            ctas, most = number & 0xFFFFFFFF, number >> 32
            assert (address, ctas, most % teams) == (1 << 40, 8, 0)
            assert most > tiles / 3 - teams and (most == teams or 2 * most <= tiles)
    assert watchdog.launched(copy, [1 << 40, 8, watchdog.EVERY], 7)[1] < 1 << 63


def test_a_record_goes_on_across_a_branch_of_one_warp():
    """Of a softmax of 8 warps, the first of which stores: each turn is one record, in which the other one leaves a gap."""
    at = places_of(softmax_of(1024, 2, 8, held=True))
    turn = next(r for r in records(at) if len(r.places) > 3)
    assert len(turn.groups) == 1, "no accumulators: clocks wait in registers"
    own = at[turn.first : turn.first + len(turn.places)]
    names = [(method(place), sorted(place.warps)) for place in own]
    assert names == [
        ("tile", [1, 5]), ("mbarrier_wait", [1, 5]), ("bulk_wait_group", [1]), ("bulk_wait_group", [1]),
        ("bulk_commit_group", [1]), ("mbarrier_arrive", [1, 5]),
    ]  # fmt: skip
    assert [method(place) for place in own if place.shared] == ["bulk_commit_group", "mbarrier_arrive"]
    number = records(at).index(turn)
    words = encoded(turn, number, [100, 110, 120, 130], [3]) + encoded(turn, number, [200, 210, 220, 230], [4])
    for warp, stores in ((1, True), (5, False)):
        read = [each.tolist() for each in stamps_of(warp, np.array(words, np.int32), records(at), 290)]
        first = [(5, 0, 100), (6, 3, 110), (7, 0, 120), (8, 0, 130), (9, 0, 200), (10, 3, 200)]
        second = [(5, 0, 200), (6, 4, 210), (7, 0, 220), (8, 0, 230), (9, 0, 290), (10, 4, 290)]
        assert turn.first == 5
        assert list(zip(*read, strict=True)) == [each for each in first + second if stores or warp in at[each[0]].warps]


def test_clocks_do_not_wait_in_registers_while_a_warpgroup_computes():
    at = places_of(S.Attention(64))
    assert not any(place.kept and after.computes for place, after in itertools.pairwise(at))
    assert any(place.kept for place in at)


def test_only_adjacent_places_share_a_clock():
    """An arrival at the end of a loop over tiles, but not behind a wait; a commit before an arrival, in the same loop."""
    for schedule in (S.Copy((4, 64)), S.Gemm(), S.PingPong(), S.Attention(64), softmax_of(1024, 2, 8, held=True)):
        at = places_of(schedule)
        for place, after in itertools.pairwise(at):
            if place.shared and method(place) == "bulk_commit_group":
                assert method(after) == "mbarrier_arrive" and not after.passed and not after.computes
            elif place.shared:
                assert method(place) in ARRIVALS and place.last and not place.passed


def encoded(record, number, clocks, slots):
    """A record's words. slots: of `record.slots`."""
    words = [0] * record.words
    for at, clock in zip([at for at, *_ in record.places if at is not None], clocks, strict=True):
        words[at] = clock
    slots = [*slots, 0, 0]
    words[-1] = slots[0] * 65536 + number
    for i in range(len(record.slots) // 2):
        words[len(words) - 1 - len(record.slots) // 2 + i] = slots[1 + 2 * i] ^ 65536 * slots[2 + 2 * i]
    return words


def test_a_slot_may_be_none():
    """Before a role holds a slot, -1: in any place, beside any other."""
    made = records(places_of(S.Attention(64)))
    tried = 0
    for number, record in enumerate(made):
        if len(record.slots) < 2:
            continue
        clocks = [10 * i for i, _ in enumerate([1 for at, *_ in record.places if at is not None])]
        for chosen in itertools.product((-1, 0, 5), repeat=len(record.slots)):
            words = np.array([word % 2**32 for word in encoded(record, number, clocks, list(chosen))], np.uint32)
            (warp, *_) = frozenset.intersection(*(warps for *_, warps in record.places))
            numbers, slots, _ = stamps_of(warp, words.view(np.int32), made, 99)
            which = [each[1] for each in record.places]
            assert [slots[numbers.tolist().index(record.first + i)] for i, w in enumerate(which) if w is not None] == [
                chosen[w] for w in which if w is not None
            ]
            tried += 1
    assert tried > 9


def row(warp, records, written):
    """A row as the kernel writes it: of each record its number, the clocks and the slots. Nanoseconds are half of the clock,
    which goes round."""
    first, end = 2**32 - 50, written[-1][1][-1] + 10
    words = [2000, 0, first, 0, 2000 + end // 2, 0, first + end, 0]
    for number, clocks, slots in written:
        words += encoded(records[number], number, [first + clock for clock in clocks], slots)
    return row_of(0, warp, np.array([word % 2**32 for word in words], np.uint32).view(np.int32), records)


def test_stamps_become_a_trace():
    """Six tiles through two slots: the loader waits for a free one, the storing warp for data."""
    copy = S.Copy((4, 64), 2, 0)
    program = trace(copy, copy.plan())
    at = places(program)
    known = records(at)
    fill, drain = (i for i, r in enumerate(known) if method(at[r.first]) == "tile")
    made = [[method(p) for p in at[r.first : r.first + len(r.places)]] for r in (known[fill], known[drain])]
    assert made == [
        ["tile", "mbarrier_arrive_expect_tx"],
        ["tile", "mbarrier_wait", "bulk_commit_group", "mbarrier_arrive"],
    ]
    assert [node.method for node in at[known[fill].first + 1].passed] == ["mbarrier_wait"]
    load, store = [], []
    for i in range(6):
        t, slot = 100 + 400 * i, i % 2
        load.append((fill, [t, t + (300 if i > 1 else 10)], [slot]))
        store.append((drain, [t + 50, t + 380, t + 390, t + 430], [slot]))
    rows = [row(0, known, load), row(1, known, store)]
    traced = Trace(copy.plan(), recorded(copy.plan(), program, at, rows, 6), [])
    assert traced.pace() == pace_of_rows(copy.plan(), at, rows) == 400 and traced.gigahertz == 2
    slices, arrows, names = well_formed(traced.timeline())
    blocked = [each for each in slices if each["cat"] == "wait"]
    assert len(blocked) == 4 + 6 and len(arrows) == 4 + 6
    reasons = {head["args"]["waits for"]: tail["name"].split()[0] for tail, head in arrows}
    assert reasons == {"data": "x", "a free slot": "arrives"}
    assert {each["args"]["role"] for each in slices if each["cat"] == "tile"} == {"load", "store"}
    used = [each["args"]["iteration"] for each in slices if each["cat"] == "slot" and each["name"] == "in use"]
    assert sorted(used) == list(range(6)), "each fill of a slot, from when it has landed until it is released"
    assert {name for name in names.values() if "TMA" in name} == {"TMA loads 0", "TMA stores 0"}
    with pytest.raises(InputError, match="ring = 'other'"):
        traced.pace("other")


def test_a_release_may_be_stamped_after_the_next_fill():
    """Where it takes the clock of the next turn. It counts in the phase that its warp has waited for."""
    copy = S.Copy((4, 64), 2, 0)
    program = trace(copy, copy.plan())
    at = places(program)
    known = records(at)
    fill, drain = (i for i, r in enumerate(known) if method(at[r.first]) == "tile")
    load, store = [], []
    for i in range(8):
        t, slot = 100 + 400 * i, i % 2
        load.append((fill, [t - 770, t - 380] if i > 1 else [t // 40, t // 40 + 8], [slot]))
        store.append((drain, [t + 50, t + 380, t + 390, t + 445], [slot]))
    rows = [row(0, known, load), row(1, known, store)]
    slices, _, _ = well_formed(Trace(copy.plan(), recorded(copy.plan(), program, at, rows, 8), []).timeline())
    used = [each["args"]["iteration"] for each in slices if each["cat"] == "slot" and each["name"] == "in use"]
    assert sorted(used) == list(range(8))


def test_a_trace_ends_with_the_stamped_tiles():
    """Of twelve tiles four are stamped. What the warps do after the others is not drawn: nobody knows in which phase."""
    copy = S.Copy((4, 64), 2, 1)
    program = trace(copy, copy.plan())
    at = places(program)
    known, names = records(at), ("tile", "end of tiles")
    (fill, filled), (drain, drained) = (
        [i for i, r in enumerate(known) if method(at[r.first]) in names and warp in at[r.first].warps]
        for warp in (0, 1)
    )
    last = len(known) - 1
    assert method(at[known[last].first]) == "mbarrier_arrive" and last > drained
    load, store = [], []
    for i in range(4):
        t, slot = 100 + 400 * i, i % 2
        load.append((fill, [t, t + (300 if i > 1 else 10)], [slot]))
        store.append((drain, [t + 50, t + 380, t + 390, t + 430], [slot, (i - 1) % 2 if i else -1]))
    made = {}
    for more in (0, 1):
        of_load = row(0, known, [*load, (filled, [1650], [more])])
        of_store = row(1, known, [*store, (drained, [1740], [more]), (last, [5010], [1])])
        assert (of_load.left, of_store.left) == (more == 1, more == 1)
        assert of_store.ended[1] == 5020 and not of_store.full
        made[more] = Trace(copy.plan(), recorded(copy.plan(), program, at, [of_load, of_store], 12), [])
        assert made[more].pace() == pace_of_rows(copy.plan(), at, [of_load, of_store]) == 400
    whole, part = (made[more].timeline() for more in (0, 1))
    assert whole["otherData"]["left out"] == "" and whole["otherData"]["cycles"] >= 5000
    assert part["otherData"]["left out"] == "4 of 12 tiles of a CTA are recorded"
    assert part["otherData"]["cycles"] < 1800
    for document, tiles in ((whole, 4), (part, 4)):
        slices, arrows, _ = well_formed(document)
        assert sum(each["cat"] == "tile" and each["args"]["role"] == "load" for each in slices) == tiles
        assert len(arrows) == 2 + 4
