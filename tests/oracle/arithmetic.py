"""One set of bits on every machine: ``python -m tests.oracle.arithmetic 10000``.

Random products, reductions and functions of the model, in a process of its own under each of twelve settings: three kernels
of OpenBLAS, one and two threads, with and without the vector instructions that NumPy chooses at run time. Their digests must
agree, and be the stated one. Each product is computed with both orders of its operands, cut along k, and cut into tiles; each
accumulator must be the same. Beside them stands a digest of NumPy's own product, sums and functions, which shows that the
settings do something: on processors with AVX2 it differs.

Inputs are made of bytes of SHAKE-128, so that no library has a part in them.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from tmapipe.base import arithmetic
from tmapipe.base.arithmetic import DType, bf16, fp8_e4m3, fp8_e5m2, fp16, int8, tf32
from tmapipe.model.memory import convert, round_to_tf32

__all__ = ["STATED", "digest", "settings"]

#: Of so many products.
STATED = {100: "f53e91c451eeb22b", 10_000: "cb739e4f8389a83c"}
TYPES = (bf16, fp16, tf32, fp8_e4m3, fp8_e5m2, int8)
CORES = ("Haswell", "Nehalem", "Sandybridge")


class Bytes:
    """A stream of random numbers that depends on its name alone."""

    def __init__(self, name: str):
        self.name, self.drawn = name, 0

    def words(self, *shape: int) -> np.ndarray:
        """32-bit numbers without a sign."""
        self.drawn += 1
        found = hashlib.shake_128(f"{self.name} {self.drawn}".encode()).digest(4 * int(np.prod(shape)))
        return np.frombuffer(found, "<u4").reshape(shape)

    def below(self, limit: int) -> int:
        return int(self.words(1)[0]) % limit

    def among(self, dtype: DType, shape: tuple[int, int]) -> np.ndarray:
        """Elements of a type whose magnitudes lie within a random range; now and then infinite or NaN."""
        words = self.words(*shape)
        if dtype.integer:
            return (words & 0xFF).astype(np.uint8).view(np.int8).astype(np.float64)
        fraction = (words & 0xFFFF).astype(np.float64) - 2**15
        spread = (1, 4, 16, 60)[self.below(4)]
        wide = np.ldexp(fraction, -((words >> 16) % spread).astype(np.int32) - 13).astype(np.float32)
        if self.below(16) == 0:
            wide[self.below(shape[0]), self.below(shape[1])] = (np.inf, -np.inf, np.nan, 3e38)[self.below(4)]
        return (round_to_tf32(wide) if dtype is tf32 else convert(wide, dtype)).astype(np.float64)


def _bits(values: np.ndarray) -> bytes:
    """One NaN stands for all."""
    if values.dtype != np.int32:
        values = np.where(values != values, values.dtype.type(np.nan), values)
    return values.tobytes()


def _product(source: Bytes) -> bytes:
    dtype = TYPES[source.below(len(TYPES))]
    depth = 32 // dtype.bytes
    m, n, steps = 1 + source.below(48), 1 + source.below(48), 1 + source.below(6)
    a, b = source.among(dtype, (m, depth * steps)), source.among(dtype, (n, depth * steps))

    def whole(a: np.ndarray, b: np.ndarray, cut: int = 0) -> np.ndarray:
        held = np.zeros((len(a), len(b)), np.int32 if dtype.integer else np.float32)
        for part in (slice(0, cut), slice(cut, None)):
            if a[:, part].size:
                arithmetic.accumulate(held, arithmetic.products(a[:, part], b[:, part], depth))
        return held

    found = _bits(whole(a, b))
    sums = arithmetic.products(a, b, depth)
    row, column, cut = source.below(m), source.below(n), depth * source.below(steps)
    tiles = [[whole(x, y) for y in (b[:column], b[column:])] for x in (a[:row], a[row:])]
    assert _bits(np.ascontiguousarray(whole(b, a).T)) == found, "of the other order of operands"
    assert _bits(arithmetic.products(b, a, depth).swapaxes(1, 2)) == _bits(sums), "before they are rounded"
    assert _bits(whole(a, b, cut)) == found, "cut along k"
    assert _bits(np.block(tiles)) == found, "cut into tiles"
    return found + _bits(sums)


def _functions(source: Bytes) -> bytes:
    any_bits = source.words(64).view(np.float32)
    usual = source.among(tf32, (8, 1 + source.below(40))).astype(np.float32)
    named = (getattr(arithmetic, name) for name in ("exp", "exp2", "log", "log2", "tanh", "erf", "sigmoid"))
    made = [function(x) for function in named for x in (any_bits, usual)]
    made += [arithmetic.total(usual), arithmetic.folded(arithmetic.larger, usual)]
    made += [arithmetic.smaller(any_bits, any_bits[::-1]), arithmetic.folded(arithmetic.smaller, usual)]
    return b"".join(_bits(x) for x in made)


def digest(count: int) -> str:
    """Of *count* products and a tenth as many sets of functions and reductions."""
    found = hashlib.sha256()
    with np.errstate(all="ignore"):
        for i in range(count):
            found.update(_product(Bytes(f"product {i}")))
            if i % 10 == 0:
                found.update(_functions(Bytes(f"functions {i}")))
    return found.hexdigest()[:16]


def of_numpy() -> str:
    """Of what NumPy computes by itself."""
    source, found = Bytes("numpy"), hashlib.sha256()
    a, b = (source.among(tf32, (256, 256)).astype(np.float32) for _ in "ab")
    with np.errstate(all="ignore"):
        for values in (a @ b.T, a.sum(0), a.sum(1), np.exp(a), np.tanh(a)):
            found.update(_bits(values))
    return found.hexdigest()[:16]


def settings() -> Iterator[dict[str, str]]:
    """Variables of the environment: none, and each of the twelve."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    chosen = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
    yield {}
    for core, threads, without in itertools.product(CORES, "12", ("", chosen)):
        yield {"OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": threads, "NPY_DISABLE_CPU_FEATURES": without}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=10_000)
    parser.add_argument("--here", action="store_true", help="in this process, under the settings that it has")
    options = parser.parse_args()
    if options.here:
        print(digest(options.count), of_numpy())
        return 0
    found = {}
    for chosen in settings():
        command = [sys.executable, "-m", "tests.oracle.arithmetic", str(options.count), "--here"]
        made = subprocess.run(
            command, env=os.environ | chosen, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.split()
        found[str(chosen)] = made[0]
        says = " ".join(f"{name.partition('_')[2].lower()}={value or '-'}" for name, value in chosen.items())
        print(f"{made[0]}  NumPy's own {made[1]}  {says or 'as it is'}", flush=True)
    right = STATED.get(options.count, next(iter(found.values())))
    wrong = [chosen for chosen, each in found.items() if each != right]
    stated = "the stated one" if options.count in STATED else "none is stated for this number"
    print(f"{options.count} products, {len(found)} settings: {len(set(found.values()))} digest(s), {stated}: {right}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
