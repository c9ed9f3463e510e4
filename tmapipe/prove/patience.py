"""How long a check may take, and what it says on a terminal while it takes long."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from tmapipe.errors import InputError

VARIABLE = "TMAPIPE_CHECK_SECONDS"
QUIET = 5.0  # seconds before it says something
PAUSE = 0.25  # seconds between what it says
OFTEN = 128  # looks at the clock are as rare as that, of what is called for each operation
OF_PROOF = 0.75  # of the time; the rest is for problems that may show an error


class OutOfTime(Exception):
    """The time that the user has given is over."""


class Patience:
    """The time of one check. name: of the schedule; end: when it must be over, as `time.monotonic` says; doing: tells what is
    being done."""

    def __init__(self, name: str, seconds: float | None):
        self.name, self.seconds = name, seconds
        self.began = self.said = time.monotonic()
        self.end = math.inf if seconds is None else self.began + seconds
        self.doing: Callable[[], str] = str
        self.calls = 0
        self.shown = False

    def look(self) -> None:
        """Raises `OutOfTime` if the time is over; says what is being done, once in a while."""
        now = time.monotonic()
        if now > self.end:
            raise OutOfTime(f"{self.seconds:g} seconds, the limit that was given, were not enough")
        if now - self.began > QUIET and now - self.said > PAUSE:
            self.said = now
            self._say(now - self.began)

    def _say(self, seconds: float) -> None:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no stderr, or a closed one
            if sys.stderr.isatty():
                print(f"\r\033[Kchecking {self.name}, {seconds:.0f} s: {self.doing()}"[:160], end="", file=sys.stderr)
                sys.stderr.flush()
                self.shown = True

    def end_line(self) -> None:
        """Takes away what it has said."""
        if self.shown:
            with contextlib.suppress(AttributeError, OSError, ValueError):
                print("\r\033[K", end="", file=sys.stderr, flush=True)


_present: ContextVar[Patience | None] = ContextVar("patience", default=None)


@contextlib.contextmanager
def patience(name: str, seconds: float | None) -> Iterator[None]:
    """What is done inside has this time."""
    own = Patience(name, seconds)
    token = _present.set(own)
    try:
        yield
    finally:
        _present.reset(token)
        own.end_line()


@contextlib.contextmanager
def doing(what: Callable[[], str], share: float = 1.0) -> Iterator[None]:
    """What is done inside, in words, and the share of the time that is left for it."""
    own = _present.get()
    if own is None:
        yield
        return
    before = own.doing, own.end
    own.doing, own.end = what, own.end if own.seconds is None else min(own.end, own.began + share * own.seconds)
    try:
        yield
    finally:
        own.doing, own.end = before


def look(*_: Any) -> None:
    """As `Patience.look`, every now and then: for what is called often."""
    own = _present.get()
    if own is not None:
        own.calls += 1
        if own.calls % OFTEN == 0:
            own.look()


def look_now() -> None:
    """As `Patience.look`, each time."""
    own = _present.get()
    if own is not None:
        own.look()


def given(seconds: Any) -> float | None:
    """The limit of time of a check: *seconds*, or what the environment says.

    Raises:
        InputError: It is no positive number of seconds.
    """
    name, value = "seconds", seconds
    if seconds is None:
        name, value = VARIABLE, os.environ.get(VARIABLE)
        if not value:
            return None
        with contextlib.suppress(ValueError):
            value = float(value)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise InputError(
            name, value, "is a positive number of seconds", "e.g. 30; left out, a check takes as long as it needs"
        )
    return float(value)
