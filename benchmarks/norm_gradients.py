"""Forms of the gradients of norms beside the peers: the form that is chosen, and likely ones besides. Suite `norm_gradients`.

python -m benchmarks.norm_gradients --seconds 140            the lengths drawn in `benchmarks.random_kernels`, then others
python -m benchmarks.norm_gradients --others 0 --more 3      others drawn with seed 3 alone, as they are called
python -m benchmarks.norm_gradients --rehearse               small ones, on the CPU model, beside torch

All results are compared with those in fp64: gradients of x, of weights and of biases.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import random
import sys
from collections.abc import Callable
from typing import Any

import attrs

from benchmarks import random_kernels, row_kernels
from benchmarks.cases import Case
from benchmarks.random_rows import SIZES
from benchmarks.results import OURS
from benchmarks.row_kernels import Runs
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.schedules import LayerNormBackward, NormBackwardRows, RmsNormBackward
from tmapipe.schedules.normgradients import GradientForm, gradient_forms
from tmapipe.tiles.dynamic import GridTiles

DRAWN = {
    "rmsnorm": "200 bf16, 80 fp32, 1338 fp32, 512 bf16, 11784 fp32, 185 bf16, 656 bf16, 344 fp32, 24091 fp32, 50257 bf16, "
    "813 bf16",
    "layernorm": "86 bf16, 471 bf16, 1883 bf16, 4790 fp32, 54464 bf16, 296 bf16, 816 fp32, 96 fp32, 17742 fp32, 4176 bf16, "
    "5640 fp32",
}
LIMITS = {"dx": 6e-3, "sums": 2e-3}  # relative errors
LINES = 2048  # compared at a time
TYPES = {size: dict.fromkeys(("x", "dy", "weight", "dx"), name) for name, size in SIZES.items()}


def label(form: GradientForm) -> str:
    """A form in words."""
    kind = "packed" if form.packed else "apart" if form.apart > 1 else "plain"
    kind += " in turn" * form.in_turn
    shape = f"{form.rows} x {form.columns}, {form.warps} warps, {form.ctas} CTAs, width {form.width}"
    return f"{kind} {shape}, {form.slots} slots, {form.share} a multiprocessor"


def others(length: int, size: int, sums: int, most: int) -> list[GradientForm]:
    """Forms that differ in kind, in CTAs, or about twofold in warps or in elements of a thread; the first one with other
    rows, with other slots, and with one more CTA on a multiprocessor."""
    if not most:
        return []
    found, kinds = dict[Any, GradientForm](), dict[Any, GradientForm]()
    forms = gradient_forms(length, size, math.gcd(ALIGNMENT, length * size), sums)
    for form in forms:
        kind = form.packed, form.in_turn, form.ctas
        found.setdefault((*kind, (form.warps - 1).bit_length(), (form.values - 1) // 8), form)
        kinds.setdefault(kind, form)
    first, several = forms[0], dict.fromkeys([*[*kinds.values()][:5], *found.values()])
    same = {"slots": first.slots, "share": first.share, "rows": first.rows}
    alike = [form for form in forms if attrs.evolve(form, **same) == first][1:]
    alike = list({(form.rows, form.slots if form.rows == first.rows else 0): form for form in reversed(alike)}.values())
    room = GridTiles(ctas=(first.share or 1) + 1).room("sm_90a") or 0
    more = attrs.evolve(first, share=(first.share or 1) + 1)
    fits = NormBackwardRows(attrs.evolve(first, share=1), centered=sums > 1).plan(TYPES[size]).smem_bytes <= room
    return list(dict.fromkeys([*[*several][1 : most - 2], *alike[::-1][:3], *[more] * fits]))[:most]


def wanted(centered: bool, eps: float, x: Any, weight: Any, dy: Any) -> list[Any]:
    """The gradients in fp64, of x in fp32."""
    import torch

    dx, dweight, dbias = torch.empty_like(x, dtype=torch.float32), 0.0, 0.0
    for i in range(0, x.shape[0], LINES):
        wide, own = x[i : i + LINES].double(), dy[i : i + LINES].double()
        wide = wide - wide.mean(1, keepdim=True) if centered else wide
        rstd, g = (wide.square().mean(1, keepdim=True) + eps).rsqrt(), own * weight.double()
        h = wide * rstd
        less = h * (g * h).mean(1, keepdim=True) + (g.mean(1, keepdim=True) if centered else 0.0)
        dx[i : i + LINES] = rstd * (g - less)
        dweight, dbias = dweight + (own * h).sum(0), dbias + own.sum(0)
    return [dx, dweight, dbias]


def _error(found: Any, right: Any) -> float:
    parts = range(0, found.shape[0], LINES) if found.ndim > 1 else [0]
    sums = [0.0, 0.0]
    for i in parts:
        got, want = (each[i : i + LINES].double() if found.ndim > 1 else each.double() for each in (found, right))
        sums[0] += float((got - want).square().sum())
        sums[1] += float(want.square().sum())
    return math.sqrt(sums[0] / sums[1])


def checker(right: list[Any]) -> Callable[[Callable[[], Any]], float]:
    """What says how far a run's results are from these: the error of dx; infinity if one of ours is too far off."""

    def check(run: Callable[[], Any]) -> float:
        results = run()
        errors = [_error(*each) for each in zip(results, right, strict=False)]
        results[0].fill_(float("nan"))
        bad = any(not error < LIMITS["sums"] for error in errors[1:]) and getattr(run, "ours", False)
        return math.inf if bad else errors[0]

    return check


