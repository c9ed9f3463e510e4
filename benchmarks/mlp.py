"""A layer of two products with gelu between, forward and backward, beside torch.compile; suite `mlp`, TFLOP/s.

python -m benchmarks.mlp
python -m benchmarks.mlp --problems 512 4096 --rounds 10

x [tokens, 2048], hidden 8192, bf16. A run computes the result and the gradients of x and of both weights. Ours are
`tmapipe.torch.Linear` in place of `torch.nn.Linear`, in the same module: eager, and compiled as a whole graph by
torch.compile, by itself and with mode="reduce-overhead", which launches CUDA graphs. A way that --skip names is not
compiled.
A time is that of a step in a loop of steps, by the host's clock: of few tokens the host takes longer than the device. The L2
cache is as the step before leaves it. Meanwhile Python's garbage collector rests, as in `timeit`: it walks through all that
torch.compile has made in this process.
The gradient of x is compared with that of the same module in fp32 at each run's check, those of the weights once.
"""

from __future__ import annotations

import copy
import functools
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case, main_of
from benchmarks.results import OURS

FEATURES, HIDDEN, TOKENS = 2048, 8192, (512, 1024, 2048, 4096, 8192)
LIMIT = 2e-2
STEPS = 8  # in a loop, for each launch of a batch
WAYS: dict[str, dict[str, Any] | None] = {"eager": None, "compile": {}, "reduce-overhead": {"mode": "reduce-overhead"}}


class Loop:
    """A clock of steps in a loop, as of `tmapipe.tuning.cost.Clock`. `CudaClock` gives the host a start of 2 ms before a
    batch. A step that takes the host longer than the device uses up this start: the first launches of a batch show the
    device's time, the later ones the host's.

    Args:
        wait: Returns when the device has ended.
    """

    def __init__(self, wait: Callable[[], None]):
        self.wait = wait

    def rest(self, seconds: float) -> None:
        self.wait()
        time.sleep(seconds)

    def batch(self, run: Callable[[], object], launches: int) -> list[float]:
        """Microseconds of a step, in a list of one."""
        steps = STEPS * launches
        run()
        gc.collect()
        gc.disable()
        try:
            self.wait()
            begin = time.perf_counter()
            for _ in range(steps):
                run()
            self.wait()
            return [(time.perf_counter() - begin) / steps * 1e6]
        finally:
            gc.enable()

    def span(self, run: Callable[[], object], seconds: float) -> float:
        """Microseconds of a step, in about so many seconds."""
        (once,) = self.batch(run, 1)
        return self.batch(run, max(1, round(seconds * 1e6 / once / STEPS)))[0]


def lazy(make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """The function that *make* makes, which is made at its first call."""
    made = functools.cache(make)
    return lambda: made()()


def _gradients(module: Any, forward: Any, x: Any, grad: Any) -> tuple[Any, ...]:
    import torch

    found: tuple[Any, ...] = torch.autograd.grad(forward(x), (x, *module.parameters()), grad)
    return found


def _first_steps(
    module: Any, how: dict[str, Any] | None, given: tuple[Any, Any], want: tuple[Any, ...]
) -> Callable[[], Any]:
    """The steps of one way, compiled as *how* says, whose gradients have been compared with those in fp32."""
    import torch

    from tmapipe import torch as ops

    forward = module if how is None else torch.compile(module, fullgraph=True, **how)
    for _ in range(3):  # a graph is captured by the second call
        made = _gradients(module, forward, *given)
    for found, right in zip(made, want, strict=True):
        error = float((found.float() - right).norm() / right.norm())
        if not error < LIMIT:
            raise ArithmeticError(f"relative error {error:.2e} of a gradient, the limit is {LIMIT}")
    if count := ops.fallbacks():
        raise RuntimeError(f"fell back to torch: {count}")
    return lambda: _gradients(module, forward, *given)[0]


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

    wide = copy.deepcopy(theirs).float()
    want = _gradients(wide, wide, x.detach().float().requires_grad_(), grad.float())
    torch.compiler.reset()
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    for peer, module in (("torch", theirs), (OURS, own)):
        for variant, how in WAYS.items():
            step = functools.partial(_first_steps, module, how, (x, grad), want)
            runs[peer, variant] = lazy(step)
    return runs, want[0].to(torch.bfloat16)


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
    import torch

    given = [*(sys.argv[1:] if argv is None else argv), "--flush", "none"]
    return main_of("mlp", __doc__, CASES, given, lambda _: Loop(torch.cuda.synchronize))


if __name__ == "__main__":
    sys.exit(main())
