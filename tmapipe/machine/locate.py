"""Source lines of operations and of errors, in the user's files: the innermost frame outside the library, or in its
schedules."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tmapipe.errors import InputError, ScopeError

__all__ = ["TRACED", "Place", "as_python", "line_of", "line_of_errors", "locate"]

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SCHEDULES = os.path.join(_LIBRARY, "schedules") + os.sep
_MACHINE = os.path.join(_LIBRARY, "machine") + os.sep
_ISA = os.path.join(_LIBRARY, "isa") + os.sep
_PROGRAM = os.path.join(_LIBRARY, "program") + os.sep
_TRACE = os.path.join(_PROGRAM, "trace.py")
_STARTER = os.path.join(_MACHINE, "machine.py")
_KERNEL = os.path.join(_LIBRARY, "kernel.py")
TRACED = "<traced program>"  #: the file of the code by which the model carries out a program


class Place(str):
    """ "file:line" in tmapipe/schedules. user: the innermost line outside tmapipe that led there, of a subclass."""

    user = ""


def locate(frame: FrameType | None = None) -> str | None:
    """ "file:line" of the innermost frame outside tmapipe or inside tmapipe/schedules (then a `Place`); if there is none, of
    the innermost frame outside tmapipe/machine and tmapipe/isa. Starts at the caller, or at *frame*."""
    found: list[str | None] = [None, None, None]  # by rank less 1
    frame = frame or sys._getframe(1)
    while frame is not None and found[2] is None:
        if frame.f_code.co_filename == TRACED and (line := _line_of_user(frame, frame.f_lineno)):
            return line if found[1] is None else _of_ranks(*found)
        rank, name = _classify(frame.f_code.co_filename, frame.f_code.co_name)
        if rank == 4:
            break
        if rank and found[rank - 1] is None:
            found[rank - 1] = f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return _of_ranks(*found)


def _of_ranks(own: str | None, shipped: str | None, user: str | None) -> str | None:
    if shipped is None:
        return user or own
    place = Place(shipped)
    place.user = user or ""
    return place


@contextlib.contextmanager
def line_of_errors() -> Iterator[None]:
    """Says in the message of an error of a body at which line of it it was raised."""
    try:
        yield
    except (InputError, ScopeError) as error:
        error.args = (f"{error} At {line_of(error)}.",)
        raise
    except Exception as error:
        _end_at_user(error)
        raise


def as_python(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """What Python does for a line of a body. An error that this raises is of that line, where its traceback then ends."""
    return function(*arguments, **named)


def _end_at_user(error: Exception) -> None:
    frames, last = [], error.__traceback__
    while last is not None:
        frames.append(last)
        last = last.tb_next
    if frames[-1].tb_frame.f_code is as_python.__code__:
        for each in reversed(frames):
            if _classify(each.tb_frame.f_code.co_filename, each.tb_frame.f_code.co_name)[0] >= 2:
                each.tb_next = None
                return


def line_of(error: Exception) -> str | None:
    """As `locate`, of where *error* was raised: lines of frames that were left since have gone on."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for wanted in (3, 2):
        for frame, line in reversed(frames):
            if frame.f_code.co_filename == TRACED:
                found = _line_of_user(frame, line)
                return getattr(found, "user", "") or found
            rank, name = _classify(frame.f_code.co_filename, frame.f_code.co_name)
            if rank == wanted:
                return f"{name}:{line}"
    return locate(frames[-1][0])


def _line_of_user(frame: FrameType, line: int) -> str | None:
    """That which a line of the code of a traced program comes from."""
    found: str | None = frame.f_globals["lines"][line]
    return found


@functools.cache  # by file and function: equal code of two files is equal
def _classify(file: str, function: str) -> tuple[int, str]:
    """0: the machine, an instruction, or CuTe DSL; 1: elsewhere in the library; 2: a shipped schedule; 3: the user's code; 4:
    where a warp's program was started. And the file's name to show."""
    path = os.path.abspath(file)
    if (path, function) in ((_STARTER, "record"), (_TRACE, "trace"), (_KERNEL, "kernel_main")):
        return 4, ""
    own, shipped = path.startswith(_LIBRARY), path.startswith(_SCHEDULES)
    traced = file in ("<if>", TRACED) or "nvidia_cutlass_dsl" in path  # by which CuTe DSL calls parts of a body
    rank = 0 if path.startswith((_MACHINE, _ISA, _PROGRAM)) or traced else 2 if shipped else 1 if own else 3
    shown = os.path.relpath(path, os.path.dirname(_LIBRARY[:-1])) if path.startswith(_LIBRARY) else path
    return rank, shown
