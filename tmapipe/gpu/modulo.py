"""`%` of whole numbers in bodies: with the sign of the divisor, as in Python and on the model.

CuTe DSL's has the sign of the dividend, as the hardware's: there, -1 % 3 is -1.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

import cutlass
from cutlass.base_dsl.typing import Numeric

from tmapipe.gpu.functions import choose

__all__ = ["as_in_cute", "as_in_python"]

#: Code in these folders divides what is not negative, or means what CuTe DSL does.
_AS_IN_CUTE = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep for file in (f"{__file__}/..", cutlass.__file__ or "")
)
_mod, _rmod = Numeric.__mod__, Numeric.__rmod__


@contextlib.contextmanager
def _replaced(*now: Any) -> Iterator[None]:
    before = Numeric.__mod__, Numeric.__rmod__
    Numeric.__mod__, Numeric.__rmod__ = now
    try:
        yield
    finally:
        Numeric.__mod__, Numeric.__rmod__ = before


def _mod_of_python(self: Any, other: Any) -> Any:
    return _floored(_mod(self, other), other)


def _rmod_of_python(self: Any, other: Any) -> Any:
    return _floored(_rmod(self, other), self)


def _floored(rest: Any, by: Any) -> Any:
    """*rest*, which has the sign of the dividend, as the remainder with the sign of *by*, if the user's code asks for it."""
    file = sys._getframe(2).f_code.co_filename
    if file.startswith(_AS_IN_CUTE) or not isinstance(rest, cutlass.Integer) or not type(rest).signed:
        return rest
    if isinstance(by, int):
        other = rest < 0 if by > 0 else rest > 0
    else:
        other = (rest != 0) & ((rest < 0) != (by < 0))
    return choose(other, rest + by, rest)


as_in_python = functools.partial(_replaced, _mod_of_python, _rmod_of_python)  # while bodies are traced
as_in_cute = functools.partial(_replaced, _mod, _rmod)  # meanwhile, while raw code is traced
