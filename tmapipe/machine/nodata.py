"""A stand-in for fragments when the machine runs the protocol without data: every operation on it gives it back."""

from __future__ import annotations

from typing import Any

__all__ = ["NO_DATA", "NoData"]


class NoData:
    """Takes arithmetic, indexing, attribute access, calls and NumPy functions, and stays what it is."""

    __slots__ = ()
    __hash__ = object.__hash__

    def _same(self, *arguments: Any, **named: Any) -> NoData:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _same
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _same
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _same
    __neg__ = __pos__ = __abs__ = __invert__ = __getitem__ = __call__ = __array_ufunc__ = __array_function__ = _same
    __lt__ = __le__ = __gt__ = __ge__ = _same
    __eq__ = __ne__ = _same  # type: ignore[assignment]

    def __getattr__(self, name: str) -> NoData:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self) -> bool:
        raise TypeError("a branch on the value of a fragment: values do not exist when the protocol runs without data")

    def __repr__(self) -> str:
        return "NO_DATA"


NO_DATA = NoData()
