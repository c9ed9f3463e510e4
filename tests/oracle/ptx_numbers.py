"""The arithmetic of PTX on the registers of many threads at once: each instruction is made a function of arrays once.

Registers hold bits, as unsigned NumPy arrays of their width with an element a thread; predicates hold truths. Sums, products
and conversions are rounded as PTX says. What PTX only bounds (``.approx``) is computed in float64 and rounded once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracle.ptx_floats import EIGHT, UNSIGNED, conversion, float_function, kind_of, to_float, unsigned

__all__ = ["Machine", "arithmetic", "constant", "kind_of", "reader", "reduction", "unsigned"]

Machine = Any  # has `registers`, a dictionary of arrays
Reader = Callable[[Machine, Any], Any]


@functools.cache
def constant(operand: str, kind: np.dtype[Any]) -> np.ndarray | None:
    """What an operand that is no register holds, as of *kind*; None for a register or a symbol."""
    if re.fullmatch(r"0[fFdD][0-9a-fA-F]+", operand):
        size = 4 if operand[1] in "fF" else 8
        bits = np.array(int(operand[2:], 16), UNSIGNED[size])
        return bits.view(kind) if kind.itemsize == size else bits.view(f"f{size}").astype(kind)
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", operand):
        number = int(operand.rstrip("U"), 0)
        if kind.kind == "b":
            return np.array(bool(number))
        return np.array(number & ((1 << 8 * kind.itemsize) - 1), UNSIGNED[kind.itemsize]).view(kind)
    return None


def reader(operand: str, word: str) -> Reader:
    """Reads an operand as of a PTX type; of a wider register, the low bits."""
    kind = kind_of(word)
    known = constant(operand, kind)
    if known is not None:
        return lambda machine, at: known
    if kind.kind == "b":
        if operand.startswith("!"):
            return lambda machine, at: ~machine.registers[operand[1:]][at]
        return lambda machine, at: machine.registers[operand][at]
    size, bits = kind.itemsize, UNSIGNED[kind.itemsize]

    def read(machine: Machine, at: Any) -> Any:
        value = machine.registers[operand][at]
        if value.dtype.itemsize != size:
            value = value.astype(bits)
        return value.view(kind)

    return read


# ---- whole numbers ----------------------------------------------------------------------------------------------------


def _shift_left(a: Any, count: Any) -> Any:
    bits = 8 * a.dtype.itemsize
    if not count.ndim and count < bits:
        return a << count.astype(a.dtype)
    return np.where(count < bits, a << np.minimum(count, bits - 1).astype(a.dtype), a.dtype.type(0))


def _shift_right(a: Any, count: Any) -> Any:
    bits = 8 * a.dtype.itemsize
    if not count.ndim and count < bits:
        return a >> count.astype(a.dtype)
    shifted = a >> np.minimum(count, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(count < bits, shifted, a.dtype.type(0))


def _divided(a: Any, b: Any) -> Any:
    """Towards zero; all bits set for a divisor of 0."""
    if a.dtype.kind == "u":
        return np.where(b == 0, ~a.dtype.type(0), a // np.where(b == 0, 1, b).astype(a.dtype))
    left, right = np.asarray(a, np.int64), np.asarray(b, np.int64)  # -2^31 has no absolute value of 32 bits
    sign = np.where((left < 0) == (right < 0), 1, -1)
    found = np.abs(left) // np.abs(np.where(right == 0, 1, right)) * sign
    return np.where(right == 0, -1, found).astype(a.dtype)


def _wide(a: Any) -> Any:
    return a.astype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")


def _high(a: Any, b: Any) -> Any:
    if a.dtype.itemsize == 8:
        found = [int(x) * int(y) >> 64 for x, y in zip(*np.broadcast_arrays(np.atleast_1d(a), b), strict=True)]
        return np.array([x & ((1 << 64) - 1) for x in found], np.uint64)
    return (_wide(a) * _wide(b) >> a.dtype.type(8 * a.dtype.itemsize)).astype(a.dtype)


def _permuted(a: Any, b: Any, selector: Any) -> Any:
    """``prmt.b32``: each nibble of the selector names one of eight bytes, or repeats that one's sign."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    found = np.zeros(np.broadcast_shapes(a.shape, b.shape, selector.shape), np.uint32)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i)
        byte = (both >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint32) & np.uint32(255)
        byte = np.where(nibble & np.uint32(8), (byte >> np.uint32(7)) * np.uint32(255), byte)
        found |= byte << np.uint32(8 * i)
    return found


def _funnel(left: bool, wraps: bool) -> Callable[[Any, Any, Any], Any]:
    """``shf``: 32 bits of the 64 that b (above) and a are."""

    def shift(a: Any, b: Any, count: Any) -> Any:
        both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
        by = (count & np.uint32(31) if wraps else np.minimum(count, np.uint32(32))).astype(np.uint64)
        found = (both << by) >> np.uint64(32) if left else both >> by
        return found.astype(np.uint32)

    return shift


