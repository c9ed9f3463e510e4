"""What became of a call: right, refused well, or one of the outcomes that must not be."""

from __future__ import annotations

import enum
import re
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from tmapipe.errors import InputError, PipelineError

__all__ = ["Call", "Outcome", "Own", "Unsafe", "Wrong", "judge"]

_SIGNATURE = re.compile(
    r"\(\) (got multiple values|got an unexpected keyword|missing \d+ required|takes .* positional)"
)
SECONDS = 30  # of CPU time, that no call takes, and WAITING of any: what takes longer counts as a hang
WAITING = 600


class Outcome(enum.Enum):
    """The value is what it means."""

    RIGHT = "the result is NumPy's"
    REFUSED = "an InputError that names argument, value, rule and fix, or an error that names the line of a body"
    OWN = "Python's own exception for the caller's line, of a name that nothing has, or PyTorch's of its operator"
    UNSAFE = "check() says what can go wrong"
    POOR = "an InputError without one of its four parts"
    BARE = "an exception that is not the library's"
    WRONG = "a result that is not NumPy's, or a call that should have been refused"
    HANG = f"no end after {SECONDS} s of CPU time"
    CRASH = "the process ended"

    @property
    def good(self) -> bool:
        return self in (Outcome.RIGHT, Outcome.REFUSED, Outcome.OWN, Outcome.UNSAFE)


class Wrong(Exception):
    """Raised by a call's own comparison with what NumPy says."""


class Unsafe(Exception):
    """Raised by a call whose schedule `check` refuses."""


class Own(Exception):
    """Raised by a call of an operator that falls back to PyTorch's, which refuses the same with its own words."""


class Call(NamedTuple):
    """One call of the library.

    Args:
        text: how to write it, for the report
        run: makes it, and raises `Wrong` for a result that is not NumPy's
    """

    text: str
    run: Callable[[], None]


class _Hang(BaseException):
    pass


def judge(call: Call) -> tuple[Outcome, str]:
    """The outcome, and a line about it: of an exception its type, message and place."""

    def stop(*_: Any) -> None:
        raise _Hang

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, SECONDS), signal.ITIMER_REAL: (signal.SIGALRM, WAITING)}
    before = {which: signal.signal(which, stop) for which, _ in timers.values()}
    for timer, (_, seconds) in timers.items():
        signal.setitimer(timer, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.run()
        return Outcome.RIGHT, ""
    except Wrong as error:
        return Outcome.WRONG, str(error)
    except Unsafe as error:
        return Outcome.UNSAFE, str(error)
    except Own as error:
        return Outcome.OWN, str(error)
    except InputError as error:
        return _of_parts(error)
    except PipelineError as error:
        return Outcome.REFUSED, f"{type(error).__name__}: {error}"
    except _Hang:
        return Outcome.HANG, ""
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        if frame.filename.startswith("<fuzz") or (isinstance(error, TypeError) and _SIGNATURE.search(_text(error))):
            return Outcome.OWN, f"{type(error).__name__}: {_text(error)}"
        text = (_text(error).splitlines() or [""])[0]
        return (
            Outcome.BARE,
            f"{type(error).__name__}: {text[:120]} [{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}]",
        )
    finally:
        for timer, (which, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(which, before[which])


def _text(error: Exception) -> str:
    try:
        return str(error)
    except ValueError:  # an integer of more digits than Python prints
        return "of thousands of digits"


def _of_parts(error: InputError) -> tuple[Outcome, str]:
    texts = error.argument, error.rule, error.fix
    whole = (
        all(isinstance(text, str) and text.strip() for text in texts) and len(error.rule) >= 8 and len(error.fix) >= 3
    )
    try:
        text = repr(error.value)
    except ValueError:  # an integer of more digits than Python prints
        return (Outcome.REFUSED if whole else Outcome.POOR), f"InputError: {error}"
    whole = whole and (text in str(error) or len(text) > 400)  # which is cut short
    return (Outcome.REFUSED if whole else Outcome.POOR), f"InputError: {error}"
