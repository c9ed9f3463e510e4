"""The programs of `examples/` that compute with values: how each is made, random inputs for it, and what it must give.

They are run on the model, checked, compiled and run on the device by the tests beside, and timed by `benchmarks/programs.py`.
`python -m tests.programs --count 200` runs that many random shapes of each on the model.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import random
import runpy
from collections.abc import Callable
from typing import Any

import attrs
import torch

import tmapipe as tp

__all__ = ["PROGRAMS", "Program", "check", "example"]

FOLDER = pathlib.Path(__file__).parents[1] / "examples"


@functools.cache
def example(name: str) -> dict[str, Any]:
    """What ``examples/<name>.py`` defines."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))


@attrs.frozen
class Program:
    """Args:
    make: The schedule.
    draw: Random inputs by argument, on the CPU, from a source of random numbers and the largest extent.
    want: From these inputs, what each output must be, in fp32 or fp64.
    atol, rtol: How far an output may be off.
    """

    make: Callable[[], tp.Schedule]
    draw: Callable[[random.Random, int], dict[str, torch.Tensor]]
    want: Callable[..., dict[str, torch.Tensor]]
    atol: float = 1e-2
    rtol: float = 1e-2


def _extent(rng: random.Random, most: int, step: int = 1) -> int:
    """Log-uniform, a multiple of *step*."""
    return max(1, round(most ** rng.random() / step)) * step