def _by_table(a: Any, b: Any, c: Any, table: Any) -> Any:
    """``lop3.b32``."""
    found = np.zeros_like(a | b | c)
    for row in range(8):
        if int(table) >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found


def _field(a: Any, start: Any, length: Any) -> Any:
    """``bfe.u32`` and ``bfe.s32`` of fields within the register."""
    bits = 8 * a.dtype.itemsize
    wide = a.astype(np.int64 if a.dtype.kind == "i" else np.uint64)
    start, length = (x.astype(np.int64) & 255 for x in (start, length))
    up = (64 - np.minimum(start + length, bits)).astype(wide.dtype)
    found = (wide << up) >> (64 - np.minimum(length, bits)).astype(wide.dtype)
    return np.where(length == 0, 0, found).astype(a.dtype)


def _inserted(a: Any, b: Any, start: Any, length: Any) -> Any:
    """``bfi.b32``: the low bits of a, put into b."""
    mask = ((np.uint64(1) << length.astype(np.uint64)) - np.uint64(1)) << start.astype(np.uint64)
    return (b & ~mask | a.astype(np.uint64) << start.astype(np.uint64) & mask).astype(a.dtype)


def _dotted(words: list[str]) -> Callable[[Any, Any, Any], Any]:
    """``dp2a`` and ``dp4a``: c and the products of the halves or bytes of a with bytes of b."""
    high, count = 16 if "hi" in words else 0, 4 if "lo" not in words and "hi" not in words else 2
    of_a, of_b = (np.dtype(f"{words[n][0].replace('s', 'i')}{size}") for n, size in ((-2, 4 // count), (-1, 1)))

    def dot(a: Any, b: Any, c: Any) -> Any:
        for i in range(count):
            left = (a >> a.dtype.type(32 // count * i)).astype(of_a)
            right = (b >> b.dtype.type(8 * i + high)).astype(of_b)
            c = c + (left.astype(np.int64) * right.astype(np.int64)).astype(c.dtype)
        return c

    return dot


def _bits_counted(a: Any) -> Any:
    return np.bitwise_count(a).astype(np.uint32)


def _leading(a: Any) -> Any:
    """``clz``: zeros before the first bit that is set."""
    bits, found = 8 * a.dtype.itemsize, np.zeros(a.shape, np.uint32)
    for i in range(1, bits + 1):
        found += (unsigned(a) >> a.dtype.type(bits - i)) == 0
    return found


def _reversed(a: Any) -> Any:
    found = np.zeros_like(a)
    for i in range(8 * a.dtype.itemsize):
        found |= (a >> a.dtype.type(i) & a.dtype.type(1)) << a.dtype.type(8 * a.dtype.itemsize - 1 - i)
    return found


_OF_NUMBERS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "min": np.minimum, "max": np.maximum, "div": _divided, "shl": _shift_left,
    "shr": _shift_right, "rem": lambda a, b: (a - _divided(a, b) * b).astype(a.dtype), "neg": lambda a: -a,
    "not": lambda a: ~a, "abs": np.abs, "popc": _bits_counted, "prmt": _permuted, "lop3": _by_table, "bfe": _field,
    "bfi": _inserted, "clz": _leading, "brev": _reversed, "mov": lambda a: a, "cvta": lambda a: a,
    "cnot": lambda a: (a == 0).astype(a.dtype),
}  # fmt: skip


def _number_function(kind: str, words: list[str]) -> Callable[..., Any]:
    if kind == "mul":
        if "wide" in words:
            return lambda a, b: _wide(a) * _wide(b)
        return _high if "hi" in words else lambda a, b: a * b
    if kind == "mad":
        if "wide" in words:
            return lambda a, b, c: _wide(a) * _wide(b) + c
        return (lambda a, b, c: _high(a, b) + c) if "hi" in words else lambda a, b, c: a * b + c
    if kind == "shf":
        return _funnel("l" in words, "wrap" in words)
    if kind in ("dp2a", "dp4a"):
        return _dotted(words)
    if "relu" in words:
        compute = _OF_NUMBERS[kind]
        return lambda a, b: np.maximum(compute(a, b), 0).astype(a.dtype)
    return _OF_NUMBERS[kind]


# ---- comparisons ------------------------------------------------------------------------------------------------------

_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def _comparison(words: list[str]) -> Callable[[Any, Any], Any]:
    """Of floats, ``ne`` is false and ``equ`` and its like are true if one is NaN."""
    name, word = words[0], words[-1]

    def as_numbers(x: Any) -> Any:
        return to_float(unsigned(x), word) if word in ("bf16", "f16") else x

    if name in ("num", "nan"):
        either: Callable[[Any, Any], Any] = lambda a, b: np.isnan(as_numbers(a)) | np.isnan(as_numbers(b))  # noqa: E731
        return either if name == "nan" else lambda a, b: ~either(a, b)
    loose = name.endswith("u") and name[:-1] in _ORDERS
    order = _ORDERS[name[:-1] if loose else name]
    if "f" not in word:
        return order

    def compare(a: Any, b: Any) -> Any:
        a, b = as_numbers(a), as_numbers(b)
        unordered = np.isnan(a) | np.isnan(b)
        return order(a, b) | unordered if loose else order(a, b) & ~unordered

    return compare


def reduction(how: str, word: str) -> Callable[[Any, Any], Any]:
    """What a reduction of elements of a PTX type makes of those that are there and new ones, as bits."""
    if how in ("inc", "dec"):
        up: Callable[[Any, Any], Any] = lambda a, b: np.where(a >= b, a.dtype.type(0), a + a.dtype.type(1))  # noqa: E731
        down: Callable[[Any, Any], Any] = lambda a, b: np.where((a == 0) | (a > b), b, a - a.dtype.type(1))  # noqa: E731
        return up if how == "inc" else down
    kind, compute = kind_of(word), _function(how, [word])
    return lambda a, b: unsigned(compute(a.view(kind), b.view(kind)))


# ---- instructions -----------------------------------------------------------------------------------------------------


def _operand_words(kind: str, words: list[str], count: int) -> list[str]:
    """The types that an instruction reads its operands as."""
    word = words[-1]
    if kind in ("shl", "shr"):
        return [word, "u32"]
    if kind in ("mul", "mad") and "wide" in words:
        return [word, word, word[0] + str(2 * int(word[1:]))][:count]
    if kind == "bfe":
        return [word, "u32", "u32"]
    if kind == "bfi":
        return [word, word, "u32", "u32"]
    if kind == "lop3":
        return [*("b32",) * 3, "u32"]
    if kind == "selp":
        return [word, word, "pred"]
    if kind == "cvt" and word in EIGHT:
        return ["b16"]
    return [word] * count


def arithmetic(opcode: str, operands: tuple[str, ...]) -> Callable[[Machine, Any], None]:
    """What an instruction does that computes registers from registers.

    Raises:
        NotImplementedError: It is not known here.
    """
    kind, *words = opcode.split(".")
    to, *sources = operands
    if kind == "mov" and ("{" in to or "{" in "".join(sources)):
        return _halves(words[-1], to, sources[0])
    if kind == "setp":
        return _setp(words, to, sources)
    try:
        compute = _function(kind, words)
    except (KeyError, StopIteration):
        raise NotImplementedError(opcode) from None
    readers = [reader(x, word) for x, word in zip(sources, _operand_words(kind, words, len(sources)), strict=True)]
    if len(readers) == 1:
        (one,) = readers

        def of_one(machine: Machine, at: Any) -> None:
            machine.write(to, at, compute(one(machine, at)))

        return of_one
    if len(readers) == 2:
        first, second = readers

        def of_two(machine: Machine, at: Any) -> None:
            machine.write(to, at, compute(first(machine, at), second(machine, at)))

        return of_two
    return lambda machine, at: machine.write(to, at, compute(*(read(machine, at) for read in readers)))


def _function(kind: str, words: list[str]) -> Callable[..., Any]:
    word = words[-1]
    if kind == "selp":
        return lambda a, b, which: np.where(which, a, b)
    if kind == "cvt":
        return conversion(words)
    if word == "pred":
        return {"not": np.logical_not, "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
                "mov": lambda a: a}[kind]  # fmt: skip
    if "f" in word and kind != "mov":
        return float_function(kind, words)
    return _number_function(kind, words)


def _setp(words: list[str], to: str, sources: list[str]) -> Callable[[Machine, Any], None]:
    compare, a, b = _comparison(words), reader(sources[0], words[-1]), reader(sources[1], words[-1])
    first, _, second = to.partition("|")
    more = next((word for word in words if word in ("and", "or", "xor")), None)
    with_ = reader(sources[2], "pred") if more else None
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.get(more or "")

    def execute(machine: Machine, at: Any) -> None:
        found = compare(a(machine, at), b(machine, at))
        for register, truth in ((first, found), (second, ~found if second else found)):
            if register and register != "_":
                machine.write(register, at, combine(truth, with_(machine, at)) if combine and with_ else truth)

    return execute


def _halves(word: str, to: str, source: str) -> Callable[[Machine, Any], None]:
    """``mov`` of a register to parts of it, and back."""
    size = kind_of(word).itemsize
    if "{" in to:
        parts = [part.strip() for part in to.strip("{} ").split(",")]
        each, read = size // len(parts), reader(source, word)

        def apart(machine: Machine, at: Any) -> None:
            value = np.asarray(read(machine, at))
            for n, part in enumerate(parts):
                if part != "_":
                    machine.write(part, at, (value >> value.dtype.type(8 * each * n)).astype(UNSIGNED[each]))

        return apart
    parts = [part.strip() for part in source.strip("{} ").split(",")]
    each = size // len(parts)
    readers = [reader(part, f"b{8 * each}") for part in parts]

    def together(machine: Machine, at: Any) -> None:
        total = np.zeros((), UNSIGNED[size])
        for n, read in enumerate(readers):
            total = total | np.asarray(read(machine, at)).astype(UNSIGNED[size]) << UNSIGNED[size].type(8 * each * n)
        machine.write(to, at, total)

    return together
