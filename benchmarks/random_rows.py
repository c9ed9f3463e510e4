"""Kernels of rows of random lengths, to which nothing was fitted, beside QuACK's; suite `rows_random`.

python -m benchmarks.random_rows --seed 0x1234abcd                   what `tmapipe.schedules` takes, beside the peers
python -m benchmarks.random_rows --explore 10 --alone                ten forms of each length too, to see what is missed
python -m benchmarks.random_rows --cases rmsnorm:38434:fp32 --explore 10 --alone      of this one
python -m benchmarks.random_rows --report                            prints the stored results; needs no GPU

256 MiB are read, as many written. Where QuACK refuses a length, torch and torch.compile are the peers. How it is measured:
`benchmarks.row_kernels`.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from benchmarks import cases
from benchmarks.results import OURS, folder_of, read
from benchmarks.row_kernels import Made, Runs, add_time, compiled_later, report, run_suites, some
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.schedules.crossentropy import CrossEntropy, LogSoftmax, Reduce, Softmax
from tmapipe.schedules.norms import LayerNorm, RmsNorm
from tmapipe.schedules.rowform import RowForm
from tmapipe.schedules.rows import RowKernel, Rows

BYTES = 256 << 20
LEAST, MOST = 64, 262144
SIZES = {"bf16": 2, "fp32": 4}


class Case(NamedTuple):
    kernel: str
    length: int
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.length}"

    @property
    def aligned(self) -> int:
        """Bytes of which all rows are whole multiples, up to 16."""
        return math.gcd(ALIGNMENT, self.length * SIZES[self.dtype])


def draw(seed: int, count: int = 40, kernels: Iterable[str] = ("softmax", "rmsnorm")) -> list[Case]:
    """Lengths log-uniform from 64 to 262,144, every second one a multiple of 8 and the others not, bf16 and fp32 in turn by
    pairs; all kernels of each."""
    rng, found = random.Random(seed), []
    for i in range(count):
        length = round(math.exp(rng.uniform(math.log(LEAST), math.log(MOST))))
        length = max(LEAST, length // 8 * 8) if i % 2 == 0 else length + (length % 8 == 0) * rng.randint(1, 7)
        found.append((min(length, MOST - (i % 2)), ("bf16", "fp32")[i // 2 % 2]))
    return [Case(kernel, *each) for each in found for kernel in kernels]


# ---- kernels ------------------------------------------------------------------------------------------------------------


class Peers(NamedTuple):
    """A kernel beside others.

    Args:
        ours: What users call.
        inputs: Of rows x, what it is called with besides x.
        torch: The same in torch.
        quack: The same in QuACK, which returns the first output.
        stores: Whether it writes as much as it reads.
    """

    ours: Callable[[], RowKernel]
    inputs: Callable[[Any], tuple[Any, ...]]
    torch: Callable[..., Any]
    quack: Callable[..., Any] | None
    stores: bool = True


def _none(x: Any) -> tuple[Any, ...]:
    return ()


def weight_of(x: Any) -> tuple[Any, ...]:
    import torch

    return (torch.randn(x.shape[1], device=x.device, dtype=x.dtype),)


def affine(x: Any) -> tuple[Any, ...]:
    import torch

    return torch.randn(x.shape[1], device=x.device), torch.randn(x.shape[1], device=x.device)


def targets(x: Any) -> tuple[Any, ...]:
    import torch

    return (torch.randint(0, x.shape[1], x.shape[:1], device=x.device),)


def functional(name: str, **named: Any) -> Callable[..., Any]:
    def call(x: Any, *others: Any) -> Any:
        import torch

        shape = ((x.shape[1],),) if name.endswith("_norm") else ()
        if name == "layer_norm":
            others = tuple(each.to(x.dtype) for each in others)
        return getattr(torch.nn.functional, name)(x, *shape, *others, **named)

    return call


def quack_of(module: str, name: str, **named: Any) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        import importlib

        found = getattr(importlib.import_module(f"quack.{module}"), name)(*inputs, **named)
        return found[0] if isinstance(found, tuple) else found

    return call


def _sum(x: Any) -> Any:
    return x.sum(1)


KERNELS: dict[str, Peers] = {
    "softmax": Peers(Softmax, _none, functional("softmax", dim=1), quack_of("softmax", "softmax_fwd")),
    "rmsnorm": Peers(RmsNorm, weight_of, functional("rms_norm", eps=1e-6), quack_of("rmsnorm", "rmsnorm_fwd")),
    "log_softmax": Peers(LogSoftmax, _none, functional("log_softmax", dim=1), None),
    "layernorm": Peers(
        functools.partial(LayerNorm, numbers=True), affine, functional("layer_norm"),
        quack_of("rmsnorm", "layernorm_fwd", eps=1e-5, return_rstd=True, return_mean=True),
    ),
    "cross_entropy": Peers(
        CrossEntropy, targets, functional("cross_entropy", reduction="none"),
        quack_of("cross_entropy", "cross_entropy_fwd", return_lse=True), False,
    ),
    "sum": Peers(Reduce, _none, _sum, None, False),
}  # fmt: skip


def columns_of(case: Case) -> list[int]:
    """Bytes of what there is a column of."""
    size = {"rmsnorm": [SIZES[case.dtype]], "layernorm": [4, 4]}
    return size.get(case.kernel, [])


def forms_of(case: Case, count: int) -> list[RowForm]:
    """The best by the model, the best of each kind (packed or not, one tile a CTA or several, so many CTAs a row), then
    others, better ones first."""
    every = (
        KERNELS[case.kernel].ours().forms(case.length, SIZES[case.dtype], case.aligned, vectors=sum(columns_of(case)))
    )
    kinds: dict[Any, RowForm] = {}
    for form in every:
        kinds.setdefault((form.packed, form.each > 1, form.ctas, form.piece > 0), form)
    found = list(dict.fromkeys([every[0], *kinds.values()]))[:count]
    others = [form for form in every if form not in found]
    rng = random.Random(case.name)
    weights = [0.93**i for i in range(len(others))]
    while len(found) < count and others:
        (index,) = rng.choices(range(len(others)), weights)
        found.append(others.pop(index))
        weights.pop(index)
    return found


def schedule_of(case: Case, form: RowForm) -> tuple[Rows, dict[str, str]]:
    """The schedule of a form, and its tensors' types."""
    schedule = KERNELS[case.kernel].ours().rows(form, case.aligned, 1, len(columns_of(case)))
    names = (*schedule.loaded, *schedule.columns, *schedule.stored)
    types = dict.fromkeys(names, case.dtype) | dict.fromkeys(schedule.numbers, "fp32")
    if case.kernel == "layernorm":
        types |= dict.fromkeys(schedule.columns, "fp32")
    return schedule, types


