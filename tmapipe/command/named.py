"""What a command line names: a schedule, what it is made with, and objects in modules and files."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import tmapipe
from tmapipe import schedules
from tmapipe.errors import InputError, PipelineError
from tmapipe.schedule import Schedule
from tmapipe.schedules.rowkernel import RowKernel

__all__ = ["made", "named", "pairs", "settings_of", "users_code", "users_line"]

_LIBRARY = os.path.dirname(os.path.abspath(tmapipe.__file__)) + os.sep
_KINDS = (Schedule, RowKernel)
_FORMS = "a shipped schedule's name, module:object or file.py:object"


def pairs(option: str, texts: Sequence[str], example: str) -> dict[str, str]:
    """NAME=VALUE of each text. Raises `InputError` for another form, or for a name that is given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise InputError(option, text, "has the form NAME=VALUE", f"e.g. {option} {example}")
        if name in found:
            raise InputError(option, text, f"gives {name} a second time", "pass it once")
        found[name] = value
    return found


def settings_of(texts: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments from texts such as ``tile=128,128,64``: Python's literals, and anything else as text."""
    return {name: _literal(value) for name, value in pairs("--set", texts, "tile=128,128,64").items()}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def made(name: str, settings: dict[str, Any]) -> Any:
    """The schedule called *name*, or the kernel of rows that makes schedules, of these keyword arguments.

    Raises:
        InputError: There is none, it is something else, or it does not take these arguments.
    """
    found = named("SCHEDULE", name)
    if isinstance(found, _KINDS):
        if settings:
            rule = f"is for classes and functions, and {name} is an object"
            raise InputError("--set", ", ".join(settings), rule, "leave it out, or name its class")
        return found
    if not callable(found):
        rule = f"is a {type(found).__name__}, and no schedule, class of schedules or function that makes one"
        raise InputError("SCHEDULE", name, rule, "name another object")
    _check_arguments(name, found, settings)
    with users_code(name):
        result = found(**settings)
    if not isinstance(result, _KINDS):
        rule = f"makes a {type(result).__name__}, and no schedule"
        raise InputError("SCHEDULE", name, rule, "name a class of schedules, or a function that returns one")
    return result


def _check_arguments(name: str, found: Any, settings: dict[str, Any]) -> None:
    """Raises `InputError` for keyword arguments that *found* does not take, or lacks."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return  # a call will tell
    try:
        signature.bind(**settings)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "nothing"
        fix = f"rename it; {name} takes {known}" if settings else f"pass --set NAME=VALUE; {name} takes {known}"
        raise InputError("--set", ", ".join(settings) or None, str(error), fix) from None


def named(argument: str, text: str) -> Any:
    """The object that *text* names. Nothing in it is evaluated. Raises `InputError` if there is none."""
    if "(" in text:
        fix = "pass what is in brackets by --set, e.g. --set tile=128,128,64"
        raise InputError(argument, text, "names a schedule, and is not evaluated", fix)
    place, colon, attribute = text.rpartition(":")
    if not colon:
        if text in schedules.__all__:
            return getattr(schedules, text)
        if text.endswith(".py") and Path(text).is_file():
            raise InputError(argument, text, f"is a file{_schedules_in(_module(argument, text))}", f"{text}:NAME")
        fix = f"one of {', '.join(schedules.__all__)}, or one of your own"
        raise InputError(argument, text, f"is {_FORMS}", fix)
    module = _module(argument, place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(argument, text, f"has no {part!r}{_schedules_in(module)}", "name one that is there")
        found = getattr(found, part)
    return found


def _schedules_in(module: ModuleType) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if isinstance(value, _KINDS)
        or (isinstance(value, type) and issubclass(value, _KINDS) and value.__module__ == module.__name__)
    ]
    return f"; its schedules are {', '.join(own)}" if own else "; it has no schedules"


def _module(argument: str, place: str) -> ModuleType:
    """The module of a file, or of a dotted name as seen from the present folder. Raises `InputError` if there is none."""
    if not place.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            missing = importlib.util.find_spec(place) is None
        except (ImportError, ValueError):
            missing = True
        if missing:
            fix = "check the name, from the present folder on; a file is named file.py:object"
            raise InputError(argument, place, "is a module that can be imported", fix)
        with users_code(place):
            return importlib.import_module(place)
    path = Path(place).resolve()
    if not path.is_file():
        raise InputError(argument, place, "is a file of Python", "check the path")
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"tmapipe_file_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with users_code(place):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def users_code(name: str) -> Iterator[None]:
    """The scope in which a user's code runs: its errors become an `InputError` with the line."""
    try:
        yield
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        line = users_line(error)
        at = f", at {line}" if line else ""
        raise InputError(name, type(error).__name__, f"fails{at}: {error}", "repair that line") from error


def users_line(error: BaseException) -> str | None:
    """ "file:line" of the innermost frame if that is no code of the library's, nor of an installed package's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    file = frames[-1].filename if frames else ""
    if file.startswith((_LIBRARY, "<")) or "site-packages" in file:
        return None
    return f"{file}:{frames[-1].lineno}"
