"""Operators of `tmapipe.torch` beside torch's, as a training step calls them; suite `steps`.

python -m benchmarks.steps
python -m benchmarks.steps --problems "linear 4095x4095x4095"

Products of rows that TMA does not take, forward: bf16, in TFLOP/s. Functions of rows, forward and backward: bf16, in GB/s
that a kernel for each would read and write. A time is that of a step in a loop of steps, by the host's clock
(`benchmarks.mlp.Loop`). Nothing may fall back to torch.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case, main_of
from benchmarks.mlp import Loop
from benchmarks.results import OURS

PRODUCTS = (
    (4095, 4095, 4095),
    (8192, 4096, 4093),
    (4096, 50257, 1024),
    (1000, 3001, 2007),
    (16, 4097, 4095),
    (77, 333, 555),
)
ROWS = ((8192, 4096), (65536, 1000), (4096, 30522))
PASSES = {"softmax": 5, "rms_norm": 5, "layer_norm": 5, "cross_entropy": 3}  # over x, of both directions


def product(m: int, n: int, k: int, device: str) -> tuple[dict[tuple[str, str], Callable[[], Any]], Any]:
    """The variants of a product, and its result."""
    import torch
    from torch.nn import functional

    from tmapipe import torch as ops

    x, weight = (torch.randn(rows, k, device=device).bfloat16() for rows in (m, n))

    def ours() -> Any:
        with ops.kernels_only():
            return ops.linear(x, weight)

    want = functional.linear(x.float(), weight.float())
    return {("torch", "eager"): lambda: functional.linear(x, weight), (OURS, "eager"): ours}, want


def rows(name: str, m: int, n: int, device: str) -> tuple[dict[tuple[str, str], Callable[[], Any]], Any]:
    """The variants of a function of rows with its gradients, and that of x."""
    import torch
    from torch.nn import functional

    from tmapipe import torch as ops

    x = torch.randn(m, n, device=device).bfloat16().requires_grad_()
    weight, bias = (torch.randn(n, device=device).bfloat16().requires_grad_() for _ in range(2))
    target, grad = torch.randint(0, n, (m,), device=device), torch.randn(m, n, device=device).bfloat16()
    # The function of ours, that of torch's, and what they take beside x.
    forms: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
        "softmax": (ops.softmax, lambda x: torch.softmax(x, -1), ()),
        "rms_norm": (ops.rms_norm, lambda x, w: functional.rms_norm(x, (n,), w, 1e-6), (weight,)),
        "layer_norm": (ops.layer_norm, lambda x, w, b: functional.layer_norm(x, (n,), w, b), (weight, bias)),
        "cross_entropy": (ops.cross_entropy, functional.cross_entropy, (target,)),
    }
    ours, theirs, others = forms[name]

    def step(function: Callable[..., Any], x: Any, others: tuple[Any, ...], grad: Any) -> Any:
        wanted = (x, *(each for each in others if each.is_floating_point()))
        return torch.autograd.grad(function(x, *others), wanted, grad)[0]

    def by_kernels() -> Any:
        with ops.kernels_only():
            return step(ours, x, others, of_y)

    of_y = None if name == "cross_entropy" else grad
    wide = [each.detach().float().requires_grad_() if each.is_floating_point() else each for each in (x, *others)]
    want = step(theirs, wide[0], tuple(wide[1:]), None if of_y is None else of_y.float())
    compiled = torch.compile(theirs, dynamic=False)
    return {
        ("torch", "eager"): functools.partial(step, theirs, x, others, of_y),
        ("torch", "compile"): functools.partial(step, compiled, x, others, of_y),
        (OURS, "eager"): by_kernels,
    }, want.to(torch.bfloat16)


CASES = [
    Case(f"linear {m}x{n}x{k}", "bf16", 2.0 * m * n * k, functools.partial(product, m, n, k), measure="tflops")
    for m, n, k in PRODUCTS
] + [
    Case(f"{name} {m}x{n}", "bf16", 2.0 * passes * math.prod((m, n)), functools.partial(rows, name, m, n), 2e-2)
    for name, passes in PASSES.items()
    for m, n in ROWS
]


def main(argv: list[str] | None = None) -> int:
    import torch

    given = [*(sys.argv[1:] if argv is None else argv), "--flush", "none"]
    return main_of("steps", __doc__, CASES, given, lambda _: Loop(torch.cuda.synchronize))


if __name__ == "__main__":
    sys.exit(main())