class Ours:
    """A call of ours, of which all results are looked at. Its first one prints the registers of kernels that are new."""

    ours = True

    def __init__(self, name: str, run: Callable[[], Any]):
        self.name, self.run, self.seen = name, run, False

    def __call__(self) -> Any:
        if self.seen or row_kernels.device_of() == "cpu":
            return self.run()
        from tmapipe.gpu import kernels

        known, self.seen = {*kernels.kept}, True
        found = self.run()
        for each in kernels.kept.keys() - known:
            used = kernels.kept[each].resources
            print(f"  {self.name}: {used.registers} registers, {used.spill_bytes} bytes spilled", flush=True)
        return found


def of_form(form: GradientForm, eps: float, centered: bool, x: Any, weight: Any, dy: Any, out: Any) -> Any:
    """The gradients by a kernel of this form."""
    made = schedule_of(form, eps, centered).run({"x": x, "dy": dy, "dx": out}, {"weight": weight})
    return (LayerNormBackward if centered else RmsNormBackward)(eps).results(out, *made)


@functools.lru_cache(maxsize=256)
def schedule_of(form: GradientForm, eps: float, centered: bool) -> NormBackwardRows:
    return NormBackwardRows(form, eps, centered, form.vector)


def problem(name: str, length: int, dtype: str, most: int, bytes_: int = row_kernels.BYTES) -> row_kernels.Made:
    """A norm's gradient, by the form that is chosen, by *most* others, and by the peers."""
    import torch

    beside, size, centered = random_kernels.KERNELS[f"{name}_backward"], SIZES[dtype], name == "layernorm"
    x = row_kernels.some(max(1, bytes_ // size // length), length, dtype="bfloat16" if size == 2 else "float32")
    weight, dy = beside.inputs(x)
    out, kernel, eps = torch.empty_like(x), beside.ours(), 1e-5 if centered else 1e-6
    title = f"{name} {length} {dtype}"
    runs: Runs = {(OURS, "called"): Ours(f"{title}: called", functools.partial(kernel, x, weight, dy, out=out))}
    for form in others(length, size, 1 + centered, most):
        run = functools.partial(of_form, form, eps, centered, x, weight, dy, out)
        runs[OURS, label(form)] = Ours(f"{title}: {label(form)}", run)
    runs["torch", "compile"] = functools.partial(row_kernels.compiled_later(beside.torch), x, weight, dy)
    if beside.quack is not None:
        quack = beside.quack
        runs["quack", "called"] = lambda: (quack(x, weight, dy),)
    return runs, checker(wanted(centered, eps, x, weight, dy))


def cases(most: int, more: int | None, bytes_: int = row_kernels.BYTES) -> list[Case]:
    """The problems, with *most* other forms each; those drawn with seed *more* if there is one."""
    lengths = {
        name: [(int(length), dtype) for length, dtype in map(str.split, text.split(","))]
        for name, text in DRAWN.items()
    }
    if more is not None:
        lengths = {
            name: random_kernels.lengths(random.Random(f"{more} {name}"), random_kernels.LARGEST) for name in DRAWN
        }
    found = []
    for both in itertools.zip_longest(*([(name, *each) for each in lengths[name]] for name in DRAWN)):
        for name, length, dtype in filter(None, both):
            rows = max(1, bytes_ // SIZES[dtype] // length)
            make = functools.partial(problem, name, length, dtype, most, bytes_)
            title, work = f"{name}_backward {length}", 3.0 * rows * length * SIZES[dtype]
            found.append(Case(title, dtype, work, lambda device, make=make: make(), row_kernels.SUMS))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", type=int, default=8, help="other forms of each (default %(default)s)")
    parser.add_argument("--more", type=int, help="a seed: lengths drawn with it in the place of the others")
    parser.add_argument("--rehearse", action="store_true", help="small ones, also without a GPU: ours beside torch")
    row_kernels.add_time(parser)
    args = parser.parse_args(argv)
    if args.rehearse:
        return int(row_kernels.rehearse(cases(args.others, args.more, random_kernels.SMALL)) > 0)
    command = ["benchmarks.norm_gradients", "--others", str(args.others)]
    command += [] if args.more is None else ["--more", str(args.more)]
    return row_kernels.run_suites({"norm_gradients": cases(args.others, args.more)}, args, command)


if __name__ == "__main__":
    sys.exit(main())
