"""The errors that the library raises, the validators of declarations, which raise them, and mappings that never change."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import attrs

__all__ = [
    "DeadlockError", "FrozenMap", "HazardError", "IS_BOOL", "IS_NAME", "InputError", "MissingGpuError",
    "MissingPackageError", "MissingPartError", "NOTHING", "PipelineError", "ScopeError", "UnsafeError", "as_tuple",
    "changed", "check_bool", "check_type", "fill", "frozen", "is_count", "is_small", "is_whole", "must", "needed",
    "optional", "permit", "require", "shown",
]  # fmt: skip


#: Held while text becomes a syntax tree, or a tree code: of two threads that do so at once, one may get a `SystemError` of
#: Python's (3.11).
SYNTAX = threading.RLock()

# ---- errors ----------------------------------------------------------------------------------------------------------


class PipelineError(Exception):
    """Base of every error that tmapipe raises on purpose.

    where: "file:line" of the body that the error is about, if the library knows the line.
    """

    where: str | None = None


class InputError(PipelineError, ValueError):
    """An argument, a declaration or a tensor that no correct kernel could be built for.

    Args:
        argument: The name of the argument, such as "Role(warps)".
        value: What was given for it.
        rule: What must hold.
        fix: What to change.
    """

    def __init__(self, argument: str, value: object, rule: str, fix: str):
        self.argument, self.value, self.rule, self.fix = argument, value, rule, fix
        super().__init__(f"{argument} = {_short(value)}: {rule}. Fix: {fix}.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors are sent between processes. A value that cannot be pickled is replaced by its text."""
        value = self.value
        try:
            pickle.dumps(value)
        except Exception:  # any: values define how they are pickled
            value = _Shown(_short(value))
        return type(self), (self.argument, value, self.rule, self.fix)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # an integer of more digits than Python prints, or a value whose repr fails
        bits = f" of {value.bit_length()} bits" if isinstance(value, int) else ""
        return f"{type(value).__name__}{bits} that cannot be shown"
    if len(text) <= 400:
        return text
    return f"{type(value).__name__} of shape {tuple(value.shape)}" if hasattr(value, "shape") else f"{text[:400]}..."


class _Shown:
    """Stands for a value that could not be sent to another process."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


class ScopeError(PipelineError, RuntimeError):
    """A slot, a ring or an accumulator was used outside the `with` block, the phase or the role that it belongs to."""


class MissingPartError(ScopeError, AttributeError):
    """A role or a slot has no such part, or a tile no such dimension. As an `AttributeError`, `getattr` with a default
    catches it."""


class MissingGpuError(PipelineError, RuntimeError):
    """A GPU is needed, and there is none."""


class MissingPackageError(PipelineError, ImportError):
    """A package that this machine lacks is needed: CuTe DSL to compile, torch to tune."""


class DeadlockError(PipelineError, RuntimeError):
    """The machine model cannot take another step. The message lists who waits for what."""


class UnsafeError(PipelineError, RuntimeError):
    """The check found that a schedule can hang, race or corrupt on some interleaving. The message is the check's report."""


class HazardError(PipelineError, RuntimeError):
    """The machine model saw an access that the hardware would not order, such as a read of a slot that is being loaded."""


@contextlib.contextmanager
def needed(module: str, package: str, why: str) -> Iterator[None]:
    """The scope in which *module* is imported. Raises `MissingPackageError`, which names *package*, if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        text = f"{package} is needed {why}, and is not installed. Fix: pip install {package}."
        raise MissingPackageError(text, name=error.name) from error


# ---- fields of declarations: their validators, and a repr that shows what was given ---------------------------------


P = TypeVar("P")
Validator = Callable[[Any, Any, Any], None]


def must(holds: Callable[[Any], bool], rule: str, fix: str) -> Validator:
    """A validator of an attrs field: it raises `InputError`, with this rule and fix, for a value of which *holds* is false."""

    def check(part: Any, field: Any, value: Any) -> None:
        try:
            right = bool(holds(value))
        except Exception:  # a comparison with a value of another kind, such as an array
            right = False
        if not right:
            raise InputError(f"{type(part).__name__}({field.name})", value, rule, fix)

    return check


def optional(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """The same condition, which None meets too."""
    return lambda value: value is None or holds(value)


def is_whole(value: Any) -> bool:
    """Whether *value* is an integer of at most 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def is_count(value: Any) -> bool:
    """Whether *value* is a positive integer."""
    return value >= 1 if type(value) is int and value < 2**63 else is_whole(value) and value >= 1


