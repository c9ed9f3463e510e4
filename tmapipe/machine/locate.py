"""Source lines of operations and of errors, in the user's files: the innermost frame outside the library, or in its
schedules."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Iterator
from types import FrameType

from tmapipe.errors import InputError, ScopeError

__all__ = ["TRACED", "line_of", "line_of_errors", "locate"]

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SCHEDULES = os.path.join(_LIBRARY, "schedules") + os.sep
_MACHINE = os.path.join(_LIBRARY, "machine") + os.sep
_ISA = os.path.join(_LIBRARY, "isa") + os.sep
_PROGRAM = os.path.join(_LIBRARY, "program") + os.sep
_TRACE = os.path.join(_PROGRAM, "trace.py")
_STARTER = os.path.join(_MACHINE, "machine.py")

TRACED = "<traced program>"  #: the file of the code by which the model carries out a program


def locate(frame: FrameType | None = None) -> str | None:
    """ "file:line" of the innermost frame outside tmapipe or inside tmapipe/schedules; if there is none, of the innermost
    frame outside tmapipe/machine and tmapipe/isa. Starts at the caller, or at *frame*."""
    fallback = None
    frame = frame or sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == TRACED and (line := _line_of_user(frame, frame.f_lineno)):
            return line
        rank, name = _classify(frame.f_code.co_filename, frame.f_code.co_name)
        if rank == 3:
            break
        if rank == 2:
            return f"{name}:{frame.f_lineno}"
        if rank == 1 and fallback is None:
            fallback = f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return fallback


@contextlib.contextmanager
def line_of_errors() -> Iterator[None]:
    """Says in the message of an error of a body at which line of it it was raised."""
    try:
        yield
    except (InputError, ScopeError) as error:
        error.args = (f"{error} At {line_of(error)}.",)
        raise


def line_of(error: Exception) -> str | None:
    """As `locate`, of where *error* was raised: lines of frames that were left since have gone on."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        if frame.f_code.co_filename == TRACED:
            return _line_of_user(frame, line)
        rank, name = _classify(frame.f_code.co_filename, frame.f_code.co_name)
        if rank == 2:
            return f"{name}:{line}"
    return locate(frames[-1][0])


def _line_of_user(frame: FrameType, line: int) -> str | None:
    """That which a line of the code of a traced program comes from."""
    found: str | None = frame.f_globals["lines"][line]
    return found


@functools.cache  # by file and function: equal code of two files is equal
def _classify(file: str, function: str) -> tuple[int, str]:
    """0: the machine, an instruction, or CuTe DSL; 1: elsewhere in the library; 2: the user's code or a schedule; 3: where a
    warp's program was started. And the file's name to show."""
    path = os.path.abspath(file)
    if (path == _STARTER and function == "record") or (path == _TRACE and function == "trace"):
        return 3, ""
    own = path.startswith(_LIBRARY) and not path.startswith(_SCHEDULES)
    traced = file in ("<if>", TRACED) or "nvidia_cutlass_dsl" in path  # by which CuTe DSL calls parts of a body
    rank = 0 if path.startswith((_MACHINE, _ISA, _PROGRAM)) or traced else 1 if own else 2
    shown = os.path.relpath(path, os.path.dirname(_LIBRARY[:-1])) if path.startswith(_LIBRARY) else path
    return rank, shown
