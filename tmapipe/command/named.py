"""The things that a command line names: a schedule, its tensors, the reference of its results. Also how a verb ends."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import tmapipe
from tmapipe import schedules
from tmapipe.base.arithmetic import DType, as_dtype, bf16
from tmapipe.errors import DeadlockError, HazardError, InputError, PipelineError, ScopeError, UnsafeError, require
from tmapipe.model.layout import LIBRARY
from tmapipe.schedule import Schedule
from tmapipe.schedules.copy import Copy
from tmapipe.schedules.crossentropy import Softmax
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.gemms import ClusterSplitK, PingPong, SplitK, StreamK
from tmapipe.schedules.rows import RowKernel
from tmapipe.tuning.tuner import WITHIN, WITHIN_8_BITS

# ---- named -----------------------------------------------------------------------------------------------------------
#
# What a command line names: a schedule, what it is made with, and objects in modules and files.


_KINDS = (Schedule, RowKernel)
_FORMS = "a shipped schedule's name, module:object or file.py:object"


def pairs(option: str, texts: Sequence[str], example: str) -> dict[str, str]:
    """NAME=VALUE of each text. Raises `InputError` for another form, or for a name that is given twice."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise InputError(option, text, "has the form NAME=VALUE", f"e.g. {option} {example}")
        require(name not in values, option, text, f"gives {name} a second time", "pass it once")
        values[name] = value
    return values


