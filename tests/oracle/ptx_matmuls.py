"""``wgmma`` and ``mma``, for `ptx_machine`: operands by descriptors or in registers, with the model's arithmetic of products.

What a matmul computes is there at once; the proof says that nobody looks before it has waited.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracle.ptx import Instruction, shape_of
from tests.oracle.ptx_floats import UNSIGNED, to_float
from tmapipe.base.arithmetic import accumulate, products

__all__ = ["multiplying", "multiplying_in_warps"]

SIZES = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
LANE = np.arange(32)


def values(bits: np.ndarray, word: str) -> np.ndarray:
    """Elements of a matmul's type in float64; of tf32, the lower 13 bits are not looked at."""
    if word == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if word in ("s8", "u8"):
        return bits.view(np.int8 if word == "s8" else np.uint8).astype(np.float64)
    if SIZES[word] == 2:
        return to_float(bits, word).astype(np.float64)
    import torch

    kind = torch.float8_e4m3fn if word == "e4m3" else torch.float8_e5m2
    found: np.ndarray = torch.from_numpy(np.ascontiguousarray(bits)).view(kind).double().numpy()
    return found


def places(descriptor: int, count: int, depth: int, size: int, transposed: bool) -> np.ndarray:
    """Where in shared memory the elements [row, k] of an operand lie (PTX ISA, matrix-descriptor). transposed: not K-major."""
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    span = {0: 0, 1: 128, 2: 64, 3: 32}[descriptor >> 62]
    row, k = np.arange(count)[:, None], np.arange(depth)[None]
    if not span:
        raise NotImplementedError("a descriptor without a swizzle")
    if transposed:
        at = row * size // span * leading + k // 8 * stride + k % 8 * span + row * size % span
    else:
        at = row // 8 * stride + row % 8 * span + k * size
    found: np.ndarray = start + at
    return found ^ ((found >> 7 & (span // 16 - 1)) << 4)


def multiplying(i: Instruction) -> Callable[[Any, Any], None] | None:
    """Executes a matmul, warp by warp; None for fences, commits and waits."""
    if not i.is_a("wgmma.mma_async"):
        return None
    numbers = re.fullmatch(r"m64n(\d+)k(\d+)", shape_of(i.opcode))
    assert numbers, i
    columns, depth = int(numbers[1]), int(numbers[2])
    held_as, left, right = [word for word in i.opcode.split(".")[5:] if word != "satfinite"]
    registers = [part.strip() for part in i.operands[0].strip("{} ").split(",")]
    of_a, of_b, more, flags = i.operands[1], i.operands[2], i.operands[3], i.operands[4:]
    in_registers = of_a.startswith("{")
    flipped = flags[2:] if SIZES[left] == 2 else ()
    transposed_b = bool(flipped) and flipped[-1] == "1"
    transposed_a = bool(flipped) and not in_registers and flipped[0] == "1"
    if any(flag != "1" for flag in flags[:2]) or held_as not in ("f32", "s32"):
        raise NotImplementedError(i.opcode)

    def operand(machine: Any, cta: int, descriptor: int, count: int, word: str, transposed: bool) -> np.ndarray:
        at = places(descriptor, count, depth, SIZES[word], transposed)
        memory = machine.memory
        return values(memory.load(memory.shared, memory.in_shared(at, cta, SIZES[word]), SIZES[word]), word)

    def own_rows(machine: Any, warp: np.ndarray) -> np.ndarray:
        found = np.zeros((16, depth))
        of_word = 4 // SIZES[left]
        for r, register in enumerate(part.strip() for part in of_a.strip("{} ").split(",")):
            bits = np.ascontiguousarray(machine.registers[register][warp])
            elements = values(bits.view(UNSIGNED[SIZES[left]]), left).reshape(32, of_word)
            for j in range(of_word):
                found[LANE // 4 + 8 * (r % 2), of_word * (LANE % 4) + j + 4 * of_word * (r // 2)] = elements[:, j]
        return found

    def execute(machine: Any, at: Any) -> None:
        seen: dict[Any, np.ndarray] = {}
        kind = np.dtype(np.float32 if held_as == "f32" else np.int32)
        for warp in machine.numbers(at).reshape(-1, 32):
            first = int(warp[0])
            cta, quarter = int(machine.cta[first]), first % machine.threads // 32 % 4
            key = cta, int(machine.registers[of_b][first])
            if key not in seen:
                seen[key] = operand(machine, *key, columns, right, transposed_b)
            if in_registers:
                rows = own_rows(machine, warp)
            else:
                key_a = cta, int(machine.registers[of_a][first]), "a"
                if key_a not in seen:
                    seen[key_a] = operand(machine, *key_a[:2], 64, left, transposed_a)
                rows = seen[key_a][16 * quarter : 16 * quarter + 16]
            held = np.zeros((16, columns), kind)
            row = [LANE // 4 + 8 * (n // 2 % 2) for n in range(len(registers))]
            column = [8 * (n // 4) + 2 * (LANE % 4) + n % 2 for n in range(len(registers))]
            if machine.registers[more][first]:
                for n, register in enumerate(registers):
                    held[row[n], column[n]] = machine.registers[register][warp].view(kind)
            accumulate(held, products(rows, seen[key], depth))
            for n, register in enumerate(registers):
                machine.registers[register][warp] = held[row[n], column[n]].view(np.uint32)

    return execute


def multiplying_in_warps(i: Instruction) -> Callable[[Any, Any], None]:
    """``mma.sync.m16n8k16`` of 16-bit types, whose operands and sums are in registers."""
    *_, shape, a_rows, b_columns, held_as, left, right, sums = i.opcode.split(".")
    if (shape, a_rows, b_columns, held_as, sums, SIZES[left]) != ("m16n8k16", "row", "col", "f32", "f32", 2):
        raise NotImplementedError(i.opcode)
    to, of_a, of_b, before = ([part.strip() for part in each.strip("{} ").split(",")] for each in i.operands)
    row, column = LANE // 4, 2 * (LANE % 4)

    def gathered(machine: Any, warp: np.ndarray, registers: list[str], word: str, rows: int, halves: int) -> np.ndarray:
        """[rows, 16] elements, of which register r has two in row lane / 4 + 8 (r % halves), 8 r / halves columns on."""
        found = np.zeros((rows, 16))
        for r, register in enumerate(registers):
            bits = np.ascontiguousarray(machine.registers[register][warp])
            two = values(bits.view(np.uint16), word).reshape(32, 2)
            for j in range(2):
                found[row + 8 * (r % halves), column + j + 8 * (r // halves)] = two[:, j]
        return found

    def execute(machine: Any, at: Any) -> None:
        for warp in machine.numbers(at).reshape(-1, 32):
            a, b = gathered(machine, warp, of_a, left, 16, 2), gathered(machine, warp, of_b, right, 8, 1)
            held = np.zeros((16, 8), np.float32)
            for r, register in enumerate(before):
                held[row + 8 * (r // 2), column + r % 2] = machine.registers[register][warp].view(np.float32)
            accumulate(held, products(a, b, 16))
            for r, register in enumerate(to):
                machine.registers[register][warp] = held[row + 8 * (r // 2), column + r % 2].view(np.uint32)

    return execute