def _normal(rng: random.Random, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    source = torch.Generator().manual_seed(rng.getrandbits(40))
    return torch.randn(shape, generator=source).to(dtype)


# ---- rows -------------------------------------------------------------------------------------------------------------


def _rows(columns: int) -> Callable[[random.Random, int], dict[str, torch.Tensor]]:
    def draw(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
        return {"x": _normal(rng, _extent(rng, most), 8 * rng.randint(1, columns // 8))}

    return draw


def _softmax(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": torch.softmax(x.float(), 1)}


def _norm_inputs(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
    m, n = _extent(rng, most), 8 * rng.randint(1, 128)
    return {"weight": _normal(rng, n), "x": _normal(rng, m, n), "residual": _normal(rng, m, n)}


def _norm(weight: torch.Tensor, x: torch.Tensor, residual: torch.Tensor) -> dict[str, torch.Tensor]:
    h = x.float() + residual.float()
    return {"h": h, "y": h * torch.rsqrt(h.square().mean(1, keepdim=True) + 1e-6) * weight.float()}


def _matrix(dtype: torch.dtype, step: int) -> Callable[[random.Random, int], dict[str, torch.Tensor]]:
    def draw(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
        return {"x": _normal(rng, _extent(rng, most, step), _extent(rng, most, step), dtype=dtype)}

    return draw


# ---- matmuls ----------------------------------------------------------------------------------------------------------


def _gemm_inputs(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
    m, n, k = (_extent(rng, most, 8) for _ in range(3))
    return {"a": _normal(rng, m, k), "b": _normal(rng, n, k)}


def _gemm_row_max(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
    d = a.float() @ b.float().T
    return {"d": d, "top": d.amax(1)}


def _block_inputs(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
    m, n, k = 4 * _extent(rng, most // 4), _extent(rng, most, 8), 512 * rng.randint(1, max(1, most // 512))
    scale = torch.Generator().manual_seed(rng.getrandbits(40))
    sa, sb = torch.rand(-(-k // 128), m, generator=scale), torch.rand(-(-n // 128), -(-k // 128), generator=scale)
    a, b = (_normal(rng, rows, k, dtype=torch.float8_e4m3fn) for rows in (m, n))
    return {"a": a, "b": b, "sa": sa, "sb": sb}


def _block_scaled(a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor) -> dict[str, torch.Tensor]:
    k, n = a.shape[1], b.shape[0]
    scaled_a = a.float() * sa.T.repeat_interleave(128, 1)[:, :k]
    scaled_b = b.float() * sb.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    return {"d": scaled_a @ scaled_b.T}


def _mlp_inputs(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
    m, k, h, n = (_extent(rng, most, 8) for _ in range(4))
    return {"x": _normal(rng, m, k), "w1": _normal(rng, h, k), "w2": _normal(rng, n, h)}


def _mlp(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": torch.relu(x.float() @ w1.float().T).to(torch.bfloat16).float() @ w2.float().T}


def _of_bits(bits: int) -> Program:
    def draw(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
        m, n, k = _extent(rng, most), 16 * _extent(rng, most // 16), 64 * _extent(rng, most // 64)
        w = torch.tensor([rng.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1)) for _ in range(n * k)]).view(n, k)
        scale = _normal(rng, n, dtype=torch.float32)
        return {"x": _normal(rng, m, k), "packed": example("dequant_gemm")["packed"](w, bits), "scale": scale}

    def want(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        w = packed.float()
        if bits == 4:
            low, high = (packed.to(torch.int32) << 28) >> 28, packed.to(torch.int32) >> 4
            w = torch.stack([half.unflatten(1, (-1, 32)) for half in (low, high)], 2).flatten(1).float()
        return {"d": (x.float() @ w.T) * scale}

    return Program(lambda: example("dequant_gemm")["dequant_gemm"](bits), draw, want, atol=0.5)


def _heads(d: int, causal: bool) -> Callable[[random.Random, int], dict[str, torch.Tensor]]:
    def draw(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
        b, g, h = rng.randint(1, 2), rng.randint(1, 2), rng.randint(1, 3)
        m = _extent(rng, most)
        s = m if causal else _extent(rng, most)
        return {"q": _normal(rng, b, g, h, m, d), "k": _normal(rng, b, g, s, d), "v": _normal(rng, b, g, s, d)}

    return draw


def _attention(causal: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, torch.Tensor]:
    scores = q.float() @ k.float().unsqueeze(2).mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return {"o": scores.softmax(-1) @ v.float().unsqueeze(2)}


def _attention_of(d: int, causal: bool) -> Program:
    make = functools.partial(lambda d, causal: example("attention")["attention_of"](d, causal), d, causal)
    return Program(make, _heads(d, causal), functools.partial(_attention, causal), atol=2e-2)


PROGRAMS: dict[str, Program] = {
    "softmax": Program(lambda: example("softmax")["softmax_of"](1024), _rows(1024), _softmax),
    "softmax of short rows": Program(
        lambda: example("softmax")["softmax_of"](128, rows=16, warps=4), _rows(128), _softmax
    ),
    "softmax of long rows": Program(
        lambda: example("softmax")["softmax_of"](4096, rows=2, warps=8), _rows(4096), _softmax
    ),
    "rmsnorm": Program(lambda: example("rmsnorm")["rmsnorm_of"](1024), _norm_inputs, _norm, atol=3e-2),
    "transpose": Program(
        lambda: example("transpose")["transpose_of"](), _matrix(torch.bfloat16, 8), lambda x: {"y": x.T}, 0, 0
    ),
    "transpose fp32": Program(
        lambda: example("transpose")["transpose_of"]("fp32", 32), _matrix(torch.float32, 4), lambda x: {"y": x.T}, 0, 0
    ),
    "gemm_row_max": Program(lambda: example("gemm_row_max")["GemmRowMax"](), _gemm_inputs, _gemm_row_max, atol=0.2),
    "gemm_block_scaled": Program(
        lambda: example("gemm_block_scaled")["BlockScaledGemm"](), _block_inputs, _block_scaled, atol=0.5, rtol=2e-2
    ),
    "mlp": Program(lambda: example("mlp")["Mlp"](), _mlp_inputs, _mlp, atol=1, rtol=2e-2),
    "dequant_gemm of int8": _of_bits(8),
    "dequant_gemm of int4": _of_bits(4),
    "attention": _attention_of(128, False),
    "attention, causal": _attention_of(128, True),
    "attention of 64": _attention_of(64, False),
    "attention of 64, causal": _attention_of(64, True),
}


def check(program: Program, schedule: tp.Schedule, rng: random.Random, most: int, device: str = "cpu") -> str:
    """Runs one random problem. Returns its shapes; raises `AssertionError` with them if an output is off."""
    inputs = {name: tensor.to(device) for name, tensor in program.draw(rng, most).items()}
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in inputs.items())
    found = schedule(**inputs)
    names = list(schedule.declared.stores)
    outputs = dict(zip(names, found if isinstance(found, tuple) else (found,), strict=True))
    for name, want in program.want(**inputs).items():
        message = functools.partial("{0}, {1}: {2}".format, shapes, name)
        torch.testing.assert_close(
            outputs[name].float(), want.float(), atol=program.atol, rtol=program.rtol, msg=message
        )
    return shapes


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--most", type=int, default=300, help="largest extent")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("names", nargs="*")
    given = options.parse_args()
    for name in given.names or PROGRAMS:
        program, rng = PROGRAMS[name], random.Random(f"{name} {given.seed}")
        schedule = program.make()
        for _ in range(given.count):
            check(program, schedule, rng, given.most)
        print(f"{name}: {given.count} random problems right on the model")


if __name__ == "__main__":
    main()
