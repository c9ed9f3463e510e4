"""The programs of `examples/` that compute with values: how each is made, its most lines, random inputs, what it must give.

They are run on the model, checked, compiled and run on the device by the tests beside, and timed by `benchmarks/programs.py`.
`python -m tests.programs --count 200` runs that many random shapes of each on the model.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import time
from collections.abc import Callable

import attrs
import torch

import tmapipe as tp
from examples.attention import attention_of
from examples.conv import conv_of
from examples.dequant_gemm import dequant_gemm
from examples.dequant_gemm import packed as pack
from examples.gemm_block_scaled import BlockScaledGemm
from examples.gemm_row_max import GemmRowMax
from examples.histogram import BINS, Histogram
from examples.mlp import Mlp
from examples.ragged import RaggedSums
from examples.rmsnorm import long_rmsnorm_of, plain_rmsnorm_of, rmsnorm_of
from examples.row_sums import ClusterRowSums, RowSums
from examples.softmax import softmax_of
from examples.stencil import Stencil
from examples.transpose import transpose_of
from examples.two_passes import Normalize

__all__ = ["PROGRAMS", "Program", "check"]


@attrs.frozen
class Program:
    """Args:
    make: The schedule.
    lines: That its stages, roles and bodies may have.
    draw: Random inputs by argument, on the CPU, from a source of random numbers and the largest extent.
    want: From these inputs, what each output must be, in fp32 or fp64.
    atol, rtol: How far an output may be off.
    """

    make: Callable[[], tp.Schedule]
    lines: int
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


def _rows_of(length: int) -> Callable[[random.Random, int], dict[str, torch.Tensor]]:
    return lambda rng, most: {"x": _normal(rng, _extent(rng, most), length)}


def _weighted_rows(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
    return {"weight": _normal(rng, 1024), "x": _normal(rng, _extent(rng, most), 1024)}


def _weighted(weight: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": _norm(weight, x, torch.zeros_like(x))["y"]}


def _softmax(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": torch.softmax(x.float(), 1)}


def _norm_inputs(columns: int) -> Callable[[random.Random, int], dict[str, torch.Tensor]]:
    def draw(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
        m, n = _extent(rng, most), 8 * rng.randint(1, columns // 8)
        return {"weight": _normal(rng, n), "x": _normal(rng, m, n), "residual": _normal(rng, m, n)}

    return draw


def _norm(weight: torch.Tensor, x: torch.Tensor, residual: torch.Tensor) -> dict[str, torch.Tensor]:
    h = x.float() + residual.float()
    return {"h": h, "y": h * torch.rsqrt(h.square().mean(1, keepdim=True) + 1e-6) * weight.float()}


def _pair(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
    m, n = _extent(rng, most), 8 * rng.randint(2, max(2, most))
    return {"x": _normal(rng, m, n), "residual": _normal(rng, m, n)}


def _normalized(x: torch.Tensor, residual: torch.Tensor) -> dict[str, torch.Tensor]:
    h = x.double() + residual.double()
    return {"h": h, "y": torch.nn.functional.layer_norm(h, h.shape[1:])}


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
        return {"x": _normal(rng, m, k), "packed": pack(w, bits), "scale": scale}

    def want(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        w = packed.float()
        if bits == 4:
            low, high = (packed.to(torch.int32) << 28) >> 28, packed.to(torch.int32) >> 4
            w = torch.stack([half.unflatten(1, (-1, 32)) for half in (low, high)], 2).flatten(1).float()
        return {"d": (x.float() @ w.T) * scale}

    return Program(functools.partial(dequant_gemm, bits), 40, draw, want, atol=0.5)


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
    make = functools.partial(attention_of, d, causal)
    return Program(make, 60, _heads(d, causal), functools.partial(_attention, causal), atol=2e-2)


def _conv_inputs(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
    h, w = (_extent(rng, min(most, 40)) for _ in range(2))
    c, o = (_extent(rng, most, 8) for _ in range(2))
    return {"x": _normal(rng, rng.randint(1, 2), h, w, c), "f": _normal(rng, 3, 3, o, c)}


def _conv(x: torch.Tensor, f: torch.Tensor) -> dict[str, torch.Tensor]:
    found = torch.nn.functional.conv2d(x.double().permute(0, 3, 1, 2), f.double().permute(2, 3, 0, 1), padding=1)
    return {"d": found.permute(0, 2, 3, 1)}


# ---- sums and neighbours ------------------------------------------------------------------------------------------------


def _stencil(x: torch.Tensor) -> dict[str, torch.Tensor]:
    wide = torch.nn.functional.pad(x, (1, 1, 1, 1))
    return {"y": (x + wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]) / 5}


def _histogram_inputs(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(rng.getrandbits(40))
    shape = (_extent(rng, min(most, 500)), _extent(rng, min(most, 1000), 4))
    return {"x": torch.randint(-2, BINS + 2, shape, generator=source, dtype=torch.int32)}


def _histogram(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"h": torch.stack([(x == b).sum(1) for b in range(BINS)], 1)}


def _groups(rng: random.Random, most: int) -> dict[str, torch.Tensor]:
    m, n = _extent(rng, most), _extent(rng, most, 4)
    begins = sorted(rng.randint(0, m) for _ in range(rng.randint(2, 12)))
    return {"x": _normal(rng, m, n, dtype=torch.float32), "begins": torch.tensor(begins, dtype=torch.int32)}


def _ragged(x: torch.Tensor, begins: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": torch.stack([x[first:end].sum(0) for first, end in itertools.pairwise(begins.tolist())])}


PROGRAMS: dict[str, Program] = {
    "softmax": Program(functools.partial(softmax_of, 1024), 30, _rows(1024), _softmax),
    "softmax of short rows": Program(functools.partial(softmax_of, 128, 16, 4), 30, _rows(128), _softmax),
    "softmax of long rows": Program(functools.partial(softmax_of, 4096, 2, 8, held=True), 30, _rows(4096), _softmax),
    "softmax over CTAs": Program(functools.partial(softmax_of, 1024, 1, 2, 4), 30, _rows(4096), _softmax),
    "softmax of rows of 200": Program(functools.partial(softmax_of, 256, 4, 4, 1, 200), 30, _rows_of(200), _softmax),
    "softmax of rows of 2048": Program(
        functools.partial(softmax_of, 1024, 1, 2, 2, 2048, 4), 30, _rows_of(2048), _softmax
    ),
    "rmsnorm of rows of 1024": Program(
        functools.partial(plain_rmsnorm_of, 1024, 2, 4, 1, 1024), 30, _weighted_rows, _weighted, atol=3e-2
    ),
    "rmsnorm, a few rows a cluster": Program(
        functools.partial(long_rmsnorm_of, 512, 2, 2, 2, 3), 30, _weighted_rows, _weighted, atol=3e-2
    ),
    "rmsnorm": Program(functools.partial(rmsnorm_of, 1024), 30, _norm_inputs(1024), _norm, atol=3e-2),
    "rmsnorm over CTAs": Program(
        functools.partial(rmsnorm_of, 1024, 2, 8, 3), 30, _norm_inputs(3072), _norm, atol=3e-2
    ),
    "two passes": Program(Normalize, 50, _pair, _normalized, atol=5e-2),
    "transpose": Program(transpose_of, 20, _matrix(torch.bfloat16, 8), lambda x: {"y": x.T}, 0, 0),
    "transpose fp32": Program(
        functools.partial(transpose_of, "fp32", 32, each=2), 20, _matrix(torch.float32, 4), lambda x: {"y": x.T}, 0, 0
    ),
    "stencil": Program(Stencil, 25, _matrix(torch.float32, 4), _stencil, 1e-5, 1e-5),
    "row_sums": Program(RowSums, 25, _matrix(torch.float32, 4), lambda x: {"y": x.sum(1)}, 1e-3, 1e-4),
    "row_sums over CTAs": Program(ClusterRowSums, 25, _matrix(torch.float32, 4), lambda x: {"y": x.sum(1)}, 1e-3, 1e-4),
    "histogram": Program(Histogram, 35, _histogram_inputs, _histogram, 0, 0),
    "ragged": Program(RaggedSums, 35, _groups, _ragged, 1e-3, 1e-4),
    "gemm_row_max": Program(GemmRowMax, 30, _gemm_inputs, _gemm_row_max, atol=0.2),
    "gemm_block_scaled": Program(BlockScaledGemm, 40, _block_inputs, _block_scaled, atol=0.5, rtol=2e-2),
    "mlp": Program(Mlp, 45, _mlp_inputs, _mlp, atol=1, rtol=2e-2),
    "conv": Program(conv_of, 45, _conv_inputs, _conv, atol=0.2),
    "conv of several images": Program(functools.partial(conv_of, (4, 4, 4), 64, 1), 45, _conv_inputs, _conv, atol=0.2),
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
        program, rng, began = PROGRAMS[name], random.Random(f"{name} {given.seed}"), time.perf_counter()
        schedule = program.make()
        shapes = {check(program, schedule, rng, given.most) for _ in range(given.count)}
        seconds = time.perf_counter() - began
        print(f"{name}: {given.count} problems of {len(shapes)} shapes right on the model, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
