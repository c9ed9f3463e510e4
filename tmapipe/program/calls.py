"""What calls, operators and `with` of rewritten code do; and functions that readers of a program call, such as raw code."""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import tmapipe
from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Carried
from tmapipe.model.layout import as_python
from tmapipe.program.blocks import Undefined
from tmapipe.program.expressions import Let, resolve, symbolic, unknown
from tmapipe.program.names import NotCanonical, attributes_of, is_users_file, named_by
from tmapipe.program.refuse import SPECIAL, Refusals, SymbolicRange, deep, mutates
from tmapipe.program.rewrite import converted, is_users
from tmapipe.protocol.tile import Tile

# ---- captured --------------------------------------------------------------------------------------------------------
#
# Functions that readers of a program call, such as raw code, may have captured numbers that only the kernel knows.


def captured(function: Any) -> Any:
    """*function*, or a `Captured` if the function has captured a number that only the kernel knows."""
    return Captured(function) if _open(function, ()) else function


class Captured:
    """A function with expressions in its closure, in its defaults, or in the arguments of a `functools.partial`."""

    __slots__ = ("function",)

    def __init__(self, function: Any):
        self.function = function

    def bound(self, value: Callable[[Any], Any]) -> Any:
        """The function with ``value(x)`` in the place of each x that it has captured."""

        def given(x: Any) -> Any:
            if isinstance(x, Tile):
                return tile_with(x, value)
            if type(x) in (tuple, list):
                return type(x)(map(given, x))
            return _bound(x, given) if callable(x) and _open(x, ()) else value(x)

        return _bound(self.function, given)


def tile_with(tile: Tile, value: Callable[[Any], Any]) -> Tile:
    """The tile with ``value(x)`` in the place of its coordinates and bounds."""
    return Tile(value(tile._coordinates), value(tile._bounds), tile._moved)


def _bound(function: Any, value: Callable[[Any], Any]) -> Any:
    if isinstance(function, functools.partial):
        named = {name: value(x) for name, x in function.keywords.items()}
        return functools.partial(_bound(function.func, value), *map(value, function.args), **named)
    if not isinstance(function, types.FunctionType):
        return function
    cells = tuple(types.CellType(value(cell.cell_contents)) for cell in function.__closure__ or ())
    defaults = tuple(map(value, function.__defaults__ or ()))
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells)
    made.__kwdefaults__ = {name: value(x) for name, x in (function.__kwdefaults__ or {}).items()}
    return made


def _values(function: Any) -> list[Any]:
    if isinstance(function, functools.partial):
        return [*function.args, *function.keywords.values(), *_values(function.func)]
    if not isinstance(function, types.FunctionType):
        return []
    cells, named = function.__closure__ or (), function.__kwdefaults__ or {}
    return [*(cell.cell_contents for cell in cells), *(function.__defaults__ or ()), *named.values()]


def _open(value: Any, around: tuple[Any, ...]) -> bool:
    """Whether *value* has a number in it that only the kernel knows. around: the functions that have captured it."""
    if isinstance(value, Tile):
        return any(map(symbolic, value._coordinates.values()))
    if isinstance(value, (functools.partial, types.FunctionType)):
        inside = () if any(value is each for each in around) else _values(value)
        return any(_open(each, (*around, value)) for each in inside)
    return any(_open(each, around) for each in value) if isinstance(value, (tuple, list)) else symbolic(value)


# ---- calls -----------------------------------------------------------------------------------------------------------
#
# Where rewritten code calls a function of the user's, that is rewritten, too. Python's own functions are called as they are,
# or by one that takes numbers of the kernel (`SPECIAL`).


_PLAIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_CACHED = type(functools.lru_cache(lambda: None))
_CONSUMERS = (list, tuple, dict, map, filter, zip, enumerate)  # types that go through what they are given


