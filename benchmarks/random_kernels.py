"""Drawn problems for the kernels bound by memory, each called as a user calls it, without a number; beside torch,
torch.compile and QuACK. Suites `kernels_random`, `copies_random`, `products_random`, and that of `benchmarks.random_rows`.

python -m benchmarks.random_kernels copies products --draw 0x1234abcd     two suites, compiled side by side first
python -m benchmarks.random_kernels kernels --draw 0x1234abcd --seconds 240 --append      does what is left in that time
python -m benchmarks.random_kernels kernels --draw 0x1234abcd --rehearse      small ones, on the CPU model, beside torch

kernels    layernorm, log-softmax, cross-entropy, gradients of four, cumsum, rotary, transposes, a gated unit: 12 lengths
           each, log-uniform from 64 to 262,144, every second one a multiple of 8, bf16 and fp32, 128 MiB
copies     40 tensors of ranks 1 to 5, slices of larger ones, of odd lengths, of 1 MiB to 2 GiB, in three types
products   20 batches of products of 16 to 128 a side, in multiples of 8 (what TMA takes), 64 MiB
rows       softmax and rmsnorm of 40 lengths, 256 MiB
users      those of `benchmarks.user_kernels`, which are not drawn

The seed is the first eight hex digits of the measured commit.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import random_rows, row_kernels, user_kernels
from benchmarks.cases import Case
from benchmarks.random_rows import KERNELS as ROWS
from benchmarks.random_rows import LEAST, MOST, SIZES, Peers, quack_of, targets, weight_of
from benchmarks.results import OURS
from benchmarks.row_kernels import Runs, device_of
from tmapipe.schedules import Copy, CrossEntropyBackward, Cumsum, LayerNormBackward, RmsNormBackward, SoftmaxBackward

BYTES = 128 << 20
SMALL = 1 << 14  # bytes, on the CPU model
LENGTHS, COPIES, PRODUCTS = 12, 40, 20
WHOLE = 16 << 30  # bytes of a tensor of which a slice is copied, at most
LARGEST = 65536  # elements of rows of gradients of norms, whose fragments all lie in registers

# ---- gradients -------------------------------------------------------------------------------------------------------


def _gradient(x: Any) -> tuple[Any, ...]:
    import torch

    return (torch.randn_like(x),)


def _weight_and_gradient(x: Any) -> tuple[Any, ...]:
    return *weight_of(x), *_gradient(x)


def _of_losses(x: Any) -> tuple[Any, ...]:
    import torch

    return *targets(x), torch.logsumexp(x.float(), 1), torch.rand(x.shape[0], device=x.device)


def _softmax_backward(y: Any, dy: Any) -> Any:
    return (y * (dy - (y * dy).sum(1, keepdim=True))).to(y.dtype)


def _norm_backward(centered: bool, x: Any, weight: Any, dy: Any) -> Any:
    import torch

    eps = 1e-5 if centered else 1e-6
    wide, g = x.float(), dy.float() * weight.float()
    wide = wide - wide.mean(1, keepdim=True) if centered else wide
    rstd = torch.rsqrt(wide.square().mean(1, keepdim=True) + eps)
    h = wide * rstd
    dx = rstd * (g - h * (g * h).mean(1, keepdim=True) - (g.mean(1, keepdim=True) if centered else 0))
    return dx.to(x.dtype), (dy.float() * h).sum(0)


def _losses_backward(x: Any, target: Any, lse: Any, dloss: Any) -> Any:
    import torch

    hit = torch.arange(x.shape[1], device=x.device) == target[:, None].long()
    return ((torch.exp(x.float() - lse[:, None]) - hit.float()) * dloss[:, None]).to(x.dtype)


def _cumsum(x: Any) -> Any:
    return x.cumsum(1)


KERNELS: dict[str, Peers] = {
    **{name: ROWS[name] for name in ("layernorm", "log_softmax", "cross_entropy")},
    "softmax_backward": Peers(
        SoftmaxBackward, _gradient, _softmax_backward,
        lambda y, dy: quack_of("softmax", "softmax_bwd")(dy, y),
    ),
    "rmsnorm_backward": Peers(
        RmsNormBackward, _weight_and_gradient, functools.partial(_norm_backward, False),
        lambda x, weight, dy: quack_of("rmsnorm", "rmsnorm_bwd")(x, weight, dy, rstd_of(x)),
    ),
    "layernorm_backward": Peers(
        LayerNormBackward, _weight_and_gradient, functools.partial(_norm_backward, True), None,
    ),
    "cross_entropy_backward": Peers(
        CrossEntropyBackward, _of_losses, _losses_backward,
        lambda x, target, lse, dloss: quack_of("cross_entropy", "cross_entropy_bwd")(x, target, dloss, lse),
    ),
    "cumsum": Peers(Cumsum, lambda x: (), _cumsum, None),
}  # fmt: skip


@functools.lru_cache(maxsize=1)
def rstd_of(x: Any) -> Any:
    """What the forward pass of RMSNorm keeps."""
    return (x.float().square().mean(1) + 1e-6).rsqrt()


def _first(run: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    found = run(*inputs, **named)
    return found[0] if isinstance(found, tuple) else found


def rows(name: str, length: int, dtype: str, bytes_: int) -> row_kernels.Made:
    """A kernel of rows of this length."""
    import torch

    beside, size = KERNELS[name], SIZES[dtype]
    x = row_kernels.some(max(1, bytes_ // size // length), length, dtype="bfloat16" if size == 2 else "float32")
    inputs = x, *beside.inputs(x)
    out = {"out": torch.empty_like(x)} if beside.stores else {}
    runs: Runs = {(OURS, "called"): functools.partial(_first, beside.ours(), *inputs, **out)}
    runs["torch", "eager"] = functools.partial(_first, beside.torch, *inputs)
    runs["torch", "compile"] = functools.partial(_first, row_kernels.compiled_later(beside.torch), *inputs)
    if beside.quack is not None:
        runs["quack", "called"] = functools.partial(_first, beside.quack, *inputs)
    return runs, _first(beside.torch, *(each.float() if each.is_floating_point() else each for each in inputs))


# ---- copies ----------------------------------------------------------------------------------------------------------


def copies(
    shape: Sequence[int], begin: Sequence[int], around: Sequence[int], dtype: str, bytes_: int
) -> row_kernels.Made:
    """A slice of a larger tensor, copied to a dense one."""
    import torch

    shape = shape if bytes_ >= BYTES else [min(n, 5 if i + 1 < len(shape) else 200) for i, n in enumerate(shape)]
    kind, device = getattr(torch, dtype), device_of()
    whole = torch.empty([n + more for n, more in zip(shape, around, strict=True)], device=device, dtype=kind)
    whole.random_(-100, 100)
    x = whole[tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))]
    outs = [torch.empty(shape, device=device, dtype=kind) for _ in range(3)]
    compiled = row_kernels.compiled_later(lambda x, y: y.copy_(x))
    kernel = Copy()
    runs: Runs = {
        (OURS, "called"): lambda: kernel(x, out=outs[0]),
        ("torch", "copy_"): lambda: outs[1].copy_(x),
        ("triton", "torch.compile"): lambda: (compiled(x, outs[2]), outs[2])[1],
    }

    def check(run: Callable[[], Any]) -> float:
        found = run()
        same = torch.equal(found, x)
        found.zero_()
        return 0.0 if same else math.inf

    return runs, check


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def lengths(rng: random.Random, most: int = MOST) -> list[tuple[int, str]]:
    """Log-uniform ones, every second one a multiple of 8 and the others not, with a type."""
    found = []
    for i in range(LENGTHS):
        length = round(math.exp(rng.uniform(math.log(LEAST), math.log(most))))
        length = max(LEAST, length // 8 * 8) if i % 2 == 0 else length + (length % 8 == 0) * rng.randint(1, 7)
        found.append((min(length, most - i % 2), ("bf16", "fp32")[i // 2 % 2]))
    return found


def kernels_drawn(seed: int, bytes_: int = BYTES) -> list[Case]:
    """Cases of the suite `kernels_random`, those of all kernels in turn."""
    found: list[list[Case]] = []
    for name, beside in KERNELS.items():
        rng, cases = random.Random(f"{seed} {name}"), []
        for length, dtype in lengths(rng, LARGEST if name.endswith("norm_backward") else MOST):
            several = 1 + beside.stores + name.endswith("_backward")
            work = several * SIZES[dtype] * float(length) * max(1, bytes_ // SIZES[dtype] // length)
            make = functools.partial(rows, name, length, dtype, bytes_)
            cases.append(_case(f"{name} {length}", dtype, work, make))
        found.append(cases)
    for name in ("rotary", "transpose", "elementwise"):
        rng, cases = random.Random(f"{seed} {name}"), []
        for i, (length, dtype) in enumerate(lengths(rng, 32768)):
            kind, elements = "bfloat16" if dtype == "bf16" else "float32", bytes_ // SIZES[dtype]
            if name == "rotary":
                columns, heads = rng.randint(16, 128) * 2, rng.choice((1, 4, 8, 24, 32))
                shape: tuple[int, ...] = (max(1, elements // (length * heads * columns)), length, heads, columns)
                shape = shape if bytes_ >= BYTES else (1, min(length, 8), min(heads, 4), columns)
                make = functools.partial(row_kernels.rotary, shape, i % 2 == 1, kind)
            elif name == "elementwise":
                shape = (max(1, elements // length), length)
                make = functools.partial(row_kernels.elementwise, *shape, kind)
            else:
                shape = (max(1, elements // length), length)
                if i % 3 == 2:
                    shape = (8, max(1, shape[0] // 8), length)
                make = functools.partial(row_kernels.transpose, shape, (*range(len(shape) - 2), -1, -2), kind)
            title = f"{name} {' x '.join(map(str, shape))}{' in pairs' * (name == 'rotary' and i % 2)}"
            several = 3 if name == "elementwise" else 2
            cases.append(_case(title, dtype, float(several * SIZES[dtype] * math.prod(shape)), make))
        found.append(cases)
    return [case for several in zip(*found, strict=True) for case in several]


def copies_drawn(seed: int, bytes_: int = BYTES) -> list[Case]:
    """Cases of the suite `copies_random`."""
    rng, found = random.Random(f"{seed} copies"), []
    for i in range(COPIES):
        dtype = ("bfloat16", "float32", "int8")[i % 3]
        size, rank = {"bfloat16": 2, "float32": 4, "int8": 1}[dtype], i % 5 + 1
        elements = math.exp(rng.uniform(math.log(1 << 20), math.log(2 << 30))) / size
        cuts = sorted(rng.random() for _ in range(rank - 1))
        shares = [b - a for a, b in zip([0.0, *cuts], [*cuts, 1.0], strict=True)]
        shape = [max(1, round(elements**share)) for share in shares]
        shape[-1] = max(shape[-1], rng.randint(17, 99))
        longest = max(range(max(1, rank - 1)), key=lambda i: shape[i])
        for i in (0, longest):
            shape[i] = max(1, round(elements * shape[i] / math.prod(shape)))
        around = [rng.choice((0, 0, rng.randint(1, 40))) for _ in shape]
        for j in range(rank):  # a GPU has room for the whole and three results
            many = math.prod(n + more for n, more in zip(shape, around, strict=True))
            around[j] = around[j] if many * size <= WHOLE else 0
        begin = [rng.randint(0, more) for more in around]
        make = functools.partial(copies, shape, begin, around, dtype, bytes_)
        where = f" of {' x '.join(str(n + more) for n, more in zip(shape, around, strict=True))}" if any(around) else ""
        found.append(_case(f"copy {' x '.join(map(str, shape))}{where}", dtype, 2.0 * size * math.prod(shape), make))
    return found


def products_drawn(seed: int, bytes_: int = BYTES, explore: int = 0) -> list[Case]:
    """Cases of the suite `products_random`; to *explore*, so many likely candidates of each are variants too."""
    rng, found = random.Random(f"{seed} products"), []
    for _ in range(PRODUCTS):
        m, n, k = (8 * rng.randint(2, 16) for _ in range(3))
        each = 2 * (m * k + n * k + m * n)
        batch = max(2, min(bytes_, BYTES // 2) // each)
        make = functools.partial(row_kernels.products, batch, m, n, k, explore)
        found.append(_case(f"product {batch} x {m} x {n} x {k}", "bf16", float(each * batch), make))
    return found


def rows_drawn(seed: int, bytes_: int = 2 * BYTES) -> list[Case]:
    """Cases of the suite `rows_random`."""
    return [random_rows.measured(case, bytes_=bytes_) for case in random_rows.draw(seed)]


def _case(name: str, dtype: str, work: float, make: Callable[[], Any]) -> Case:
    limit = row_kernels.SUMS if name.startswith(("cumsum", "layernorm_b", "rmsnorm_b")) else row_kernels.LIMIT
    return Case(name, dtype, work, lambda device: make(), limit)


SUITES: dict[str, Callable[..., list[Case]]] = {
    "kernels": kernels_drawn,
    "copies": copies_drawn,
    "products": products_drawn,
    "rows": rows_drawn,
    "users": lambda seed, bytes_=BYTES: user_kernels.cases(small=bytes_ < BYTES),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--draw", type=lambda text: int(text, 0), default=0, help="seed of the problems")
    parser.add_argument("--rehearse", action="store_true", help="small ones, also without a GPU: ours beside torch")
    parser.add_argument("--explore", type=int, default=0, metavar="N", help="of products, N likely candidates too")
    row_kernels.add_time(parser)
    args = parser.parse_args(argv)
    names = args.suites or ["kernels"]
    if unknown := set(names) - set(SUITES):
        parser.error(f"no suite is called {', '.join(unknown)}: {', '.join(SUITES)}")
    if args.rehearse:
        cases = [case for name in names for case in SUITES[name](args.draw, SMALL)]
        return int(row_kernels.rehearse(case for case in cases if case.name.startswith(tuple(args.problems))) > 0)
    command = ["benchmarks.random_kernels", *names, "--draw", hex(args.draw), "--explore", str(args.explore)]
    drawn = {
        "user_kernels" if name == "users" else f"{name}_random": SUITES[name](
            args.draw, **{"explore": args.explore} if name == "products" else {}
        )
        for name in names
    }
    return row_kernels.run_suites(drawn, args, command, draw=args.draw)


if __name__ == "__main__":
    sys.exit(main())