def is_small(value: Any) -> bool:
    """Whether *value* is an int of at least 1, not a bool, that an Int32 holds."""
    return is_count(value) and value < 2**31


def is_number(value: Any) -> bool:
    """Whether *value* is an int or a float; a bool is neither here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def checked_eps(owner: object, eps: Any) -> Any:
    """*eps*, of a norm. Raises `InputError` unless it is a finite number from 0 on."""
    fits, argument = is_number(eps) and 0 <= eps < float("inf"), f"{type(owner).__name__}(eps)"
    require(fits, argument, eps, "is a finite number from 0 on", "e.g. 1e-6")
    return eps


def require(holds: object, argument: str, value: object, rule: str, fix: str) -> None:
    """Raises an `InputError` of the other arguments, unless *holds* is true."""
    if not holds:
        raise InputError(argument, value, rule, fix)


def permit(holds: object, text: str) -> None:
    """Raises `ScopeError` with *text* unless *holds*."""
    if not holds:
        raise ScopeError(text)


def check_type(argument: str, value: object, kind: type, fix: str) -> None:
    """Raises `InputError` unless *value* is a *kind*."""
    if not isinstance(value, kind):
        raise InputError(argument, value, f"is an object of type {kind.__name__}", fix)


def check_numbers(argument: str, value: Any, names: str, example: tuple[int, ...]) -> None:
    """Raises `InputError` unless *value* is as many integers as the *example*."""
    whole = isinstance(value, (tuple, list)) and len(value) == len(example)
    if not whole or not all(isinstance(extent, int) and not isinstance(extent, bool) for extent in value):
        raise InputError(argument, value, f"is {names}, {len(example)} integers", f"e.g. {example}")


def check_kinds(argument: str, value: Any, *kinds: type) -> None:
    """Raises `InputError` unless *value* is of one of *kinds*."""
    known = [kind.__name__ for kind in kinds]
    fix = "PersistentTiles(Snake(8))" if known == ["TileOrder"] else f"{known[0]}()"
    require(isinstance(value, kinds), argument, value, f"is an object of type {' or '.join(known)}", f"e.g. {fix}")


def check_bool(argument: str, value: object) -> None:
    """Raises `InputError` unless *value* is True or False."""
    if not isinstance(value, bool):
        raise InputError(argument, value, "is True or False", "use one of them")


#: Validators of fields.
IS_NAME = must(lambda value: isinstance(value, str) and value.isidentifier(), "is a name", 'e.g. "a"')
IS_BOOL = must(lambda value: isinstance(value, bool), "is True or False", "leave it out")


def as_tuple(extents: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    """A list as a tuple; any other value as it is."""
    return tuple(extents) if isinstance(extents, list) else extents


def fill(part: Any, **fields: Any) -> None:
    """Sets fields of a frozen attrs object while it is made: those whose values follow from other fields."""
    for name, value in fields.items():
        object.__setattr__(part, name, value)


def changed(part: P, **fields: Any) -> P:
    """A copy of a frozen attrs object, with other values in these fields. The constructor need not take the fields."""
    other = copy.copy(part)
    fill(other, **fields)
    return other


def shown(part: Any, *hidden: str) -> str:
    """The repr of an attrs object: its fields by name, without the *hidden* ones and those that have their default."""
    text = [
        f"{field.alias}={(field.repr if callable(field.repr) else repr)(getattr(part, field.name))}"
        for field in attrs.fields(type(part))
        if field.name not in hidden and getattr(part, field.name) != field.default
    ]
    return f"{type(part).__name__}({', '.join(text)})"


# ---- frozenmap -------------------------------------------------------------------------------------------------------


K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(Mapping[K, V]):
    """A mapping whose items never change, so that an object with such a field has a hash. Values must be hashable.

    Two of these are equal if they have the same items in the same order. Compared with a mapping of another class, the order
    does not count, as for `collections.OrderedDict`.
    """

    __slots__ = ("_found",)

    def __init__(self, items: Mapping[K, V]):
        self._found = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._found[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._found)

    def __reversed__(self) -> Iterator[K]:
        return reversed(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenMap):
            return tuple(self._found.items()) == tuple(other._found.items())
        return self._found == other if isinstance(other, Mapping) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._found.items()))

    def __repr__(self) -> str:
        return repr(self._found)


def frozen(items: Mapping[Any, Any]) -> FrozenMap[Any, Any]:
    """*items* as they are now. A converter of attrs fields."""
    return FrozenMap(items)


NOTHING: FrozenMap[Any, Any] = FrozenMap({})