_NUMBERS = (int, float, bool)
_IMMUTABLE = (*_NUMBERS, str, tuple, frozenset, bytes)
#: Binary operators: sign, and the word of their methods.
_WORDS = {
    "Add": ("+", "add"), "Sub": ("-", "sub"), "Mult": ("*", "mul"), "Div": ("/", "truediv"), "FloorDiv": ("//", "floordiv"),
    "Mod": ("%", "mod"), "Pow": ("**", "pow"), "LShift": ("<<", "lshift"), "RShift": (">>", "rshift"), "BitAnd": ("&", "and"),
    "BitOr": ("|", "or"), "BitXor": ("^", "xor"), "MatMult": ("@", "matmul"),
}  # fmt: skip
_UNARY = {"USub": "__neg__", "UAdd": "__pos__", "Invert": "__invert__"}
#: The method of the left operand, and that of the right one if it has none.
_METHODS = {
    **{name: (f"__{word}__", f"__r{word}__") for name, (_, word) in _WORDS.items()},
    "Lt": ("__lt__", "__gt__"), "LtE": ("__le__", "__ge__"), "Gt": ("__gt__", "__lt__"), "GtE": ("__ge__", "__le__"),
    "Eq": ("__eq__", "__eq__"), "NotEq": ("__ne__", "__ne__"),
}  # fmt: skip


