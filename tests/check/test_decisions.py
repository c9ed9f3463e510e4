"""Bodies that look at where they are: each class of them in two ways, a broken one and its right twin.

What the roles decide on is the same in the right twins, so they are proved for all shapes. The broken ones are rejected, by a
problem that is run.
"""

import linecache
import re
import threading

import pytest

import tmapipe as tp
from examples.attention import attention_of
from examples.ragged import RaggedSums
from examples.stencil import Stencil
from tests.check.deciding import CASES, STARTS, Placed
from tests.check.unseen import NOT_TRACED, REFUSED, UNSEEN, FailsAtAnEntry, LanesBySteps, RowsOfATable
from tests.sweeps import ALL, sample
from tmapipe.check import Kind

EVERY = "every trip count"


@pytest.mark.parametrize("case", sample(CASES, 2, first=1), ids=lambda case: case.name)
def test_the_right_twin_is_proved(case):
    report = case.right().check()
    assert report.ok and report.trips == EVERY, f"{report}\n{report.trips}\n{report.runs}"


#: Of hundreds of kinds of tiles, which is a matter of seconds.
MANY = {"an entry for each turn"}


@pytest.mark.parametrize("case", [each for each in CASES if ALL or each.name not in MANY], ids=lambda case: case.name)
def test_the_broken_one_is_rejected_at_its_lines(case):
    report = case.broken().check()
    assert report.kinds() & {Kind.TRIP_COUNTS, Kind.DEADLOCK, Kind.MISSING_ARRIVAL, Kind.IN_FLIGHT_AT_EXIT}, (
        f"{report}\n{report.runs}"
    )
    assert report.trips != EVERY
    assert any("deciding.py" in place for finding in report.errors for place in finding.where), str(report)


def test_a_body_that_is_refused_in_a_small_problem_says_so():
    """Two lanes arrive where there are two steps."""
    with pytest.raises(tp.InputError, match=r"mbarrier_arrive\(lanes\) = 2: .*"):
        LanesBySteps().check()


@pytest.mark.parametrize("make", UNSEEN, ids=lambda make: make.__name__)
def test_what_is_not_seen_through_is_said(make):
    report = make().check()
    assert not report.ok or "; not shown: " in report.trips, f"{report.trips}\n{report.runs}"


@pytest.mark.parametrize(("make", "words"), NOT_TRACED, ids=lambda each: getattr(each, "__name__", ""))
def test_what_no_trace_has_is_refused_at_its_line(make, words):
    with pytest.raises(tp.errors.ScopeError, match=words) as caught:
        make().check()
    file, line = re.search(r" At (.*):(\d+)\.$", str(caught.value)).groups()
    assert "# <- here" in linecache.getline(file, int(line)) or file.endswith("<string>"), caught.value


@pytest.mark.parametrize(
    "start", [lambda m: m * 2**31 // 2**29, lambda m: m + 2**40 - 2**40, lambda m: m * 65536 * 65536 % 7]
)
def test_numbers_that_no_kernel_has_are_refused(start):
    """They would be right in Python."""
    with pytest.raises((tp.errors.ScopeError, tp.InputError), match=r" 32 bits.*At .*(test_decisions|deciding).py"):
        Placed(lambda k, tile: (0, start(tile.m), 0)).check()


def test_rows_that_a_table_names_may_lie_anywhere():
    """Entries of the problems that are tried are no mistake of the program."""
    report = RowsOfATable(100).check()
    assert Kind.OUT_OF_RANGE not in report.kinds(), str(report)


def test_a_body_that_fails_somewhere_is_said():
    """There may be no such tables, so it is no finding."""
    report = FailsAtAnEntry().check()
    assert report.ok and re.search(r"; a body fails with .*rows = .* by zero\. At (.*unseen.py:\d+)\.", report.trips)
    file, line = re.search(r"by zero\. At (.*unseen.py):(\d+)\.", report.trips).groups()
    assert "8 // (entry - 3)" in linecache.getline(file, int(line))
    assert report.trips in str(report)


@pytest.mark.parametrize(("right", "broken"), [case[1:] for case in STARTS], ids=[case[0] for case in STARTS])
def test_copies_begin_at_whole_units(right, broken):
    """TMA traps at a start that is no multiple of 16 bytes along the last dimension, whatever it depends on."""
    report = Placed(right).check({"x": "fp16", "z": "fp16", "y": "fp16"})
    assert report.ok and report.trips == EVERY, f"{report}\n{report.runs}"
    report = Placed(broken).check({"x": "fp16", "z": "fp16", "y": "fp16"})
    assert report.kinds() == {Kind.OUT_OF_RANGE} and "not a multiple of 16" in report.errors[0].message, (
        report.runs
    )
    assert "deciding.py" in report.errors[0].where[0]


@pytest.mark.parametrize(("make", "word"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_python_state_is_refused(make, word):
    with pytest.raises(tp.errors.ScopeError, match=word):
        make().check()


# ---- whole kernels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, *ALL * [False]])
def test_attention_is_proved_for_all_shapes(causal):
    report = attention_of(causal=causal).check()
    assert report.ok and report.trips == EVERY, f"{report}\n{report.runs}"


def test_attention_whose_roles_see_different_keys_is_rejected():
    """The loader goes to the diagonal, the other role through all keys."""
    attention = attention_of(causal=True)

    class Uneven(type(attention)):
        def last(self, k, tile):
            return tile.m if k.role.name == "load" else k.steps("k", "s") - 1

    report = Uneven().check()
    assert Kind.TRIP_COUNTS in report.kinds() and "keys" in str(report), str(report)


def test_a_stencil_of_fp32():
    """The other examples that look at where they are print their verdict: tests/machine/test_examples.py."""
    report = Stencil().check({"x": "fp32"})
    assert report.ok and report.trips == EVERY, f"{report}\n{report.runs}"


def test_checks_in_several_threads():
    """Symbols of proofs are shared, so checks take turns."""
    found = []

    def look(schedule):
        try:
            found.append(schedule.check().trips)
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=look, args=(tp.schedules.Gemm((64, 64, 16), (1, 1), 2),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert found == ["every trip count"] * len(threads)


def test_groups_that_end_elsewhere_for_one_role_are_rejected():
    class OneMore(RaggedSums):
        @RaggedSums.work.jit
        def add(self, k, tile):
            total = k.full("y", 0.0)
            for _ in range(k.begins.entry(tile.g + 1) - k.begins.entry(tile.g) + 1):
                with k.ring.consume() as slot:
                    total = total + slot.x.read()
            k.y.store(tile, total)

    class AlwaysSome(RaggedSums):
        @RaggedSums.load.jit
        def fill(self, k, tile):
            first, end = k.begins.entry(tile.g), k.begins.entry(tile.g + 1)
            with k.ring.produce() as slot:
                slot.x.load(tile, m=first)
            for i in range(end - first - 1):
                with k.ring.produce() as slot:
                    slot.x.load(tile, m=first + 1 + i)

    assert not OneMore().check().ok and not AlwaysSome().check().ok
