"""The arithmetic of PTX on whole numbers: each instruction is made a function of the registers once."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import attrs

from tests.oracle.ptx import Instruction

__all__ = ["Peer", "Registers", "computation", "signed"]

Number = Callable[[Any], Any]


@attrs.frozen
class Peer:
    """An address in the shared memory of another CTA of the cluster."""

    address: int
    rank: int

    def __add__(self, offset: int) -> Peer:
        return Peer(self.address + offset, self.rank)

    __radd__ = __add__

    def __and__(self, mask: int) -> Peer:
        """The low bits of an address are all that there are."""
        return Peer(self.address & mask, self.rank)


class Registers(dict[str, Any]):
    """What each operand holds: a number, None (data, as are numbers of fp32), or for the name of a symbol that is no register,
    that name."""

    def __missing__(self, operand: str) -> Any:
        number, data = re.fullmatch(r"-?\d+", operand), re.fullmatch(r"%.*|0[fF][0-9a-fA-F]{8}", operand)
        value = self[operand] = int(operand) if number else None if data else operand
        return value


def computation(i: Instruction) -> Callable[[Registers], None] | None:
    """Writes what *i* computes: None where an operand is data. None for instructions whose result is always data."""
    compute, to, operands = _function(i.opcode), i.operands[0], i.operands[1:]
    if compute is None:
        return None
    if len(operands) == 1:
        (only,) = operands

        def of_one(registers: Registers) -> None:
            value = registers[only]
            registers[to] = None if value is None else compute(value)

        return of_one
    if len(operands) == 2:
        one, other = operands

        def of_two(registers: Registers) -> None:
            a, b = registers[one], registers[other]
            registers[to] = None if a is None or b is None else compute(a, b)

        return of_two

    def of_all(registers: Registers) -> None:
        values = [registers[operand] for operand in operands]
        registers[to] = None if None in values else compute(*values)

    return of_all


def signed(value: int, bits: int) -> int:
    """*value* as a signed number of so many bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _as(kind: str) -> Number:
    """As an operand of type *kind* ("u32", "s64", "b16", "pred"). What is no number stays as it is."""
    if kind == "pred":
        return lambda value: value
    bits = int(kind[1:])
    mask = (1 << bits) - 1
    if kind[0] == "s":
        return lambda value: signed(value, bits) if isinstance(value, int) else value
    return lambda value: value & mask if isinstance(value, int) else value


_ORDERS = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
           "gt": operator.gt, "ge": operator.ge}  # fmt: skip
_OF_PREDICATES = {"not": lambda a: 1 - a, "and": operator.and_, "or": operator.or_, "xor": operator.xor}


@functools.cache
def _function(opcode: str) -> Callable[..., Any] | None:
    """Of the operands' values; None if the result is data."""
    kind, *words = opcode.split(".")
    if kind == "prmt" or "rn" in words or not re.fullmatch(r"[usb]\d+|pred", words[-1]):
        return None
    read = _as(words[-1])
    if kind in ("mov", "cvta"):
        return (lambda a: int(a != 0)) if words[-1] == "pred" else (lambda a: a)
    if kind == "cvt":
        if not re.fullmatch(r"[usb]\d+", words[-2]):
            return None
        kept = _as("u" + words[-2][1:])
        return lambda a: kept(read(a))
    if kind == "selp":
        return lambda a, b, which: a if which else b
    if kind == "setp":
        order = _ORDERS[words[0]]
        return lambda a, b: int(order(read(a), read(b)))
    if words[-1] == "pred":
        return _OF_PREDICATES[kind]
    return _arithmetic(opcode, kind, words, read)


def _arithmetic(opcode: str, kind: str, words: list[str], read: Number) -> Callable[..., int]:
    bits = int(words[-1][1:])
    mask = (1 << (2 * bits if words[0] == "wide" else bits)) - 1
    assert kind == "mul" or "wide" not in words, f"{opcode} is not known"
    shifts = {"shl": lambda a, b: read(a) << (b & 63), "shr": lambda a, b: read(a) >> (b & 63)}
    of_three = {
        "prmt": lambda a, b, c: sum(((b << bits | a) >> 8 * (c >> 4 * i & 7) & 255) << 8 * i for i in range(4)),
        "mad": lambda a, b, c: read(a) * read(b) + read(c),
        "shf": lambda a, b, c: ((read(b) << bits | read(a)) << (c & 31)) >> bits,  # shf.l.wrap
    }
    if kind == "lop3":
        return lambda a, b, c, table: sum(
            (table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(bits)
        )
    of_one = {"neg": operator.neg, "not": operator.invert, "popc": lambda a: a.bit_count()}
    of_two = {
        "add": operator.add, "sub": operator.sub, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
        "min": min, "max": max,
        "div": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
        "rem": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
        "mul": (lambda a, b: (a * b) >> bits) if words[0] == "hi" else operator.mul,
    }  # fmt: skip
    if kind in shifts:
        shift = shifts[kind]
        return lambda a, b: shift(a, b) & mask
    if kind in of_three:
        combine = of_three[kind]
        return lambda a, b, c: combine(a, b, c) & mask
    if kind in of_one:
        change: Number = of_one[kind]
        return lambda a: change(read(a)) & mask
    assert kind in of_two, f"{opcode} is not known"
    compute: Callable[..., int] = of_two[kind]
    if "relu" in words:  # min.relu, max.relu: at least 0
        return lambda a, b: max(compute(read(a), read(b)), 0) & mask
    if kind in ("add", "sub", "and", "or", "xor") or (kind == "mul" and words[0] == "lo"):
        return lambda a, b: compute(a, b) & mask  # the low bits of the result are those of the operands' low bits
    return lambda a, b: compute(read(a), read(b)) & mask