class Calls(Refusals):
    """The part of `Tracing` for calls, operators, attributes and `with` of rewritten code. nodes: of the open block."""

    nodes: list[Any]

    def operate(self, name: str, left: Any, right: Any) -> Any:
        """The value of a binary operator or a comparison. A method of the user's is rewritten as any function is.

        Args:
            name: As of `ast`: "Add".
        """
        method, reflected = _METHODS[name]
        python = getattr(operator, method)
        if type(left) in _NUMBERS and type(right) in _NUMBERS:
            return python(left, right)
        own = inspect.getattr_static(type(left), method, None)
        other = inspect.getattr_static(type(right), reflected, None)
        if is_users(own):
            result = self.call(own, left, right)
            if result is not NotImplemented:
                return result
        if is_users(other) and (is_users(own) or type(left) in _NUMBERS or symbolic(left)):
            return self.call(other, right, left)
        result = python(left, right)
        return self.fresh(result) if name == "Add" else result

    def unary(self, name: str, value: Any) -> Any:
        """As `operate`, of one operand."""
        own = inspect.getattr_static(type(value), _UNARY[name], None)
        return self.call(own, value) if is_users(own) else getattr(operator, _UNARY[name])(value)

    def inplace(self, name: str, value: Any, other: Any) -> Any:
        """The value that an augmented assignment gives a name."""
        value = resolve(value)
        sign, word = _WORDS[name]
        own = inspect.getattr_static(type(value), f"__i{word}__", None)
        if own is None:
            return self.operate(name, value, other)
        if type(value) is list and name == "Add" and not isinstance(other, (list, tuple)):
            other = list(self.items(other))
        self.changes(value, f"`{sign}=`")
        return self.call(own, value, other) if is_users(own) else getattr(operator, f"__i{word}__")(value, other)

    def call(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """The value of a call in rewritten code."""
        special = SPECIAL.get(id(function))
        if special is not None:
            result = special(self, *map(resolve, arguments), **named)
            return self._noted(function, result)
        if isinstance(function, np.ufunc):
            out = named.get("out", arguments[function.nin :])
            for each in out if isinstance(out, tuple) else (out,):
                self.changes(each, f"np.{function.__name__}() to `out=`")
        if isinstance(function, types.FunctionType):
            return self._of_function(_undecorated(function), arguments, named)
        if isinstance(function, types.MethodType):
            method = _undecorated(function.__func__)
            if is_users(method):
                return self._of_function(method, (function.__self__, *arguments), named)
            if isinstance(function.__func__, _CACHED):
                return self.call(function.__func__, function.__self__, *arguments, **named)
            return as_python(function, *arguments, **named)
        if isinstance(function, functools.partial):
            return self.call(function.func, *function.args, *arguments, **{**function.keywords, **named})
        if isinstance(function, _CACHED):
            return self._cached(function, arguments, named)
        if isinstance(function, type):
            return self._construct(function, arguments, named)
        if isinstance(function, _PLAIN):
            return self._plain(function, arguments, named)
        if isinstance(function, Undefined):
            function._refuse()
        own = inspect.getattr_static(type(function), "__call__", None)
        if is_users(own):
            return self._of_function(own, (function, *arguments), named)
        return as_python(function, *arguments, **named)

    def user(self, function: Any, top: bool = False) -> Any:
        """A callable that the library was given by its user, as rewritten code calls it."""
        if top and isinstance(function, types.FunctionType) and is_users(function):
            self.users[function] = None
            return converted(function, top)
        return functools.partial(self.call, function)

    def _of_function(self, function: Any, arguments: Any, named: Any) -> Any:
        if function.__code__ is _MANAGER_CODE:  # of contextlib.contextmanager
            inner = getattr(function, "__wrapped__", None)
            if is_users(inner):
                inner = self._converted(inner)
                return self.made(contextlib.contextmanager(inner)(*arguments, **named))
        if not is_users(function):
            return as_python(function, *arguments, **named)
        result = self._converted(function)(*arguments, **named)
        if inspect.isgenerator(result):
            self.made(result)
        return result

    def _converted(self, function: Any) -> Any:
        if self.home(function) is None:
            self.users[function] = None
        return converted(function, home=self.home(function))

    def _cached(self, function: Any, arguments: Any, named: Any) -> Any:
        symbol = deep((arguments, named))
        name = getattr(function, "__name__", "a cached function")
        if symbol is not None:
            raise unknown(f"{name}() of", symbol, ", is cached by its arguments. Leave the cache out.")
        before = self._done()
        result = function(*arguments, **named)
        if self._done() != before:
            text = f"{name}() does something in the kernel, and only the first time: it is cached"
            raise ScopeError(f"{text}. Leave the cache out.")
        return result

    def _done(self) -> int:
        """How many nodes of the block do something."""
        return sum(type(node) is not Let for node in self.nodes)

    def _construct(self, kind: Any, arguments: Any, named: Any) -> Any:
        if kind in (map, filter):
            arguments = (self._argument(arguments[0]), *arguments[1:]) if arguments else arguments
        if issubclass(kind, _CONSUMERS):
            for each in arguments:
                if not callable(each):
                    self.items(each)
        if issubclass(kind, dict) and arguments and isinstance(arguments[0], (list, tuple)):
            self.key(arguments[0] if issubclass(kind, collections.Counter) else [pair[0] for pair in arguments[0]])
        start = inspect.getattr_static(kind, "__init__", None)
        plain = type(kind).__call__ is type.__call__ and kind.__new__ is object.__new__
        if plain and is_users(start):
            made = self.made(kind.__new__(kind))
            self._of_function(start, (made, *arguments), named)
            return made
        return self._noted(kind, kind(*arguments, **named))

    def _noted(self, function: Any, result: Any) -> Any:
        """*result*, which is noted as new if *function* is a type, or another maker of objects."""
        if isinstance(function, type) and type(result) is function and not isinstance(result, _IMMUTABLE):
            self.made(result)
        elif function is builtins.sorted or function is builtins.iter:
            if self.home(result) is None:
                self.made(result)
        return result

    def _plain(self, function: Any, arguments: Any, named: Any) -> Any:
        """A function of Python's, or of another language."""
        target, name = getattr(function, "__self__", None), function.__name__
        if isinstance(target, (types.ModuleType, type(None))):
            if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)) and arguments:
                target = arguments[0]
        if target is not None and not isinstance(target, types.ModuleType):
            if mutates(target, name):
                self.changes(target, f"`.{name}()`")
            if isinstance(target, (dict, set, frozenset)) or name == "fromkeys":
                self.key(arguments[:1])
            if isinstance(target, str):
                self.text((arguments, named))
            if name in ("__setattr__", "__delattr__"):
                stored = str(arguments[-2 if name == "__setattr__" else -1])
                self.stores_attribute(target if target is not object else arguments[0], stored)
        elif name in _CHANGING and arguments:
            self.changes(arguments[0], f"{name}()")
        for each in arguments:
            if hasattr(each, "__next__") or isinstance(each, SymbolicRange):
                self.items(each)
        if "out" in named:
            self.changes(named["out"], "`out=`")
        arguments = [self._argument(each) for each in arguments]
        named = {n: self._argument(each) for n, each in named.items()}
        result = as_python(function, *arguments, **named)
        if (type(result).__name__ == "ndarray" and getattr(result, "base", 1) is None) or name in _MAKING:
            if self.home(result) is None:
                self.made(result)
        return result

    def _argument(self, value: Any) -> Any:
        """An argument of one of Python's own functions: if that will call it, rewritten."""
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            return functools.partial(self.call, value)
        return value

    # ---- attributes and scopes ------------------------------------------------------------------------------------

    def attribute(self, target: Any, name: str) -> Any:
        """``target.name``. Properties of the user's classes are rewritten."""
        target = resolve(target)
        if isinstance(target, (Carried, types.ModuleType, type)):
            return getattr(target, name)
        own = inspect.getattr_static(type(target), name, None)
        if isinstance(own, property) and is_users(own.fget):
            return self._of_function(own.fget, (target,), {})
        cached = isinstance(own, functools.cached_property) and name not in getattr(target, "__dict__", {})
        if cached and is_users(own.func):
            before = self._done()
            value = self._of_function(own.func, (target,), {})
            if deep(value) is not None or self._done() != before:
                self.stores_attribute(target, name)
            target.__dict__[name] = value
            return value
        return as_python(getattr, target, name)

    def entering(self, manager: Any) -> Any:
        """The context manager that a `with` enters."""
        kind = type(manager)
        enter, leave = (inspect.getattr_static(kind, n, None) for n in ("__enter__", "__exit__"))
        return _Manager(self, manager, enter, leave) if is_users(enter) or is_users(leave) else manager


