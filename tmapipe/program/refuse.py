"""What a trace refuses: Python's own functions of numbers that only the kernel knows, and changes of objects that were made
outside of a traced block."""

from __future__ import annotations

import builtins
import collections
import sys
import types
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Fragment
from tmapipe.model.layout import as_python, locate
from tmapipe.program.blocks import Undefined
from tmapipe.program.expressions import Expr, resolve, show, symbolic, unknown

if TYPE_CHECKING:
    from tmapipe.program.control import Tracing


# ---- python ----------------------------------------------------------------------------------------------------------
#
# Python's own functions, called with numbers that only the kernel knows: they do the same as with numbers, or are refused.


def deep(value: Any, levels: int = 4) -> Any:
    """A number in *value*, or in what it contains, that only the kernel knows; else None."""
    if symbolic(value):
        return value
    if (levels and type(value) in (tuple, list, set, frozenset, collections.deque)) or isinstance(value, tuple):
        return next((symbol for each in value if (symbol := deep(each, levels - 1)) is not None), None)
    if levels and type(value) is dict:
        return deep([*value.keys(), *value.values()], levels)
    of_hash: Any = type(value).__hash__
    if levels and of_hash not in (None, object.__hash__):  # as of a frozen dataclass: of its attributes
        names = chain(getattr(value, "__dict__", ()), *(getattr(each, "__slots__", ()) for each in type(value).__mro__))
        return deep([getattr(value, name, None) for name in names], levels - 1)
    return None


def _known(value: Any, what: str, rest: str) -> Any:
    """*value*, if Python knows it and all that it contains. what, rest: as of `unknown`."""
    symbol = deep(value)
    if symbol is not None:
        raise unknown(what, symbol, rest)
    return value


class SymbolicRange:
    """A range that is a loop of the program. step: a Python number."""

    def __init__(self, start: Any, stop: Any, step: Any = 1):
        self.start, self.stop, self.step = start, stop, step
        if symbolic(step):
            raise ScopeError("range() with a step that only the kernel knows. Multiply the index by it.")
        range(0, 0, step)  # its errors

    def __iter__(self) -> Any:
        shown = f"an iteration of range({show(self.start)}, {show(self.stop)}), which only the kernel knows"
        raise ScopeError(f"{shown}, outside of a `for` statement of a body")

    __len__ = __contains__ = __getitem__ = __iter__

    @property
    def count(self) -> Any:
        """How many there are; negative: none."""
        if self.step == 1:
            return self.stop - self.start
        if self.step == -1:
            return self.start - self.stop
        width = self.stop - self.start if self.step > 0 else self.start - self.stop
        return (width + (abs(self.step) - 1)) // abs(self.step)


def _range(tracer: Tracing, *bounds: Any) -> Any:
    if not any(map(symbolic, bounds)):
        return as_python(range, *bounds)
    return SymbolicRange(*((0, *bounds) if len(bounds) == 1 else bounds))


def _reversed(tracer: Tracing, values: Any) -> Any:
    if not isinstance(values, SymbolicRange):
        return tracer.made(reversed(values))
    if abs(values.step) != 1:
        raise ScopeError("reversed() of a range with a step. Count from 0, and compute the number from the index.")
    return SymbolicRange(values.stop - values.step, values.start - values.step, -values.step)


def _extreme(name: str) -> Callable[..., Any]:
    plain = getattr(builtins, name)

    def extreme(tracer: Tracing, *values: Any, key: Any = None, **named: Any) -> Any:
        items = list(tracer.items(values[0])) if len(values) == 1 else list(values)
        keys = items if key is None else [tracer.call(key, each) for each in items]
        if not any(map(symbolic, keys)):
            if len(values) == 1 and not items:
                return plain(items, **named)
            return items[keys.index(plain(keys))] if key is not None else plain(items)
        if key is not None:
            raise ScopeError(f"{name}() by a key that only the kernel knows. Compare by `if`.")
        if not all(isinstance(each, (int, Expr)) for each in items):
            odd = next(each for each in items if not isinstance(each, (int, Expr)))
            text = f"{name}() of a number that only the kernel knows and {type(odd).__name__}"
            raise ScopeError(f"{text}. It takes integers.")
        best = items[0]
        for each in items[1:]:
            best = Expr.of(name, best, each)
        return best

    return extreme


