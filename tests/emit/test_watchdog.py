"""The watchdog: its code in a kernel, its kernels beside plain ones in caches, its report of a hang."""

import math
import pathlib

import pytest

import tmapipe as tp
from tests import watched
from tmapipe.errors import InputError
from tmapipe.gpu import kernels
from tmapipe.gpu.build import build
from tmapipe.gpu.watchdog import CTAS, WORDS, rows, sites
from tmapipe.program import trace

torch = pytest.importorskip("torch")
watchdog = pytest.importorskip("tmapipe.gpu.watchdog")


def ptx(schedule, **options):
    return build(schedule, schedule.plan(), keep=True, unroll=False, **options).ptx


def test_nothing_is_added_where_it_is_off(monkeypatch):
    """Neither by the variable, which a launch reads, nor by 0 seconds."""
    copy = tp.schedules.Copy((4, 64))
    plain = ptx(copy)
    assert "globaltimer" not in plain and "trap" not in plain
    monkeypatch.setenv(watchdog.VARIABLE, "5")
    copy.watchdog = 0
    assert copy.compile(unroll=False).ptx == plain


@pytest.mark.parametrize("schedule", watched.HANGING)
def test_every_wait_ends(schedule):
    made = schedule()
    made.watchdog = 5
    compiled = made.compile(unroll=False)
    waits = sites(trace(made, made.plan()))
    assert compiled.instrument == "watch" and compiled.used.spill_bytes == 0
    assert compiled.ptx.count("trap;") == len(waits) > 1 and "LAB_WAIT" not in compiled.ptx
    for number in range(1, len(waits) + 1):
        assert f"st.volatile.global.b32 [row], {number};" in compiled.ptx
    last = max(len(site.loops) for site in waits)
    assert f"[row+{12 + 4 * last}]" in compiled.ptx and f"[row+{16 + 4 * last}]" not in compiled.ptx


def test_kernels_are_kept_apart():
    names = [kernels.name_of("a", {"x": 2}, on) for on in ("", *watchdog.INSTRUMENTS)]
    assert len(set(names)) == 3


@pytest.mark.parametrize("given", [True, -1, math.nan, math.inf, "soon", 1e9])
def test_bad_seconds_are_refused(given, monkeypatch):
    copy = tp.schedules.Copy()
    copy.watchdog = given
    with pytest.raises(InputError, match=r"Copy\.watchdog"):
        watchdog.seconds_of(copy)
    copy.watchdog = None
    monkeypatch.setenv(watchdog.VARIABLE, str(given).replace("True", "yes"))
    with pytest.raises(InputError, match="TMAPIPE_WATCHDOG"):
        watchdog.seconds_of(copy)


def test_the_schedule_says_it_before_the_variable(monkeypatch):
    copy = tp.schedules.Copy()
    assert watchdog.seconds_of(copy) is None
    monkeypatch.setenv(watchdog.VARIABLE, "5")
    assert watchdog.seconds_of(copy) == 5
    copy.watchdog = 0
    assert watchdog.seconds_of(copy) is None
    copy.watchdog = 0.5
    assert watchdog.seconds_of(copy) == 0.5
    monkeypatch.setenv(watchdog.VARIABLE, "")
    copy.watchdog = None
    assert watchdog.seconds_of(copy) is None


class Trapped:
    """An event of a kernel that has trapped."""

    def record(self):
        pass

    def query(self):
        raise RuntimeError("CUDA error: unspecified launch failure")


class Silent(Trapped):
    """An event of a kernel that does not end."""

    def query(self):
        return False


@pytest.fixture
def dog(monkeypatch):
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, pin_memory, **named: zeros(*shape, **named))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", Trapped)
    made = watched.OneTooMany()
    return watchdog.Watchdog(made, made.plan(), {}, 5.0)


def test_a_hang_is_said_with_the_users_line_and_the_checks_view(dog):
    """Warp 1 of CTAs 1 and 66, which share their rows' places with CTAs 65 and 2, waits in its second wait."""
    waits = sites(trace(dog.schedule, dog.plan))
    number = next(i for i, site in enumerate(waits) if site.node.where.endswith(str(line_of("as again"))))
    inner = next(
        i for i, site in enumerate(waits) if site.node.where.endswith(str(line_of("k.ring.consume() as slot", 2)))
    )
    assert dog.numbers == [dog.rows.data_ptr(), 5_000_000_000] and dog.rows.shape == (CTAS * 2, WORDS)
    assert rows(dog.plan) == CTAS * 2
    for cta, site, turns in ((1, number, [3, 0, 0, 0]), (66, inner, [3, 2, 0, 0])):
        dog.rows[cta % CTAS * 2 + 1] = torch.tensor([site + 1, cta, 1, 0, *turns])
    with pytest.raises(tp.errors.DeadlockError) as caught:
        dog.wait()
    text = str(caught.value)
    path = watched.__file__
    assert text.startswith("OneTooMany hangs on the GPU: a wait took more than 5 s (watchdog).\n")
    where = f"(slot 1 of ring ring), at {path}:{line_of('as again')}"
    assert f"store (warp 1) of CTA 1 waits for ring.full[1], parity 0 {where}, in iteration 3 of its tiles" in text
    assert "in iteration 2 of the loop at " in text and "store (warp 1) of CTA 66" in text
    assert "no warp of load has waited" in text
    assert "[TRIP_COUNTS]" in text and "Fix: start it anew." in text
    assert [row.cta for row in caught.value.waits] == [1, 66]
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.where == f"{path}:{line_of('as again')}"


def test_the_users_line_comes_before_the_librarys():
    """In a cluster, the loader's tail waits, too."""
    made = watched.InCluster()
    waits = sites(trace(made, made.plan()))
    tails = [i for i, site in enumerate(waits) if site.node.where.startswith("tmapipe")]
    own = next(i for i, site in enumerate(waits) if site.node.where.startswith(watched.__file__))
    found = [watchdog.Row(site, 0, 0, 1, 0, (0, 0, 0, 0)) for site in (tails[0], own)]
    error = watchdog.hang(made, made.plan(), found, 5.0, "safe")
    assert error.where.startswith(watched.__file__) and "tmapipe/" in str(error)


def test_a_kernel_that_does_not_end_is_given_up(dog, monkeypatch):
    """Of which the driver does not say that it has trapped."""
    monkeypatch.setattr(torch.cuda, "Event", Silent)
    dog.seconds = 0.01
    dog.rows[1] = torch.tensor([1, 0, 1, 0, 0, 0, 0, 0])
    with pytest.raises(tp.errors.DeadlockError, match=r"load|store"):
        dog.wait()


def test_other_failures_are_left_as_they_are(dog):
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        dog.wait()


def test_captured_launches_are_not_waited_for(dog, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    dog.wait()


def line_of(text, which=1):
    lines = pathlib.Path(watched.__file__).read_text().splitlines()
    found = [i for i, line in enumerate(lines, 1) if text in line]
    return found[which - 1]