class _Manager:
    """A context manager of the user's."""

    def __init__(self, tracer: Calls, manager: Any, enter: Any, leave: Any):
        self.tracer, self.manager, self.enter, self.leave = tracer, manager, enter, leave

    def __enter__(self) -> Any:
        return self.tracer.call(types.MethodType(self.enter, self.manager))

    def __exit__(self, *error: Any) -> Any:
        return self.tracer.call(types.MethodType(self.leave, self.manager), *error)


_MANAGER_CODE = contextlib.contextmanager(lambda: iter(())).__code__
#: functions that change their first argument
_CHANGING = frozenset(
    ["heappush", "heappop", "heapify", "heapreplace", "heappushpop", "setitem", "delitem", "iadd", "iconcat", "imul", "insort",
     "insort_left", "insort_right", "copyto", "put", "place", "putmask", "shuffle"]
)  # fmt: skip
#: functions that make a new object
_MAKING = frozenset(
    ["copy", "__copy__", "__deepcopy__", "sorted", "split", "rsplit", "splitlines", "tolist", "iter", "__iter__", "keys",
     "__reversed__", "values", "items"]
)  # fmt: skip


def _undecorated(function: Any) -> Any:
    """The function that `cute.jit` has decorated, whose control flow is traced here; another one as it is."""
    code = getattr(function, "__code__", None)
    decorated = code is not None and "nvidia_cutlass_dsl" in code.co_filename and hasattr(function, "__wrapped__")
    return function.__wrapped__ if decorated else function


# ---- reads -----------------------------------------------------------------------------------------------------------
#
# A kernel has the values that captured names, globals and attributes had when its bodies were traced. If they have others
# later, no call may take it.