def _any_or_all(word: str) -> Callable[..., Any]:
    def some(tracer: Tracing, values: Any) -> Any:
        return rest(tracer, iter(tracer.items(values)))

    def rest(tracer: Tracing, values: Iterator[Any]) -> Any:
        for value in values:
            if not symbolic(value):
                if bool(value) == (word == "or"):
                    return word == "or"
                continue
            more = tracer.first(word, value, True)
            return tracer.joined(tracer.second(rest(tracer, values)) if more else None)
        return word == "and"

    return some


def _bool(tracer: Tracing, *value: Any) -> Any:
    return tracer.flag(value[0]) if value else False


def _divmod(tracer: Tracing, a: Any, b: Any) -> Any:
    return (a // b, a % b) if symbolic(a) or symbolic(b) else divmod(a, b)


def _refused(plain: Any, fix: str) -> Callable[..., Any]:
    def refused(tracer: Tracing, *values: Any, **named: Any) -> Any:
        for each in values:
            _known(each, f"{plain.__name__}() of", f". {fix}")
        return plain(*values, **named)

    return refused


def _type_test(tracer: Tracing, value: Any, kinds: Any) -> Any:
    if symbolic(value):
        raise unknown("isinstance() of", value, ": it has no type of Python's.")
    return isinstance(value, kinds)


def _type(tracer: Tracing, *arguments: Any, **named: Any) -> Any:
    if len(arguments) == 1 and symbolic(arguments[0]):
        raise unknown("type() of", arguments[0], ": it has no type of Python's.")
    return type(*arguments, **named)


def _next(tracer: Tracing, iterator: Any, *default: Any) -> Any:
    tracer.changes(iterator, "next()")
    return next(iterator, *default)


def _sum(tracer: Tracing, values: Any, start: Any = 0) -> Any:
    for each in tracer.items(values):
        start = start + each
    return start


def _of_names(name: str) -> Callable[..., Any]:
    def refused(tracer: Tracing, *arguments: Any, **named: Any) -> Any:
        if name == "vars" and arguments:
            return vars(*arguments)
        raise ScopeError(f"{name}() in a body: its names are those of rewritten code.")

    return refused


def _setattr(tracer: Tracing, target: Any, name: str, value: Any) -> None:
    setattr(tracer.stores_attribute(target, name), name, value)


def _delattr(tracer: Tracing, target: Any, name: str) -> None:
    delattr(tracer.stores_attribute(target, name), name)


def _getattr(tracer: Tracing, target: Any, name: str, *default: Any) -> Any:
    try:
        return tracer.attribute(target, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _print(tracer: Tracing, *values: Any, **named: Any) -> None:
    """What is printed while a body is traced is for its author: numbers by their expressions."""
    print(*values, **named)


def _identity(tracer: Tracing, value: Any) -> Any:
    if symbolic(value):
        raise unknown("id() of", value)
    return id(value)


_INTEGER = "It is an integer already; // rounds down."
_TEXT = "Text is made while the body is traced, once."
_HASH = "Compare by `if`, or keep it in a list by constant indices."

#: by the function's id: what is called instead, with the tracer as its first argument
SPECIAL: dict[int, Callable[..., Any]] = {
    id(range): _range, id(reversed): _reversed, id(min): _extreme("min"), id(max): _extreme("max"), id(sum): _sum,
    id(any): _any_or_all("or"), id(all): _any_or_all("and"), id(bool): _bool, id(divmod): _divmod, id(print): _print,
    id(isinstance): _type_test, id(type): _type, id(next): _next, id(id): _identity,
    id(setattr): _setattr, id(delattr): _delattr, id(getattr): _getattr,
    **{id(plain): _of_names(plain.__name__) for plain in (locals, vars, eval, exec)},
    **{id(plain): _refused(plain, _INTEGER) for plain in (int, float, complex, round)},
    **{id(plain): _refused(plain, _TEXT) for plain in (str, repr, ascii, format, chr, hex, bin, oct, bytes, bytearray)},
    **{id(plain): _refused(plain, _HASH) for plain in (hash, set, frozenset)},
    id(sorted): _refused(sorted, "Compare by `if`."),
}  # fmt: skip


# ---- refuse ----------------------------------------------------------------------------------------------------------
#
# Rewritten code asks before it does something that a trace cannot keep: changes of objects from outside of a traced block,
# tests of types, text, keys. Without the refusal it would be lost, since only the trace is executed.
#
# A list or deque from a block around may be changed: it is carried, as long as it keeps its length (`Block.touch`).


FIX = "A body is traced once, and keeps no state but local names"
OUTSIDE = "outside of the body, or of the loop or branch around"
_OF_ITEMS = ["__setitem__", "__delitem__", "__iadd__"]
_OF_LISTS = ["append", "extend", "insert", "remove", "pop", "clear", "reverse", *_OF_ITEMS]
#: methods that change an object, by its type
MUTATORS: dict[type, frozenset[str]] = {
    list: frozenset([*_OF_LISTS, "sort", "__imul__", "__init__"]),
    collections.deque: frozenset([*_OF_LISTS, "appendleft", "extendleft", "popleft", "rotate"]),
    bytearray: frozenset(_OF_LISTS),
    dict: frozenset(["update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__", "__ior__"]),
    set: frozenset(
        ["add", "update", "remove", "discard", "pop", "clear", "intersection_update", "difference_update",
         "symmetric_difference_update", "__ior__", "__iand__"]
    ),
    np.ndarray: frozenset(
        ["fill", "sort", "put", "partition", "resize", "setfield", "itemset", "setflags", "byteswap", "__setitem__"]
    ),
}  # fmt: skip


def mutates(target: Any, method: str) -> bool:
    """Whether a method of this name changes the object."""
    if method in ("__next__", "send", "throw", "close") and hasattr(target, "__next__"):
        return True
    return any(method in names for kind, names in MUTATORS.items() if isinstance(target, kind))


class Refusals:
    """The part of `Tracing` that refuses. objects: by id, what rewritten code has made, and in which block. users: functions
    that were rewritten, but for those that rewritten code has made."""

    path: list[Any]  #: numbers of the blocks around
    opened: list[Any]  #: those blocks

    def __init__(self) -> None:
        self.objects: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self.users: dict[types.FunctionType, None] = {}

    def refuse(self, what: str) -> NoReturn:
        raise ScopeError(f"{what}. {FIX}.")

    # ---- objects and where they were made -------------------------------------------------------------------------

    def made(self, value: Any) -> Any:
        """A new object."""
        self.objects[id(value)] = value, tuple(self.path)
        return value

    def fresh(self, value: Any) -> Any:
        """*value*, the result of an operator, which is noted as new if it is a list or deque."""
        return self.made(value) if type(value) in (list, collections.deque) and id(value) not in self.objects else value

    def home(self, value: Any) -> tuple[Any, ...] | None:
        """The block in which *value* was made by rewritten code, or None."""
        entry = self.objects.get(id(value))
        return entry[1] if entry is not None and entry[0] is value else None

    def changes(self, target: Any, how: str) -> None:
        """Before *target* is changed. Raises `ScopeError` unless it was made in this block or inside it; or is a list or deque
        from a block around, whose elements are carried from then on."""
        if not self.path:
            return
        home, here = self.home(target), tuple(self.path)
        if home is not None and home[: len(here)] == here:
            return
        blocks = [block for block in self.opened if block is not None and home is not None and block.depth >= len(home)]
        if home is not None and here[: len(home)] == home and type(target) in (list, collections.deque):
            name = _name_of(target)
            for block in blocks:
                block.touch(target, name)
            return
        self.refuse(f"{how} changes {_shown(target)}, which was made {OUTSIDE}")

    def stores_attribute(self, target: Any, name: str) -> Any:
        target = resolve(target)
        if isinstance(target, Undefined):
            target._refuse()
        home, here = self.home(target), tuple(self.path)
        if here and not (home is not None and home[: len(here)] == here):
            self.refuse(f"`.{name}` of {_shown(target)} is set, which was made {OUTSIDE}")
        return target

    def stores_global(self, name: str) -> None:
        if self.path:
            self.refuse(f"the global `{name}` is set")

    def stores_nonlocal(self, name: str, home: Any) -> None:
        """home: the block in which the function that does it was made."""
        if self.path and home != tuple(self.path):
            self.refuse(f"`{name}` of a function around is set, by a function that was made {OUTSIDE}")

    def place(self, target: Any, key: Any) -> Place:
        return Place(self, resolve(target), resolve(key))

    def item(self, target: Any, key: Any) -> Any:
        target, key = resolve(target), resolve(key)
        if isinstance(target, (dict, set)):
            self.key(key)
        value = target[key]
        return self.made(value) if type(key) is slice and type(target) in (list, bytearray) else value

    def slice(self, *bounds: Any) -> slice:
        return slice(*bounds)

    # ---- what takes no number that only the kernel knows ----------------------------------------------------------

    def known(self, value: Any, what: str) -> Any:
        """A condition that Python decides."""
        value = resolve(value)
        if symbolic(value):
            raise unknown(f"{what} on", value)
        return value

    def subject(self, value: Any) -> Any:
        """What `match` looks at."""
        return _known(value, "`match` on", ". Use `if`.")

    def text(self, value: Any) -> Any:
        """What becomes text."""
        return _known(value, "text of", ", while the body is traced, once")

    def key(self, value: Any) -> Any:
        """A key of a dictionary, or an element of a set."""
        return _known(value, "a key of", ". Compare by `if`.")

    def divisor(self, value: Any) -> Any:
        """In a `try` that may catch a division by zero."""
        if symbolic(value):
            raise unknown("a division by", value, ", in a `try` that catches one by 0")
        return value

    def items(self, around: Any) -> Any:
        """What Python iterates over."""
        around = resolve(around)
        if isinstance(around, SymbolicRange):
            iter(around)
        if hasattr(around, "__next__") and not isinstance(around, Fragment):
            self.changes(around, "an iteration")
        return around

    def contains(self, value: Any, among: Any, not_: bool) -> Any:
        value, among = resolve(value), resolve(among)
        hashed = isinstance(among, (collections.abc.Set, collections.abc.Mapping))
        if hashed:
            self.key(value)
        if hashed or (not symbolic(value) and deep(among) is None):
            return (value not in among) if not_ else (value in among)
        if isinstance(among, range) and symbolic(value) and among.step == 1:
            inside: Any = (value >= among.start) & (value < among.stop)
        elif isinstance(among, (tuple, list, collections.deque)):
            inside = False
            for each in among:
                equal = value == each
                if not symbolic(inside):
                    inside = inside or equal
                elif equal is not False:
                    inside = Expr.of("or", inside, equal)
                if inside is True:
                    break
        else:
            text = f"`in` with a number that only the kernel knows, and {type(among).__name__}"
            raise ScopeError(f"{text}. Compare by `if`.")
        return self.not_(inside) if not_ else inside  # type: ignore[attr-defined]

    def is_(self, value: Any, other: Any, not_: bool) -> bool:
        value, other = resolve(value), resolve(other)
        for a, b in ((value, other), (other, value)):
            if symbolic(a) and isinstance(b, (int, Expr)):
                raise unknown("`is` of", a, ". Use ==.")
        return (value is not other) if not_ else (value is other)


class Place:
    """An item of a container, which rewritten code sets or deletes, and may read before."""

    def __init__(self, tracer: Refusals, target: Any, key: Any):
        self.tracer, self.target, self.key = tracer, target, key

    @property
    def item(self) -> Any:
        return self.tracer.item(self.target, self.key)

    @item.setter
    def item(self, value: Any) -> None:
        self._checked()[self.key] = value

    @item.deleter
    def item(self) -> None:
        del self._checked()[self.key]

    def _checked(self) -> Any:
        if isinstance(self.target, dict):
            self.tracer.key(self.key)
        self.tracer.changes(self.target, "an assignment to an item")
        return self.target


def _shown(target: Any) -> str:
    kind = type(target)
    if isinstance(target, types.ModuleType):
        return f"module {target.__name__}"
    return f"{kind.__name__}" if kind.__module__ == "builtins" else f"an object of {kind.__qualname__}"


def _name_of(target: Any) -> str:
    """The name that the user's function has for an object, or its type."""
    frame: Any = sys._getframe(2)
    where = locate()
    while frame is not None:
        if where == f"{frame.f_code.co_filename}:{frame.f_lineno}":
            return next((n for n, v in frame.f_locals.items() if v is target), type(target).__name__)
        frame = frame.f_back
    return type(target).__name__