def text_of(form: RowForm) -> str:
    narrow = form.width is not None and form.width != form.unit
    how = ", packed" * form.packed + ", held" * form.held + f", {form.each} each" * (form.each > 1)
    how += f", {form.slots} slots" * (form.slots > 0)
    how += (
        f", {form.lanes} lanes" * (form.lanes > 0)
        + f", vectors of {form.width}" * narrow
        + f", weights by {form.piece}, {form.ahead} ahead" * (form.piece > 0)
    )
    return f"{form.rows} x {form.columns} by {form.ctas} CTAs of {form.warps} warps, {form.share}{how}"


# ---- measuring ----------------------------------------------------------------------------------------------------------


def made(case: Case, explore: int, peers: bool, bytes_: int) -> Made:
    """The variants of a case, and what they return. The first of ours is what is called, after a look, named by its form;
    others are of as many forms as are to be explored."""
    import torch

    height = max(1, bytes_ // SIZES[case.dtype] // case.length)
    x = some(height, case.length, dtype={"bf16": "bfloat16", "fp32": "float32"}[case.dtype])
    beside = KERNELS[case.kernel]
    inputs = x, *beside.inputs(x)
    out = {"out": torch.full_like(x, float("nan"))} if beside.stores else {}

    def called(kernel: RowKernel, form: RowForm | None = None) -> Callable[[], Any]:
        if form is not None:
            rows, _ = schedule_of(case, form)
            kernel.fit = lambda *_: rows  # type: ignore[method-assign]

        def call() -> Any:
            found = kernel(*inputs, **out)
            return found[0] if isinstance(found, tuple) else found

        return call

    kernel = KERNELS[case.kernel].ours()
    run = called(kernel)
    run()
    (fitted,) = kernel.fitted.values()
    runs: Runs = {(OURS, text_of(fitted.form)): run}
    for form in forms_of(case, explore) if explore > 1 else ():
        runs.setdefault((OURS, text_of(form)), called(KERNELS[case.kernel].ours(), form))
    if peers and beside.quack is not None:
        try:
            if not beside.quack(*inputs).isfinite().all():
                raise ArithmeticError("WRONG, not finite")
            runs["quack", "fwd"] = functools.partial(beside.quack, *inputs)
        except Exception as error:  # any: an assertion, or the compiler's
            print(f"  quack {case.name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}")
    if peers and not any(peer == "quack" for peer, _ in runs):
        runs["torch", "eager"] = functools.partial(beside.torch, *inputs)
        runs["torch", "compile"] = functools.partial(compiled_later(beside.torch), *inputs)
    return runs, beside.torch(x.float(), *(each.float() if each.is_floating_point() else each for each in inputs[1:]))


def measured(case: Case, explore: int = 1, peers: bool = True, bytes_: int = BYTES) -> cases.Case:
    """As a case of `benchmarks.row_kernels`."""
    work = (1.0 + KERNELS[case.kernel].stores) * bytes_
    return cases.Case(case.name, case.dtype, work, lambda device: made(case, explore, peers, bytes_))


# ---- the command line ---------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="lengths (default %(default)s)")
    parser.add_argument("--draw", type=lambda text: int(text, 0), default=0, help="seed of the lengths")
    parser.add_argument("--lengths", type=int, nargs="+", help="these instead")
    parser.add_argument("--cases", nargs="+", metavar="KERNEL:LENGTH:TYPE", help="these instead")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=("softmax", "rmsnorm"))
    parser.add_argument("--dtypes", nargs="+", choices=SIZES, default=tuple(SIZES))
    parser.add_argument("--explore", type=int, default=1, metavar="N", help="forms of ours (default: what is taken)")
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    add_time(parser)
    args = parser.parse_args(argv)
    if args.report:
        report(read(folder_of(args.out) / "rows_random.json")["rows"], "rows of random lengths")
        return 0
    drawn = draw(args.draw, args.count, args.kernels)
    if args.lengths:
        drawn = [Case(kernel, n, dtype) for n in args.lengths for dtype in args.dtypes for kernel in args.kernels]
    drawn = [case for case in drawn if case.kernel in args.kernels and case.dtype in args.dtypes]
    if args.cases:
        drawn = [Case(kernel, int(n), dtype) for kernel, n, dtype in (text.split(":") for text in args.cases)]
    suites = {"rows_random": [measured(case, args.explore, not args.alone) for case in drawn]}
    command = ["benchmarks.random_rows", "--explore", str(args.explore), *["--alone"] * args.alone, "--cases"]
    command += [f"{case.kernel}:{case.length}:{case.dtype}" for case in drawn]
    return run_suites(suites, args, command, draw=args.draw)


if __name__ == "__main__":
    sys.exit(main())