def alike(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether two sequences have the same values: the same objects, or equal numbers and texts."""
    if len(now) != len(before) or all(map(operator.is_, now, before)):
        return len(now) == len(before)
    equal = lambda a, b: type(a) is type(b) in (int, float, str, bytes) and repr(a) == repr(b)  # noqa: E731
    return all(a is b or equal(a, b) for a, b in zip(now, before, strict=True))


@functools.lru_cache(maxsize=4096)
def _globals_of(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The globals that a code names, and the names of attributes in it; nothing of one that imports relative to a package."""
    try:
        named = [name for name, _ in named_by(code, "") if isinstance(name, str)]
    except NotCanonical:
        named = []
    return tuple(named), frozenset(attributes_of(code))


MOST = 256  # functions of a schedule that are followed: some schedules make one anew for each trace


class Reads:
    """What the user's functions that a trace has rewritten refer to, and the attributes of a schedule of the user's.

    functions: these functions. entries: what reads some values anew, and these values. What can be changed in place is
    followed, three deep: items of lists, sets and dictionaries, attributes of objects of the user's classes and of modules.
    """

    def __init__(self, schedule: Any, functions: Iterable[types.FunctionType]):
        users = [each for each in functions if not each.__globals__.get("__name__", "").startswith("tmapipe.")]
        self.functions = users[-MOST:]
        self.attributes = frozenset[str]().union(*(_globals_of(each.__code__)[1] for each in self.functions))
        self.entries: list[tuple[Callable[[], Iterable[Any]], Sequence[Any]]] = []
        self.kept: dict[int, Any] = {}  # values that were followed
        for each in self.functions:
            cells, values = each.__closure__ or (), each.__globals__
            named = [name for name in _globals_of(each.__code__)[0] if name in values]
            names = [name for name in named if not _constant(values[name])]
            self._follow([*(each.__defaults__ or ()), *map(values.get, named)], 3)
            if cells:
                self._add(functools.partial(map, _content, cells), 3)
            if names:
                self._add(functools.partial(operator.itemgetter(*names, names[0]), values), 3)
        self._follow([schedule], 4)

    def _add(self, read: Callable[[], Iterable[Any]], deep: int) -> None:
        try:
            values = tuple(read())
        except ValueError:  # a cell without a value
            return
        self.entries.append((read, values))
        self._follow(values, deep)

    def _follow(self, values: Iterable[Any], deep: int) -> None:
        for x in values if deep else ():
            if type(x) is tuple:
                self._follow(x, deep - 1)
            elif id(x) not in self.kept:
                self.kept[id(x)] = x
                for read in self._inside(x, type(x)):
                    self._add(read, deep - 1)

    def _inside(self, x: Any, kind: type) -> Iterator[Callable[[], Iterable[Any]]]:
        """Functions that read what can change inside of a value: its items, and attributes that the user's functions name."""
        if kind in (list, set, collections.deque):
            yield lambda: x
        elif kind is dict:
            yield lambda: [*x, *x.values()]
        elif kind is np.ndarray and not x.dtype.hasobject:
            yield lambda: [x.tobytes()]
        elif kind is types.ModuleType:
            if is_users_file(getattr(x, "__file__", None) or tmapipe.__file__):
                yield from self._named(vars(x))
        elif _of_user(kind):
            own = vars(x) if hasattr(x, "__dict__") else {}
            if hasattr(kind, "declared"):  # a schedule, which sees itself what is assigned to
                self._follow(map(own.get, self.attributes.intersection(own)), 3)
            else:
                yield from self._named(own, dir(kind))
            for each in filter(_of_user, kind.__mro__):
                yield from self._named(vars(each))

    def _named(self, values: Mapping[str, Any], more: Sequence[str] = ()) -> Iterator[Callable[[], Iterable[Any]]]:
        known = {name: values.get(name) for name in self.attributes.intersection({*values, *more})}
        names = [name for name, value in known.items() if not _constant(value)]
        if names:
            yield functools.partial(map, values.get, names)

    def changed(self) -> bool:
        """Whether something has another value now."""
        try:
            for read, before in self.entries:
                now = tuple(read())  # by C alone, since each call asks
                if (len(now) != len(before) or not all(map(operator.is_, now, before))) and not alike(now, before):
                    return True
        except Exception:  # any: what has no values any more has changed
            return True
        return False


_content = operator.attrgetter("cell_contents")


def _constant(value: Any) -> bool:
    """Whether names of such values are taken to keep them: modules, functions, classes, parts of schedules."""
    own = type(value).__module__.startswith("tmapipe.")
    return own or isinstance(value, (types.ModuleType, types.FunctionType, type, property, staticmethod, classmethod))


def _of_user(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and is_users_file(file) and not kind.__module__.startswith("tmapipe.")
