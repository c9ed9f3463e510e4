"""PyTorch's own sample inputs through `tmapipe.torch`: ``python -m tests.operators``, or with ``--jobs 16 --quick``.

The samples are those of ``op_db``, on the GPU, or on the CPU, where the model stands for kernels. Each result is compared with
torch's in double precision, and so are gradients where torch has them. Prints, for each operator and type, how many samples
are right, how many a kernel has computed, and why the others fell back. Exit code 1: one is wrong, or raised an error.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import multiprocessing
import pathlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.testing._internal.common_methods_invocations import op_db

import tmapipe.torch as tt
from tmapipe.torch import operators, products
from tmapipe.torch.operators import settings
from tmapipe.tuning import choose

Task = tuple[int, str, int]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def addmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if c.ndim == 1 and c.shape[0] == b.shape[1] and beta == alpha == 1:
        return tt.linear(a, b.mT, c)
    return beta * c + alpha * tt.matmul(a, b)


def softmax(function: Callable[..., Any], x: Any, dim: int, dtype: Any = None) -> Any:
    return function(x if dtype is None else x.to(dtype), dim)


def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    weight = torch.ones(shape, dtype=x.dtype, device=x.device) if weight is None else weight
    return (
        tt.layer_norm(x, weight, bias, eps) if len(shape) == 1 else functional.layer_norm(x, shape, weight, bias, eps)
    )


def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    weight = torch.ones(shape, dtype=x.dtype, device=x.device) if weight is None else weight
    return tt.rms_norm(x, weight, eps) if len(shape) == 1 else functional.rms_norm(x, shape, weight, eps)


def cross_entropy(x: Any, target: Any, weight: Any = None, **named: Any) -> Any:
    plain = weight is None and not set(named) - {"ignore_index", "reduction"} and not target.is_floating_point()
    return tt.cross_entropy(x, target, **named) if plain else functional.cross_entropy(x, target, weight, **named)


def conv(x: Any, weight: Any, bias: Any = None, *how: Any, **named: Any) -> Any:
    if named.get("padding") == "same" and any(n % 2 == 0 for n in weight.shape[2:]):
        rank = weight.ndim - 2  # one zero more behind than before: as torch says to
        dilation = named.get("dilation", 1)
        steps = [dilation] * rank if isinstance(dilation, int) else dilation
        around = [step * (n - 1) for step, n in zip(steps, weight.shape[2:], strict=True)]
        x = functional.pad(x, [zeros for all in reversed(around) for zeros in (all // 2, all - all // 2)])
        named = {**named, "padding": 0}
    images = x.ndim == weight.ndim  # else one image without a dimension of its own
    found = tt.conv2d(x if images else x[None], weight, bias, *how, **named)
    return found if images else found[0]


OURS: dict[str, Callable[..., Any]] = {
    "mm": tt.matmul,
    "bmm": tt.matmul,
    "addmm": addmm,
    "matmul": tt.matmul,
    "nn.functional.linear": tt.linear,
    "nn.functional.conv1d": conv,
    "nn.functional.conv2d": conv,
    "nn.functional.conv3d": conv,
    "softmax": lambda x, dim, dtype=None: softmax(tt.softmax, x, dim, dtype),
    "log_softmax": lambda x, dim, dtype=None: softmax(tt.log_softmax, x, dim, dtype),
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.cross_entropy": cross_entropy,
}


def wide(value: Any) -> Any:
    """The same in double precision."""
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.is_floating_point() else value
    return type(value)(map(wide, value)) if isinstance(value, (tuple, list)) else value


def differs(sample: Any, ours: Callable[..., Any], its: Callable[..., Any], tolerance: float) -> str:
    """ "", or what is wrong with a sample's result and gradients."""
    given = (sample.input, *sample.args)
    right_given = [wide(x) for x in given]
    named = {name: wide(value) for name, value in sample.kwargs.items() if name != "dtype"}
    tracked = [x for x in right_given if isinstance(x, torch.Tensor) and x.is_floating_point()]
    own = [x for x in given if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for x in (*tracked, *own):
        x.requires_grad_()
    right, found = its(*right_given, **named), ours(*given, **sample.kwargs)
    scale = max(1.0, right.abs().max().item() if right.numel() else 0.0)
    if found.shape != right.shape:
        return f"is of shape {tuple(found.shape)}, not {tuple(right.shape)}"
    if right.numel() and (bad := (found.double() - right).abs().max().item()) > tolerance * scale:
        torchs = its(*given, **sample.kwargs)  # where operands cancel, its own result of this type is as far off
        if not bad <= 2 * (torchs.double() - right).abs().max().item():
            return f"off by {bad:.1e}"
    if right.numel() and right.requires_grad and found.requires_grad:
        grads = torch.autograd.grad(found.double().sum(), own, allow_unused=True)
        for mine, other in zip(grads, torch.autograd.grad(right.sum(), tracked, allow_unused=True), strict=True):
            if mine is not None and other is not None and other.numel():
                most = max(1.0, other.abs().max().item())
                if (bad := (mine.double() - other).abs().max().item()) > 4 * tolerance * most:
                    return f"a gradient is off by {bad:.1e}"
    return ""


AT_ONCE = 3  # samples of a task


def begin(quick: bool) -> str:
    """Sets what tasks need; the device's name. quick: nothing is measured, of the candidates for a product."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings.model = device == "cpu"
    torch.set_float32_matmul_precision("high")  # fp32 by tf32
    torch.set_num_threads(1)
    if quick:
        for module in (operators, products):
            module.choose = functools.partial(choose, look=1)  # type: ignore[attr-defined]
    return device


def tasks(names: Sequence[str]) -> Iterator[Task]:
    """(number of the operator in op_db, type, first sample) of all, or of those named; of each operator together."""
    for number, op in enumerate(op_db):
        if op.name not in (names or OURS) or op.variant_test_name not in ("", "with_dtype"):
            continue
        count = sum(1 for _ in op.sample_inputs("cpu", torch.float32, requires_grad=False))
        for short in TYPES:
            yield from ((number, short, first) for first in range(0, count, AT_ONCE))


def outcome(task: Task) -> tuple[Task, Counter[str], Counter[str], list[str]]:
    """The task; how many samples are right, by a kernel, and so on; calls that fell back, by reason; and what is wrong."""
    number, short, first = task
    op, counts, reasons, wrong = op_db[number], Counter[str](), Counter[str](), []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    samples = op.sample_inputs(device, TYPES[short], requires_grad=False)
    for index, sample in itertools.islice(enumerate(samples), first, first + AT_ONCE):
        before = tt.fallbacks()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                said = differs(sample, OURS[op.name], op.op, 2e-2 if short != "fp32" else 5e-3)
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        fell = {reason for reason, count in tt.fallbacks().items() if count > before.get(reason, 0)}
        reasons.update(fell)
        counts.update(samples=1, right=not said, kernel=not said and not fell, fell=bool(fell))
        if said:
            wrong.append(f"{op.name} {short} {index}: {said}")
    return task, counts, reasons, wrong


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("operators", nargs="*", help=f"of {', '.join(OURS)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--quick", action="store_true", help="take the choice by estimate: nothing is compiled to measure"
    )
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file, written anew after each row")
    options = parser.parse_args(argv)
    device = begin(options.quick)
    finished: list[dict[str, Any]] = []
    todo = list(tasks(options.operators))
    left = Counter(task[:2] for task in todo)
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    print(f"{'operator':30} type  samples right by kernel fell back")
    with contextlib.ExitStack() as stack:
        done: Iterable[Any] = map(outcome, todo)
        if options.jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(options.jobs, begin, (options.quick,)))
            done = pool.imap_unordered(outcome, todo)
        for (number, short, _), counts, reasons, wrong in done:
            op = op_db[number]
            row = rows.setdefault((number, short), {"operator": f"{op.name} {op.variant_test_name}".strip()})
            row |= {"dtype": short, "counts": row.get("counts", Counter()) + counts}
            row |= {"reasons": row.get("reasons", Counter()) + reasons, "wrong": row.get("wrong", []) + wrong}
            left[number, short] -= 1
            if left[number, short]:
                continue
            count = [row["counts"][what] for what in ("samples", "right", "kernel", "fell")]
            print(f"{row['operator']:30} {short:5} {count[0]:7} {count[1]:5} {count[2]:9} {count[3]:9}", flush=True)
            names = dict(zip(("samples", "right", "by_kernel", "fell_back"), count, strict=True))
            finished.append({"operator": row["operator"], "dtype": short, **names})
            if options.out:
                options.out.write_text(json.dumps({"device": device, "rows": finished}, indent=1) + "\n")
    totals, reasons = (sum((row[what] for row in rows.values()), Counter[str]()) for what in ("counts", "reasons"))
    wrong = [each for row in rows.values() for each in row["wrong"]]
    print(*(f"{count:5} {reason}" for reason, count in reasons.most_common()), sep="\n")
    print(*wrong, sep="\n")
    right, alone, fell = (totals[what] for what in ("right", "kernel", "fell"))
    print(f"{totals['samples']} samples: {right} right, {alone} by kernels alone, {fell} fell back")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