def settings_of(texts: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments from texts such as ``tile=128,128,64``. A value is a literal of Python, or else the text itself."""
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
    named_object = named("SCHEDULE", name)
    if isinstance(named_object, _KINDS):
        rule = f"is for classes and functions, and {name} is an object"
        require(not settings, "--set", ", ".join(settings), rule, "leave it out, or name its class")
        return named_object
    rule = f"is a {type(named_object).__name__}, and no schedule, class of schedules or function that makes one"
    require(callable(named_object), "SCHEDULE", name, rule, "name another object")
    _check_arguments(name, named_object, settings)
    with users_code(name):
        result = named_object(**settings)
    if not isinstance(result, _KINDS):
        rule = f"makes a {type(result).__name__}, and no schedule"
        raise InputError("SCHEDULE", name, rule, "name a class of schedules, or a function that returns one")
    return result


def _check_arguments(name: str, callee: Any, settings: dict[str, Any]) -> None:
    """Raises `InputError` for keyword arguments that *callee* does not take, or lacks."""
    try:
        signature = inspect.signature(callee)
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
    fix = "pass what is in brackets by --set, e.g. --set tile=128,128,64"
    require("(" not in text, argument, text, "names a schedule, and is not evaluated", fix)
    place, colon, attribute = text.rpartition(":")
    if not colon:
        if text in schedules.__all__:
            return getattr(schedules, text)
        if text.endswith(".py") and Path(text).is_file():
            raise InputError(argument, text, f"is a file{_schedules_in(_module(argument, text))}", f"{text}:NAME")
        fix = f"one of {', '.join(schedules.__all__)}, or one of your own"
        raise InputError(argument, text, f"is {_FORMS}", fix)
    module = _module(argument, place)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise InputError(argument, text, f"has no {part!r}{_schedules_in(module)}", "name one that is there")
        value = getattr(value, part)
    return value


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
        fix = "check the name, from the present folder on; a file is named file.py:object"
        require(not missing, argument, place, "is a module that can be imported", fix)
        with users_code(place):
            return importlib.import_module(place)
    path = Path(place).resolve()
    require(path.is_file(), argument, place, "is a file of Python", "check the path")
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
    if file.startswith((LIBRARY, "<")) or "site-packages" in file:
        return None
    return f"{file}:{frames[-1].lineno}"


# ---- tensors ---------------------------------------------------------------------------------------------------------
#
# The tensors of a command line: NumPy arrays of given shapes and types, of random numbers.


def dtypes_of(texts: Sequence[str]) -> dict[str, DType]:
    """Element types by tensor, from texts such as ``a=fp16``."""
    return {name: as_dtype(value) for name, value in pairs("--dtype", texts, "a=bf16").items()}


def extents(argument: str, text: str) -> tuple[int, ...]:
    """Extents from a text such as ``512x256``. Raises `InputError` for another form."""
    if not re.fullmatch(r"\d{1,10}(x\d{1,10}){0,7}", text):
        raise InputError(argument, text, "is extents in elements with an x between them", "e.g. 512x256")
    return tuple(map(int, text.split("x")))


def tensors_of(
    schedule: Any, shapes: Sequence[str], dtypes: dict[str, DType], files: Sequence[str], seed: int = 0
) -> dict[str, np.ndarray]:
    """The inputs of a call by name: arrays from *files* (``rows=rows.npy``), and random numbers for the other inputs.

    Raises:
        InputError: An input has neither a shape nor a file, or there is no such input.
    """
    sizes = {name: extents(f"--shape {name}", text) for name, text in pairs("--shape", shapes, "a=512x256").items()}
    kept = {name: _loaded(path) for name, path in pairs("--tensor", files, "rows=rows.npy").items()}
    inputs = inputs_of(schedule)
    for option, given in (("--shape", sizes), ("--tensor", kept), ("--dtype", dtypes)):
        for name in given:
            if name not in inputs and not (option == "--dtype" and name in _all(schedule)):
                raise InputError(option, name, f"names no input; the inputs are {', '.join(inputs)}", "rename it")
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, (needed, declared, table) in inputs.items():
        if name in kept:
            tensors[name] = kept[name]
        elif name in sizes and table:
            rule = "is a table, whose entries are no random numbers"
            raise InputError("--shape", name, rule, f"write it to a file by numpy.save, and pass --tensor {name}=FILE")
        elif name in sizes:
            tensors[name] = filled(generator, sizes[name], dtypes.get(name) or declared or bf16)
        elif needed:
            option = f"--tensor {name}=FILE" if table else f"--shape {name}=..., its extents, e.g. {name}=512x256"
            raise InputError(name, None, "a tensor is needed for every input", f"pass {option}")
    return tensors


def inputs_of(schedule: Any) -> dict[str, tuple[bool, DType | None, bool]]:
    """(whether it is needed, its declared type, whether it is a table) for each input, by name."""
    if not isinstance(schedule, Schedule):  # a kernel of rows
        given = inspect.signature(schedule.__call__).parameters
        return {name: (p.default is p.empty, None, False) for name, p in given.items() if name != "out"}
    declared = schedule.declared
    types = {name: getattr(load, "dtype", None) for name, load in declared.inputs.items()}
    loads = {name: (True, as_dtype(kind).in_memory if kind else None, False) for name, kind in types.items()}
    return {**loads, **dict.fromkeys(declared.tables, (True, None, True))}


def _all(schedule: Any) -> tuple[str, ...]:
    return tuple(schedule.declared.arguments) if isinstance(schedule, Schedule) else ()


def filled(generator: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Random numbers: normal ones, or integers from -8 to 7."""
    if dtype.integer:
        return generator.integers(-8, 8, shape).astype(dtype.numpy)
    return generator.standard_normal(shape, np.float32).astype(dtype.numpy)


def _loaded(path: str) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        rule = f"is an array that numpy.save has written: {error}"
        raise InputError("--tensor", path, rule, "check the path") from None
    require(isinstance(array, np.ndarray), "--tensor", path, "holds one array", "write it by numpy.save")
    return array


def fitted(schedule: Any, shapes: Sequence[str], dtypes: dict[str, DType]) -> Schedule:
    """*schedule*; for a kernel of rows, the schedule that it makes for rows of these lengths and types. To find that out, it
    computes two rows on the CPU model."""
    if isinstance(schedule, Schedule):
        return schedule
    two = tensors_of(schedule, shapes, dtypes, ())
    schedule(**{name: x.reshape(-1, x.shape[-1])[:2] if x.ndim > 1 else x for name, x in two.items()})
    return next(iter(schedule.fitted.values()))


# ---- compared --------------------------------------------------------------------------------------------------------
#
# What results are compared with: a function that the command line names, or what a shipped schedule computes.


Reference = Callable[..., Any]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b^T, of float64."""
    return a @ b.swapaxes(-1, -2)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


#: What shipped schedules compute, of inputs in float64.
_KNOWN: dict[type, Reference] = {
    Copy: lambda x: x,
    Softmax: _softmax,
    **dict.fromkeys((Gemm, PingPong, SplitK, StreamK, ClusterSplitK), product),
}


def references(schedule: Any, text: str | None) -> Reference | None:
    """The function that *text* names, or a function that computes what a shipped schedule computes; None if there is none."""
    if text is None:
        plain = not isinstance(schedule, Gemm) or schedule.epilogue.plain
        return _KNOWN.get(type(schedule)) if plain else None
    function = named("--reference", text)
    rule = f"is a {type(function).__name__}, and no function of the inputs"
    require(callable(function), "--reference", text, rule, "name a function")
    return function


def errors_of(
    outputs: dict[str, np.ndarray], inputs: dict[str, np.ndarray], reference: Reference | None
) -> dict[str, float]:
    """How far each output is from the reference."""
    if reference is None:
        return {}
    given = {n: x if np.issubdtype(x.dtype, np.integer) else x.astype(np.float64) for n, x in inputs.items()}
    with users_code("--reference"):
        right = reference(**given)
    rights = right if isinstance(right, tuple) else (right,)
    if len(rights) != len(outputs):
        rule = f"returns {len(rights)} arrays, and there are {len(outputs)} outputs: {', '.join(outputs)}"
        raise InputError("--reference", reference.__name__, rule, "return a tuple of them")
    errors = {}
    for (name, output), expected in zip(outputs.items(), rights, strict=True):
        if np.shape(expected) != output.shape:
            rule = f"returns the shape {np.shape(expected)} for {name}, which has {output.shape}"
            raise InputError("--reference", reference.__name__, rule, "return that shape")
        errors[name] = off(output, np.asarray(expected))
    return errors


def off(output: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, relative to the largest number of *right*."""
    one, other = output.astype(np.float64), np.asarray(right).astype(np.float64)
    if not one.size or np.array_equal(one, other):
        return 0.0
    largest = float(np.abs(one - other).max() / (np.abs(other).max() or 1.0))
    return largest if np.isfinite(largest) else float("inf")


def within(output: np.ndarray) -> float:
    """The largest `off` that rounding explains."""
    return WITHIN_8_BITS if output.dtype.itemsize == 1 else WITHIN


# ---- answer ----------------------------------------------------------------------------------------------------------
#
# How a verb ends: text or JSON on standard output, errors without tracebacks, an exit code (docs/command.md).


FINE, WRONG, REFUSED = 0, 1, 2
_FOUND = (DeadlockError, HazardError, ScopeError, UnsafeError)  # errors that say what is wrong with a pipeline


@attrs.define
class Answer:
    """The answer of a verb.

    Args:
        facts: The verb's own fields of the JSON object.
        text: The answer for readers: text, or tables of rich's.
        code: The exit code.
    """

    facts: dict[str, Any] = attrs.field(factory=dict)
    text: list[Any] = attrs.field(factory=list)
    code: int = FINE


@contextlib.contextmanager
def answering(verb: str, as_json: bool) -> Iterator[Answer]:
    """The scope of a verb, which fills the `Answer`. Prints it, and ends the program with its code."""
    answer = Answer()
    try:
        yield answer
    except PipelineError as error:
        _fail(answer, error, str(error), WRONG if isinstance(error, _FOUND) else REFUSED)
    except Exception as error:
        line = users_line(error)
        if line is None:
            raise  # a fault of the library's
        _fail(answer, error, f"{line}: {type(error).__name__}: {error}", REFUSED)
    if as_json:
        document = {"verb": verb, "version": tmapipe.__version__, "exit": answer.code, **answer.facts}
        typer.echo(json.dumps(document, indent=1))
    else:
        _print(answer)
    raise typer.Exit(answer.code)


def _fail(answer: Answer, error: Exception, text: str, code: int) -> None:
    said: dict[str, Any] = {"kind": type(error).__name__, "message": text}
    if isinstance(error, InputError):
        said |= {"argument": error.argument, "value": str(error.value), "rule": error.rule, "fix": error.fix}
    answer.facts, answer.text, answer.code = {"error": said}, [text], code


def _print(answer: Answer) -> None:
    console = Console(stderr="error" in answer.facts, highlight=False, soft_wrap=True)
    for each in answer.text:
        console.print(each, markup=False, style="red" if "error" in answer.facts else None)


@contextlib.contextmanager
def working(what: str, total: int | None = None) -> Iterator[Any]:
    """Shows on a terminal's standard error that something is under way. Yields a function to be called after each of *total*
    steps."""
    columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    columns[2:2] = [BarColumn(), MofNCompleteColumn()] if total else []
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
