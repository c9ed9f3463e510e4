"""Kernels of rows of random lengths, to which nothing was fitted, beside QuACK's; suite `rows_random`.

python -m benchmarks.random_rows --seed 0x1234abcd                   what `tmapipe.schedules` takes, beside the peers
python -m benchmarks.random_rows --explore 10 --alone                ten forms of each length, to see what the model misses
python -m benchmarks.random_rows --cases rmsnorm:38434:fp32 --explore 10 --alone      of this one
python -m benchmarks.random_rows --report                            prints the stored results; needs no GPU

256 MiB are read, as many written. Where QuACK refuses a length, torch and torch.compile are the peers. Kernels, and those of
peers, are compiled in other processes before measuring; all variants of a length run in one process, in random order, rested;
each result is checked against torch's in fp32. With ``--seconds`` it ends after that time; with ``--append`` the next run does
what is left.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cases import checker
from benchmarks.cli import add_options, gpu_of, kept, method_of, settings
from benchmarks.results import OURS, Results, folder_of, print_table, read
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.schedules.crossentropy import CrossEntropy, LogSoftmax, Reduce, Softmax
from tmapipe.schedules.norms import LayerNorm, RmsNorm
from tmapipe.schedules.rowform import RowForm
from tmapipe.schedules.rows import RowKernel, Rows
from tmapipe.tuning.compiling import compile_each, ready
from tmapipe.tuning.cost import rested

BYTES = 256 << 20
LEAST, MOST = 64, 262144
SIZES = {"bf16": 2, "fp32": 4}
LIMIT = 1e-2


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


def kernel_of(case: Case) -> RowKernel:
    kernel = KERNELS[case.kernel].ours()
    if isinstance(kernel, CrossEntropy):
        kernel.options = (2,)
    return kernel


def columns_of(case: Case) -> list[int]:
    """Bytes of what there is a column of."""
    size = {"rmsnorm": [SIZES[case.dtype]], "layernorm": [4, 4]}
    return size.get(case.kernel, [])


def forms_of(case: Case, count: int) -> list[RowForm]:
    """What is taken; with more, the best of each kind (packed or not, one tile a CTA or several, so many CTAs a row), then
    others, better ones first."""
    every = kernel_of(case).forms(case.length, SIZES[case.dtype], case.aligned, vectors=sum(columns_of(case)))
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


def job_of(case: Case, form: RowForm) -> tuple[Rows, dict[str, str], dict[str, int]]:
    """As `tmapipe.tuning.compiling.Job`."""
    schedule = kernel_of(case).rows(form, case.aligned, 1, len(columns_of(case)))
    several = int(form.apart > 1)
    ranks = {
        **dict.fromkeys(schedule.loaded, 1 if form.packed else 2),
        **dict.fromkeys((*schedule.columns, *schedule.tables), 1),
        **dict.fromkeys(schedule.stored, 2 + several),
        **dict.fromkeys(schedule.numbers, 1 + several),
    }
    types = dict.fromkeys(ranks, case.dtype) | dict.fromkeys(schedule.numbers, "fp32")
    if case.kernel == "layernorm":
        types |= dict.fromkeys(schedule.columns, "fp32")
    return schedule, {name: kind for name, kind in types.items() if name not in schedule.tables}, ranks


def text_of(form: RowForm) -> str:
    narrow = form.width is not None and form.width != form.unit
    how = ", packed" * form.packed + ", held" * form.held + f", {form.each} each" * (form.each > 1)
    how += f", vectors of {form.width}" * narrow + f", weights by {form.piece}" * (form.piece > 0)
    return f"{form.rows} x {form.columns} by {form.ctas} CTAs of {form.warps} warps, {form.share}{how}"


# ---- measuring ----------------------------------------------------------------------------------------------------------


def runs_of(case: Case, ours: dict[str, Rows], peers: bool) -> tuple[dict[tuple[str, str], Callable[[], Any]], Any]:
    """The variants, and what they return."""
    import torch

    height, kind = (
        BYTES // SIZES[case.dtype] // case.length,
        {"bf16": torch.bfloat16, "fp32": torch.float32}[case.dtype],
    )
    x, beside = torch.randn(height, case.length, device="cuda", dtype=kind), KERNELS[case.kernel]
    inputs = x, *beside.inputs(x)

    def called(rows: Rows) -> Callable[[], Any]:
        kernel = kernel_of(case)
        kernel.fit = lambda *_: rows  # compiled elsewhere
        out = {"out": torch.full_like(x, float("nan"))} if beside.stores else {}

        def call() -> Any:
            found = kernel(*inputs, **out)
            return found[0] if isinstance(found, tuple) else found

        return call

    runs: dict[tuple[str, str], Callable[[], Any]] = {(OURS, title): called(rows) for title, rows in ours.items()}
    if peers and beside.quack is not None:
        try:
            beside.quack(*(each[:8] if each.shape[0] == height else each for each in inputs))
            runs["quack", "fwd"] = functools.partial(beside.quack, *inputs)
        except Exception as error:  # any: an assertion, or the compiler's
            print(f"  quack: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}")
    if peers and not any(peer == "quack" for peer, _ in runs):
        torch._dynamo.reset()
        compiled = torch.compile(beside.torch, dynamic=False)
        runs["torch", "eager"] = functools.partial(beside.torch, *inputs)
        runs["torch", "compile"] = functools.partial(compiled, *inputs)
    return runs, beside.torch(x.float(), *(each.float() if each.is_floating_point() else each for each in inputs[1:]))


def warm(cases: Iterable[Case]) -> None:
    """Calls each peer once, so that its compiled kernels lie in its cache."""
    for case in cases:
        for run in runs_of(case, {}, True)[0].values():
            run()


def measure(case: Case, ours: dict[str, Rows], clock: Any, results: Results, args: argparse.Namespace) -> None:
    """Adds a row for each variant that is right."""
    runs, want = runs_of(case, ours, not args.alone)
    runs, check = kept(runs, args), checker(want)
    errors = {}
    for key, run in list(runs.items()):
        try:
            errors[key] = check(run)
            if not errors[key] < LIMIT:
                raise RuntimeError(f"WRONG, relative error {errors[key]:.2e}")
        except Exception as error:
            clock.rest(0.0)  # raises if the device itself is lost
            print(f"  left out: {' '.join(key)}: {(str(error).splitlines() or [''])[0][:160]}")
            del runs[key]
    del want, check
    for index, ((peer, variant), timing) in enumerate(rested(runs, clock, method_of(args)).items()):
        results.add(
            problem=case.name, dtype=case.dtype, peer=peer, variant=variant, us=timing.us,
            gbps=(1 + KERNELS[case.kernel].stores) * BYTES / timing.us / 1e3, spread=timing.spread,
            rel_err=errors[peer, variant],
            chosen=True if index == 0 and peer == OURS else None,
        )  # fmt: skip


# ---- reports ------------------------------------------------------------------------------------------------------------


def report(rows: Iterable[dict[str, Any]]) -> None:
    """Prints what was chosen beside the best measured form and the best peer, and geometric means."""
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["problem"], row["dtype"]), []).append(row)
    body, ratios = [], dict[str, list[float]]()
    for (name, dtype), mine in cases.items():
        ours = [row for row in mine if row["peer"] == OURS]
        chosen = next((row for row in ours if row.get("chosen")), None)
        peer = min((row for row in mine if row["peer"] != OURS), key=lambda row: row["us"], default=None)
        best = min(ours, key=lambda row: row["us"], default=None)
        if chosen is None or best is None:
            body.append([name, dtype, "no result of ours", "", "", "", "", ""])
            continue
        ratio = peer["us"] / chosen["us"] if peer else float("nan")
        if peer:
            odd = "whole" if int(name.split()[1]) % 8 == 0 else "odd"
            for view in (name.split()[0], dtype, odd, peer["peer"], "all"):
                ratios.setdefault(view, []).append(ratio)
        beside = f"{peer['peer']} {peer['gbps']:.0f}" if peer else ""
        body.append([name, dtype, f"{chosen['gbps']:.0f}", beside, f"{ratio:.3f}", chosen["variant"], f"{best['gbps']:.0f}",
                     "" if best is chosen else best["variant"]])  # fmt: skip
    print_table(body, ["", "", "GB/s", "best peer", "ratio", "form", "best form", ""], "rows of random lengths")
    means = [[view, len(each), f"{math.exp(statistics.fmean(map(math.log, each))):.3f}", f"{min(each):.3f}",
              sum(value < 0.93 for value in each)] for view, each in ratios.items()]  # fmt: skip
    print_table(means, ["of the best peer", "cases", "mean", "least", "< 0.93"])


# ---- the command line ---------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="lengths (default %(default)s)")
    parser.add_argument("--draw", type=lambda text: int(text, 0), default=0, help="seed of the lengths")
    parser.add_argument("--lengths", type=int, nargs="+", help="these instead")
    parser.add_argument("--cases", nargs="+", metavar="KERNEL:LENGTH:TYPE", help="these instead")
    parser.add_argument("--warm", type=int, nargs=2, metavar=("I", "OF"), help="only compile peers of these cases")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=("softmax", "rmsnorm"))
    parser.add_argument("--dtypes", nargs="+", choices=SIZES, default=tuple(SIZES))
    parser.add_argument("--explore", type=int, default=1, metavar="N", help="forms of ours (default: what is taken)")
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end (default %(default)s)")
    parser.add_argument("--jobs", type=int, help="compiling processes")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    add_options(parser)
    args = parser.parse_args(argv)
    if args.report:
        report(read(folder_of(args.out) / "rows_random.json")["rows"])
        return 0
    gpu = gpu_of("random_rows")
    if not gpu:
        return 2
    import torch

    from tmapipe.gpu.launch import CudaClock

    started = time.monotonic()
    cases = draw(args.draw, args.count, args.kernels)
    if args.lengths:
        cases = [Case(kernel, n, dtype) for n in args.lengths for dtype in args.dtypes for kernel in args.kernels]
    cases = [case for case in cases if case.kernel in args.kernels and case.dtype in args.dtypes]
    if args.cases:
        cases = [Case(kernel, int(n), dtype) for kernel, n, dtype in (text.split(":") for text in args.cases)]
    results = Results("rows_random", gpu, {**settings(args), "draw": args.draw})
    if args.append:
        results.resume(args.out)
    known = {(row["problem"], row["dtype"]) for row in results.rows}
    cases = [case for case in cases if (case.name, case.dtype) not in known]
    if args.warm:
        warm(cases[args.warm[0] :: args.warm[1]])
        return 0
    jobs_of = args.jobs or os.cpu_count() or 1
    own = [sys.executable, "-m", "benchmarks.random_rows", *(argv or sys.argv[1:])]
    others = [] if args.alone else [subprocess.Popen([*own, "--warm", str(i), str(jobs_of)]) for i in range(jobs_of)]
    wanted = [(case, form) for case in cases for form in forms_of(case, args.explore)]
    jobs = [functools.partial(job_of, case, form) for case, form in wanted]
    with tempfile.TemporaryDirectory(prefix="tmapipe-rows-") as name:
        errors = compile_each(jobs, Path(name), args.jobs)
        for other in others:
            other.wait()
        print(f"{len(jobs)} kernels compiled in {time.monotonic() - started:.0f} s", flush=True)
        clock = CudaClock(args.flush)
        for case in cases:
            if time.monotonic() - started > args.seconds:
                break
            torch.manual_seed(args.seed)
            ours = {}
            for index, (of, form) in enumerate(wanted):
                if of == case and errors[index]:
                    print(f"  {case.name} {text_of(form)}: {errors[index][:200]}")
                elif of == case:
                    ours[text_of(form)] = ready(jobs[index], Path(name), index)
            measure(case, ours, clock, results, args)
            results.write(args.out)
            print(f"{case.name} {case.dtype}: {time.monotonic() - started:.0f} s", flush=True)
    report(results.rows)
    print(f"written: {results.write(args.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
