"""A layer of two products with gelu between, forward and backward, beside torch.compile; suite `mlp`, TFLOP/s.

python -m benchmarks.mlp
python -m benchmarks.mlp --problems 512 4096 --rounds 10

x [tokens, 2048], hidden 8192, bf16. A run computes the result and the gradients of x and of both weights. Ours are
`tmapipe.torch.Linear` in place of `torch.nn.Linear`, in the same module: eager, and compiled as a whole graph by
torch.compile, by itself and with mode="reduce-overhead", which launches CUDA graphs.
The gradient of x is compared with that of the same module in fp32 at each run's check, those of the weights once.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case, main_of
from benchmarks.results import OURS

FEATURES, HIDDEN, TOKENS = 2048, 8192, (512, 1024, 2048, 4096, 8192)
LIMIT = 2e-2


def make(tokens: int, device: str) -> tuple[dict[tuple[str, str], Callable[[], Any]], Any]:
    """The variants, each of which returns the gradient of x, and that gradient in fp32."""
    import torch

    from tmapipe import torch as ops

    nn, kinds = torch.nn, {"bias": False, "device": device, "dtype": torch.bfloat16}
    x = torch.randn(tokens, FEATURES, device=device, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(tokens, FEATURES, device=device, dtype=torch.bfloat16)

    def layers(linear: Any) -> Any:
        return nn.Sequential(linear(FEATURES, HIDDEN, **kinds), nn.GELU(), linear(HIDDEN, FEATURES, **kinds))

    theirs = layers(nn.Linear)
    own = layers(ops.Linear)
    own.load_state_dict(theirs.state_dict())

    def gradients(module: Any, forward: Any, x: Any, grad: Any) -> tuple[Any, ...]:
        return torch.autograd.grad(forward(x), (x, *module.parameters()), grad)

    wide = copy.deepcopy(theirs).float()
    want = gradients(wide, wide, x.detach().float().requires_grad_(), grad.float())
    torch.compiler.reset()
    ways: dict[tuple[str, str], tuple[Any, Any]] = {}
    for peer, module in (("torch", theirs), (OURS, own)):
        ways[peer, "eager"] = module, module
        ways[peer, "compile"] = module, torch.compile(module, fullgraph=True)
        ways[peer, "reduce-overhead"] = module, torch.compile(module, fullgraph=True, mode="reduce-overhead")
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    for key, (module, forward) in ways.items():
        try:
            for _ in range(3):  # a graph is captured by the second call
                made = gradients(module, forward, x, grad)
        except RuntimeError as error:  # the others are still of use
            print(f"{' '.join(key)}: {str(error).splitlines()[0]}")
            continue
        for found, right in zip(made, want, strict=True):
            error = float((found.float() - right).norm() / right.norm())
            if not error < LIMIT:
                raise ArithmeticError(
                    f"{' '.join(key)}: relative error {error:.2e} of a gradient, the limit is {LIMIT}"
                )
        runs[key] = functools.partial(_first, functools.partial(gradients, module, forward, x, grad))
    if count := ops.fallbacks():
        raise RuntimeError(f"fell back to torch: {count}")
    return runs, want[0].to(torch.bfloat16)


def _first(run: Callable[[], tuple[Any, ...]]) -> Any:
    return run()[0]


CASES = [
    Case(
        str(tokens),
        "bf16",
        6.0 * 2 * tokens * FEATURES * HIDDEN,
        functools.partial(make, tokens),
        LIMIT,
        measure="tflops",
    )
    for tokens in TOKENS
]


def main(argv: list[str] | None = None) -> int:
    return main_of("mlp", __doc__, CASES, argv)


if __name__ == "__main__":
    sys.exit(main())
