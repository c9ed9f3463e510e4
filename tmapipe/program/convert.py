"""Functions, rewritten: which are, and how one is made of the rewritten syntax tree.

Rewritten are the user's functions (and those of `tmapipe.schedules`), when they are called from a body: methods, closures,
lambdas, functions of other modules. Python's own, those of packages and of this library run as they are; so does a function
without source, and a coroutine. What runs as it is runs once, while the body is traced; it sees numbers that only the kernel
knows as objects with arithmetic, and can't decide by them.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import os
import sysconfig
import threading
import types
from importlib.util import find_spec
from typing import Any, NoReturn

import tmapipe
from tmapipe.errors import ScopeError
from tmapipe.program.exits import TP
from tmapipe.program.expressions import at_work
from tmapipe.program.rewrite import HOME, Rewriter
from tmapipe.program.source import syntax_of

__all__ = ["converted", "current", "is_users", "is_users_file", "tracing"]

_LIBRARY = os.path.dirname(os.path.abspath(tmapipe.__file__)) + os.sep
_SCHEDULES = os.path.join(_LIBRARY, "schedules") + os.sep
#: Packages that bodies may call, wherever they are installed: `pip install --target` puts them into any folder.
_CALLED = ("cutlass", "numpy", "torch")
_PACKAGES = tuple(
    {
        os.path.join(os.path.abspath(each), "")
        for each in (
            *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
            *(
                place
                for name in _CALLED
                for place in getattr(find_spec(name), "submodule_search_locations", None) or ()
            ),
        )
    }
)
_OUTER = "<outer>"
_FUTURE = __future__.annotations.compiler_flag
_COROUTINES = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _Current(threading.local):
    tracer: Any = None


_current = _Current()


def current() -> Any:
    """What traces in this thread. Raises `ScopeError` if nothing does."""
    if _current.tracer is None:
        raise ScopeError("a function that a body has made is called after the body was traced. Make it outside.")
    return _current.tracer


class tracing:
    """The scope in which a tracer is at work, in this thread."""

    def __init__(self, tracer: Any):
        self.tracer = tracer

    def __enter__(self) -> Any:
        self.before, _current.tracer = (_current.tracer, at_work.note), self.tracer
        at_work.note = self.tracer.computed
        return self.tracer

    def __exit__(self, *_: Any) -> None:
        _current.tracer, at_work.note = self.before


class _Helper:
    """What rewritten code calls: the tracer at work."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current(), name)


_HELPER = types.CellType(_Helper())


@functools.lru_cache(maxsize=4096)
def is_users_file(file: str) -> bool:
    """Whether functions of a file of this name are rewritten."""
    path = os.path.abspath(file)
    if path.startswith(_LIBRARY):
        return path.startswith(_SCHEDULES)
    return not path.startswith(_PACKAGES) and "site-packages" not in path and not file.startswith("<frozen")


def is_users(function: Any) -> bool:
    """Whether *function* is one that is rewritten, if it has source."""
    return isinstance(function, types.FunctionType) and is_users_file(function.__code__.co_filename)


def converted(function: types.FunctionType, top: bool = False, home: Any = None) -> types.FunctionType:
    """The function with traced control flow, or itself if it has no source.

    Args:
        function: The user's.
        top: Whether it is the body of a role, in which a loop over a known range is a loop of the program. Elsewhere it is
            Python's, and unrolled.
        home: The block of code in which the function was made, if a body has made it.

    Raises:
        ScopeError: It does what can't be traced, at the line that the error names.
    """
    code = _rewritten(function.__code__, function.__code__.co_filename, top, _Function(function))
    if code is None:
        return function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[TP], cells[HOME] = _HELPER, types.CellType(home)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__, made.__dict__ = function.__kwdefaults__, function.__dict__
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made


class _Function:
    """A function that is no part of a cache's key, which is its code."""

    def __init__(self, function: types.FunctionType):
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=4096)
def _rewritten(code: types.CodeType, file: str, top: bool, given: _Function) -> types.CodeType | None:
    """The code of *file* with traced control flow: equal code of two files is equal."""
    if code.co_flags & _COROUTINES:
        return None
    found = syntax_of(given.function)
    if found is None:
        return None
    node, around = found

    def refuse(at: ast.AST, what: str) -> NoReturn:
        raise ScopeError(f"{what} can't be traced, at {code.co_filename}:{getattr(at, 'lineno', code.co_firstlineno)}.")

    Rewriter(node, top, refuse)
    inner: ast.stmt = node
    if around is not None:  # names that begin with two underscores are those of the class
        inner = ast.ClassDef(around, [], [], [node], [])
    names = [TP, HOME, *(n for n in code.co_freevars if n != "__class__")]
    body: list[ast.stmt] = [inner]
    if around is None and node.name not in names:  # a function of a module, which may call itself
        body.insert(0, ast.Global([node.name]))
    if "__class__" in code.co_freevars and around is None:
        names.append("__class__")
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    module = ast.Module([ast.FunctionDef(_OUTER, arguments, body, [], None)], [])
    for each in ast.walk(module):
        if isinstance(each, (ast.FunctionDef, ast.ClassDef)) and not hasattr(each, "type_params"):
            setattr(each, "type_params", [])  # noqa: B010 - Python 3.12's
        if isinstance(each, (ast.stmt, ast.expr)) and not hasattr(each, "lineno"):
            ast.copy_location(each, node)
    ast.fix_missing_locations(module)
    try:
        compiled = compile(module, code.co_filename, "exec", dont_inherit=True, flags=code.co_flags & _FUTURE)
    except SyntaxError as error:
        if "nested" not in str(error):
            raise
        refuse(node, f"{code.co_name}(), whose branches and loops are nested too deeply,")
    return _code_of(compiled, node.name)


def _code_of(code: types.CodeType, name: str) -> types.CodeType:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            return each if each.co_name == name else _code_of(each, name)
    raise AssertionError(name)
