"""How long a check takes: a limit that is kept, what it says meanwhile, and exceptions from outside, which pass."""

from __future__ import annotations

import io
import signal
import sys
import time
from typing import Any

import pytest

import tmapipe as tp
from tmapipe import prove as verdicts
from tmapipe.base import disk
from tmapipe.check import linear as patience
from tmapipe.errors import InputError
from tmapipe.program import trace
from tmapipe.testing import assert_safe

EVERY = "every trip count"


class Ring(tp.Schedule):
    """given, taken: slots of a tile, as each role says."""

    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    a = tp.TmaLoadStage("m k", tile=(8, 64), ring=ring)
    given: Any = None
    taken: Any = None

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k") if self.given is None else self.given):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)

    @work.jit
    def take(self, k, tile):
        for step in range(k.steps("a", "k") if self.taken is None else self.taken):
            with k.ring.consume() as slot:
                slot.a.read()
                if step == 2_000_000:
                    slot.a.read()


def ring(given=None, taken=None):
    class Formed(Ring):
        load, work, ring = Ring.load, Ring.work, Ring.ring

    Formed.given, Formed.taken = given, taken
    return Formed()


def slow():
    return tp.schedules.PingPong((64, 64, 16), (1, 1), 3, tiles=tp.tiles.DynamicTiles())


# ---- many operations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [None, 1_000_000])
def test_a_million_iterations_and_comparisons_with_two_million_close(slots):
    assert ring(slots, slots).check().trips == EVERY


def test_what_takes_too_many_operations_to_run_is_no_error(monkeypatch):
    monkeypatch.setattr(verdicts, "MAX_EVENTS", 5_000)
    monkeypatch.setattr(verdicts, "LARGE", 2_000)
    report = ring(10_000, 9_999).check()
    assert report.ok and report.trips.startswith("up to 0 output tiles")
    assert "more than 5000 operations come" in report.trips


# ---- a limit of time --------------------------------------------------------------------------------------------------


def test_a_limit_of_time_is_kept_and_said():
    program, before = trace(slow()), time.perf_counter()
    report = verdicts.check_schedule(program.schedule, program=program, seconds=0.2)
    assert time.perf_counter() - before < 0.8
    assert report.ok and report.unfinished and report.trips.startswith("up to ")
    assert "0.2 seconds, the limit that was given" in report.trips


def test_the_environment_gives_a_limit_too_and_the_argument_comes_first(monkeypatch):
    monkeypatch.setenv(patience.VARIABLE, "1e-6")
    assert ring().check().unfinished
    assert ring().check(seconds=60).trips == EVERY
    monkeypatch.setenv(patience.VARIABLE, "")
    assert not ring().check().unfinished


@pytest.mark.parametrize("seconds", [0, -1, True, "3", float("nan"), float("inf"), [1]])
def test_a_limit_is_a_positive_number(seconds, monkeypatch):
    with pytest.raises(InputError, match="seconds"):
        ring().check(seconds=seconds)
    monkeypatch.setenv(patience.VARIABLE, "soon")
    with pytest.raises(InputError, match=patience.VARIABLE):
        ring().check()


def test_what_was_not_looked_at_in_time_is_not_kept_as_safe(monkeypatch):
    kept: list[Any] = []
    monkeypatch.setattr(disk, "keep", lambda *given: kept.append(given))
    monkeypatch.setattr(disk, "recall", lambda *given: None)
    monkeypatch.setenv(patience.VARIABLE, "1e-6")
    program = trace(ring())
    verdicts.require_safe_once(program.schedule, {}, program, "limited")
    assert not kept and "limited" not in verdicts.known
    monkeypatch.delenv(patience.VARIABLE)
    verdicts.require_safe_once(program.schedule, {}, program, "limited")
    assert kept and verdicts.known.pop("limited") == ()


# ---- what it says -----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_a_long_check_says_on_a_terminal_what_it_is_doing(kind, monkeypatch):
    monkeypatch.setattr(patience, "QUIET", 0.0)
    monkeypatch.setattr(patience, "PAUSE", 0.0)
    stream = kind()
    monkeypatch.setattr(sys, "stderr", stream)
    tp.schedules.Gemm((64, 64, 16), (1, 1), 3).check()
    said = stream.getvalue()
    if kind is Terminal:
        assert "checking Gemm, 0 s: " in said and "states between iterations so far" in said
        assert said.endswith("\r\033[K"), "the line is taken away"
    else:
        assert not said


def test_a_short_check_and_one_without_stderr_say_nothing(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    ring().check()
    assert not stream.getvalue()
    monkeypatch.setattr(patience, "QUIET", 0.0)
    monkeypatch.setattr(sys, "stderr", None)
    ring().check()


# ---- exceptions from outside ------------------------------------------------------------------------------------------


class Stop(Exception):
    """As a user's handler of a signal raises it."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop, SystemExit])
def test_what_a_body_is_interrupted_by_passes(error):
    class Interrupted(Ring):
        load, work, ring = Ring.load, Ring.work, Ring.ring

        @load.jit
        def fill(self, k, tile):
            raise error("now")

    for call in (Interrupted().check, Interrupted().program, lambda: assert_safe(Interrupted())):
        with pytest.raises(error, match="now"):
            call()


def test_what_a_signals_handler_raises_during_a_check_passes():
    def stop(signum, frame):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        program = trace(slow())
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Stop):
            verdicts.check_schedule(program.schedule, program=program)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop, TimeoutError])
def test_what_interrupts_a_problem_that_is_run_passes(error, monkeypatch):
    def run_problem(*given):
        raise error

    monkeypatch.setattr(verdicts, "run_problem", run_problem)
    with pytest.raises(error):
        ring(3, 2).check()
