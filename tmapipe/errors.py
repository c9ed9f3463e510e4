"""The errors that the library raises. Each says which argument, its value, the rule it breaks and a fix."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

__all__ = [
    "DeadlockError",
    "HazardError",
    "InputError",
    "MissingGpuError",
    "MissingPackageError",
    "MissingPartError",
    "PipelineError",
    "ScopeError",
    "UnsafeError",
    "needed",
]


class PipelineError(Exception):
    """Base of every error that tmapipe raises on purpose.

    where: "file:line" of a body, if one is known.
    """

    where: str | None = None


class InputError(PipelineError, ValueError):
    """An argument, a declaration or a tensor that no correct kernel could be built for.

    Args:
        argument: Its name.
        value: What was given.
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
    """A part that a role or a slot, or a dimension that a tile does not have. `getattr` with a default takes it for that."""


class MissingGpuError(PipelineError, RuntimeError):
    """There is no GPU, and one is needed."""


class MissingPackageError(PipelineError, ImportError):
    """A package that this machine lacks is needed: CuTe DSL to compile, torch to tune."""


class DeadlockError(PipelineError, RuntimeError):
    """The machine model cannot take another step. The message lists who waits for what."""


class UnsafeError(PipelineError, RuntimeError):
    """A schedule that the checker found to hang, race or corrupt on some interleaving. The message is its report."""


class HazardError(PipelineError, RuntimeError):
    """The machine model saw an access that the hardware would not order: a slot in flight, a surplus arrival, ..."""


@contextlib.contextmanager
def needed(module: str, package: str, why: str) -> Iterator[None]:
    """Where *module* is imported: raises `MissingPackageError` if it is not installed, which names the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        text = f"{package} is needed {why}, and is not installed. Fix: pip install {package}."
        raise MissingPackageError(text, name=error.name) from error
