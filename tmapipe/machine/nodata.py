"""Fragments of the machine: `NO_DATA` where the protocol runs without data, and `Values` where it runs with.

A warp has its own share of a tile, and an epilogue sees one piece of an output at a time. So both take what works element by
element, and refuse what would depend on the share: reductions, indices, loops over elements, branches on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from tmapipe.errors import ScopeError

__all__ = ["NO_DATA", "NoData", "Values"]

_REDUCTIONS = (
    *(
        "all",
        "any",
        "argmax",
        "argmin",
        "argsort",
        "cumprod",
        "cumsum",
        "dot",
        "max",
        "mean",
        "median",
        "min",
        "nonzero",
    ),
    *("prod", "ptp", "reduce", "repeat", "sort", "std", "sum", "take", "trace", "var"),
)
_ELEMENTWISE = {np.where, np.clip, np.nan_to_num, np.zeros_like, np.ones_like, np.full_like, np.isclose, np.real}


def _refuse(what: str) -> Callable[..., NoReturn]:
    def refuse(*arguments: Any, **named: Any) -> NoReturn:
        raise ScopeError(
            f"{what} of a fragment: a warp has a share of a tile, and knows it element by element only. "
            "Use arithmetic, comparison and tmapipe.math, e.g. where() for a choice."
        )

    return refuse


class _Elements:
    """What no fragment has."""

    __slots__ = ()
    __bool__ = _refuse("a branch on the values")
    __iter__ = _refuse("a loop over the elements")
    __contains__ = _refuse("a search in the elements")
    __len__ = _refuse("the length")
    __float__ = __int__ = __index__ = __complex__ = _refuse("one number")
    __getitem__ = __setitem__ = _refuse("an index or slice")


for _name in _REDUCTIONS:
    setattr(_Elements, _name, _refuse(f"{_name}()"))


class NoData(_Elements):
    """Takes arithmetic, attribute access, calls and NumPy functions of elements, and stays what it is."""

    __slots__ = ()
    __hash__ = object.__hash__

    def _same(self, *arguments: Any, **named: Any) -> NoData:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _same
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _same
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _same
    __neg__ = __pos__ = __abs__ = __invert__ = __call__ = _same
    __lt__ = __le__ = __gt__ = __ge__ = _same
    __eq__ = __ne__ = _same  # type: ignore[assignment]
    __matmul__ = __rmatmul__ = _refuse("a matrix product")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> NoData:
        _check_call(ufunc, method)
        return self

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Any) -> NoData:
        _check_function(function)
        return self

    def __getattr__(self, name: str) -> NoData:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __repr__(self) -> str:
        return "NO_DATA"


NO_DATA = NoData()


class Values(_Elements, np.ndarray):
    """A warp's share of a tile."""

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    __str__ = __repr__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        _check_call(ufunc, method)
        plain = [x.view(np.ndarray) if isinstance(x, Values) else x for x in inputs]
        return _as_values(getattr(ufunc, method)(*plain, **named))

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Any) -> Any:
        _check_function(function)
        plain = [x.view(np.ndarray) if isinstance(x, Values) else x for x in arguments]
        return _as_values(function(*plain, **named))


def _as_values(result: Any) -> Any:
    return result.view(Values) if isinstance(result, np.ndarray) else result


def _check_call(ufunc: Any, method: str) -> None:
    if method != "__call__" or ufunc.signature is not None:
        _refuse(f"numpy.{ufunc.__name__}{'' if method == '__call__' else f'.{method}'}()")()


def _check_function(function: Any) -> None:
    if function not in _ELEMENTWISE:
        _refuse(f"numpy.{function.__name__}()")()
