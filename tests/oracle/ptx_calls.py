"""``python -m tests.oracle.ptx_calls FIRST LAST``: copies of views drawn at random and kernels of rows, by seed, each computed
by the model and by the emitted PTX with the same data (`ptx_run`)."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

import tmapipe as tp
from tests.oracle.ptx_run import judged

__all__ = ["drawn"]

S = tp.schedules
FLOATS = (torch.bfloat16, torch.float32, torch.float16)
MOST = 8000  # elements of a copy


def view(rng: random.Random, extents: Sequence[int], dtype: Any) -> Any:
    """A tensor in wider memory: dimensions in any order, any start, rows with or without something between."""
    order = rng.sample(range(len(extents)), len(extents))
    pitches = [extents[dim] + rng.choice([0, 0, 1, 3, 8]) for dim in order[1:]]
    if pitches and rng.random() < 0.5:
        pitches[-1] = -(-pitches[-1] // 16) * 16  # so that rows begin alike
    start, steps = rng.choice([0, 0, 1, 3, 8]), [math.prod(pitches[at:]) for at in range(len(order))]
    memory = torch.randint(-100, 100, (start + extents[order[0]] * steps[0],)).to(dtype)
    return memory.as_strided(extents, [steps[order.index(dim)] for dim in range(len(order))], start)


def copy(rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """A copy between two views."""
    extents = [rng.choice([1, 2, 3, 5, 17, 33, 64, 65, 130]) for _ in range(rng.randint(1, 4))]
    while math.prod(extents) > MOST:
        extents.remove(max(extents))
    dtype = rng.choice([torch.bfloat16, torch.int8, torch.float32, torch.int64])
    x, y = (view(rng, extents, dtype) for _ in range(2))
    return f"copy {dtype} {extents} of {x.stride()} to {y.stride()}", lambda: S.Copy()(x, out=y)


def rows(rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """A kernel of rows that begin anywhere, of any length."""
    m, n = rng.randint(1, 9), rng.choice([rng.randint(1, 70), rng.randint(65, 700), rng.randint(500, 3500)])
    dtype, pad = rng.choice(FLOATS), rng.choice([0, 0, 1, 3, 8])
    start = rng.randint(0, pad)

    def made(kind: Any = dtype) -> Any:
        return torch.randn(m, n + pad).to(kind)[:, start : start + n]

    x, weight, bias = made(), torch.randn(n).to(dtype), torch.randn(n).to(dtype)
    calls: dict[str, Callable[[], Any]] = {
        "softmax": lambda: S.Softmax()(x),
        "log-softmax": lambda: S.LogSoftmax()(x),
        "rmsnorm": lambda: S.RmsNorm()(x, weight),
        "layernorm": lambda: S.LayerNorm()(x, weight, bias),
        "cumsum": lambda: S.Cumsum()(x),
        "cross-entropy": lambda: S.CrossEntropy()(x, torch.randint(0, n, (m,))),
        "transpose": lambda: S.Transpose()(x),
        "sums": lambda: S.Reduce()(x),
        "elementwise": lambda: S.Elementwise(lambda x, y: x * y + 1)(x, made()),
        "conversion": lambda: S.Copy()(x, out=made(rng.choice(FLOATS))),
        "softmax's gradient": lambda: S.SoftmaxBackward()(S.Softmax()(x), made()),
    }
    name = rng.choice(sorted(calls))
    return f"{name} {dtype} {m} x {n} of {n + pad} from {start}", calls[name]


def drawn(seed: int) -> tuple[str, Callable[[], Any]]:
    """What it is, and the call."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    return rng.choice((copy, rows))(rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int, help="seed of the first call")
    parser.add_argument("last", type=int, help="seed of the last one, not counted")
    options = parser.parse_args()
    launches, wrong, left_out = 0, 0, 0
    for seed in range(options.first, options.last):
        what, call = drawn(seed)
        try:
            with judged(seed=seed) as judge:
                call()
            launches, left_out = launches + judge.launches, left_out + judge.left_out.total()
        except AssertionError as error:
            wrong += 1
            print(f"{seed}: {what}: {error}", flush=True)
        if seed % 50 == 49:
            print(f"up to {seed}: {launches} launches, {left_out} left out; {wrong} calls are wrong", flush=True)
    print(f"{launches} launches, {left_out} left out; {wrong} calls are wrong")


if __name__ == "__main__":
    main()
