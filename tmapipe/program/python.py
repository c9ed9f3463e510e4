"""What Python's own functions make of numbers that only the kernel knows: the same as of numbers, or an error."""

from __future__ import annotations

import builtins
import collections
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tmapipe.errors import ScopeError
from tmapipe.machine.locate import as_python
from tmapipe.program.expressions import Expr, show, symbolic

if TYPE_CHECKING:
    from tmapipe.program.control import Tracing

__all__ = ["SPECIAL", "SymbolicRange", "deep"]


def deep(value: Any, levels: int = 4) -> Any:
    """A number that only the kernel knows in *value*, or in what it contains; else None."""
    if symbolic(value):
        return value
    if (levels and type(value) in (tuple, list, set, frozenset, collections.deque)) or isinstance(value, tuple):
        return next((found for each in value if (found := deep(each, levels - 1)) is not None), None)
    if levels and type(value) is dict:
        return deep([*value.keys(), *value.values()], levels)
    return None


class SymbolicRange:
    """A range that is a loop of the program. step: a Python number."""

    def __init__(self, start: Any, stop: Any, step: Any = 1):
        self.start, self.stop, self.step = start, stop, step
        if symbolic(step):
            raise ScopeError("range() with a step that only the kernel knows. Multiply the index by it.")
        range(0, 0, step)  # its errors

    def __iter__(self) -> Any:
        shown = f"range({show(self.start)}, {show(self.stop)})"
        raise ScopeError(
            f"an iteration of {shown}, which only the kernel knows, outside of a `for` statement of a body"
        )

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
            raise ScopeError(
                f"{name}() of a number that only the kernel knows and {type(odd).__name__}. It takes integers."
            )
        found = items[0]
        for each in items[1:]:
            found = Expr.of(name, found, each)
        return found

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
            found = deep(each)
            if found is not None:
                raise ScopeError(f"{plain.__name__}() of `{show(found)}`, which only the kernel knows. {fix}")
        return plain(*values, **named)

    return refused


def _type_test(tracer: Tracing, value: Any, kinds: Any) -> Any:
    if symbolic(value):
        raise ScopeError(
            f"isinstance() of `{show(value)}`: a number that only the kernel knows has no type of Python's."
        )
    return isinstance(value, kinds)


def _type(tracer: Tracing, *arguments: Any, **named: Any) -> Any:
    if len(arguments) == 1 and symbolic(arguments[0]):
        raise ScopeError(
            f"type() of `{show(arguments[0])}`: a number that only the kernel knows has no type of Python's."
        )
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
        raise ScopeError(f"id() of `{show(value)}`, which only the kernel knows")
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
