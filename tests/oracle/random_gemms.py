"""Random GEMMs: shapes, types, layouts and options of every shipped schedule, and what is asked of their results.

The same cases run on the machine model (small) and on the GPU. What the library refuses is drawn again.
"""

import functools
import random

import attrs
import torch

import tmapipe as tp
from tmapipe.errors import InputError

S, E, F = tp.schedules, tp.epilogue, tp.math

TYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
TOLERANCE = {"bf16": 4e-3, "fp16": 6e-4, "fp32": 2e-5}  # rounding of the output type
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
HINTS = (None, "evict_first", "evict_last")
OUTSIDE = ("zeros", "anything")
ACTIVATIONS = {
    "relu": (F.relu, torch.relu),
    "gelu": (F.gelu, functools.partial(torch.nn.functional.gelu, approximate="tanh")),
    "silu": (F.silu, torch.nn.functional.silu),
}
APPROXIMATE = 1e-3  # tanh.approx: 2^-11; promoted sums: of 128 products of 8 bits at a time
EIGHT_BITS = 3e-3  # the tensor core keeps some 14 bits of a sum of such products
PAD = 16  # elements of an output's surroundings on each side, which keeps its rows aligned


@attrs.frozen
class Case:
    """One problem. build: makes the schedule; formula: the result in float64 from the fp64 sums and the operands by name;
    operands: name -> "matrix", "row", "column" or "scalar"; exact: whether two runs agree bit by bit; slack: relative error
    that is allowed beside the rounding of the output."""

    name: str
    build: object = attrs.field(repr=False)
    formula: object = attrs.field(repr=False)
    m: int
    n: int
    k: int
    types: tuple  # of a, b and the output
    batch: int = 1
    operands: dict = attrs.field(factory=dict)
    products: int = 1  # of a with so many matrices b
    outputs: int = 1
    exact: bool = True
    slack: float = 0.0
    majors: tuple = ("k", "k")  # along which a and b are contiguous
    strided: bool = False  # rows of a and b lie further apart than they are long
    special: bool = False  # a NaN in a, and an infinity in b if its type has one


def draw(seed: int, most: int = 1100, deepest: int = 2000) -> Case:
    """The case of this number, with m and n up to *most* and k up to *deepest*."""
    rng = random.Random(seed)
    while True:
        try:
            case = _draw(rng, most, deepest, seed)
            made = case.build()
            declared = dict.fromkeys(made.declared.loads, case.types[0])
            made.plan({**declared, "b": case.types[1]} if "b" in declared else declared)
        except InputError:
            continue
        return case


def _draw(rng: random.Random, most: int, deepest: int, seed: int) -> Case:
    kind = rng.choice(["Gemm"] * 5 + ["PingPong"] * 3 + ["SplitK", "SplitK", "StreamK", "GatedGemm"])
    bits8 = kind in ("Gemm", "PingPong", "GatedGemm") and rng.random() < 0.25
    if bits8:
        a, b = (rng.choice(["fp8_e4m3", "fp8_e5m2"]) for _ in range(2))
        b = a if kind == "GatedGemm" else b
    else:
        a = b = rng.choice(["bf16", "bf16", "fp16"])
    depth = rng.choice([64, 128, 128]) if bits8 else rng.choice([32, 64, 64, 64, 128])
    tile = (rng.choice([64, 128, 128, 192, 256]), rng.choice([64, 128, 192, 256, 8 * rng.randint(2, 32)]), depth)
    cluster, stages = rng.choice(CLUSTERS), rng.choice([None, None, 2, 3])
    raster = rng.choice([tp.tiles.Grouped(rng.choice([1, 3, 8])), tp.tiles.Snake(4), tp.tiles.Hilbert(4)])
    queued = tp.tiles.DynamicTiles(raster, 2) if rng.random() < 0.5 else tp.tiles.GpcTiles(raster)
    order = tp.tiles.PersistentTiles(raster) if rng.random() < 0.7 else queued
    stored, common = {"stages": rng.choice([1, 2])}, {"tiles": order}
    out = rng.choice(["bf16", "fp16", "fp32"]) if bits8 else rng.choice([a, a, "fp32"])
    case = {
        "m": rng.randint(1, most),
        "n": 8 * rng.randint(1, most // 8),
        "k": (16 if bits8 else 8) * rng.randint(1, deepest // 16),
        "types": (a, b, out),
        "strided": rng.random() < 0.3,
        "special": seed % 10 == 0,
    }
    loads = [{"l2_hint": rng.choice(HINTS)} for _ in "ab"]
    if not bits8 and rng.random() < 0.4:
        case["majors"] = (rng.choice("mk"), rng.choice("nk"))
        loads = [load | {"major": major} for load, major in zip(loads, case["majors"], strict=True)]
    if kind in ("SplitK", "StreamK"):
        count, reduce = rng.choice([1, 2, 3, 7, 16]), rng.choice([None, None, "add"])
        if reduce:
            case["types"] = (a, b, "fp32")
        if kind == "StreamK":
            common = {"raster": raster}
        common |= _operands_and_epilogue(loads, stored)
        build = functools.partial(getattr(S, kind), count, tile, cluster, stages, reduce=reduce, **common)
        return Case(f"{kind} {count} {reduce}", build, lambda acc: acc, exact=reduce is None, **case)
    stored["dtype"] = out
    case["batch"] = rng.choice([1, 1, 1, 2, 3])
    if kind == "GatedGemm":
        common |= _operands_and_epilogue(
            [{} if "major" not in load else {"major": load["major"]} for load in loads], stored
        )
        build = functools.partial(S.GatedGemm, tile, cluster, stages, **common)
        slack = EIGHT_BITS if bits8 else APPROXIMATE
        return Case(kind, build, lambda x, y: ACTIVATIONS["silu"][1](x) * y, products=2, slack=slack, **case)
    if bits8:
        promote = rng.random() < 0.5
        common |= {"promote": promote} if kind == "PingPong" else {"mainloop": tp.mainloop.Cooperative(promote)}
        case["slack"] = APPROXIMATE if promote else EIGHT_BITS
    fused = _draw_epilogue(rng, case["batch"]) if not case["special"] else {"formula": lambda acc: acc}
    stored |= fused.pop("options", {})
    if "function" in stored:
        case["slack"] = max(APPROXIMATE, case.get("slack", 0.0))
    if kind == "PingPong" and "operands" not in stored:
        common["in_turn"] = seed % 3 > 0
    if seed % 4 == 1 and "operands" not in stored and "outputs" not in stored:
        tile = (tile[1], tile[0], depth)
        mainloop = common.get("mainloop", tp.mainloop.Cooperative())
        common |= {"along": "n"} if kind == "PingPong" else {"mainloop": attrs.evolve(mainloop, along="n")}
    if "majors" not in case:
        loads = [load | {"outside": OUTSIDE[which % 2]} for load, which in zip(loads, (seed, seed // 2), strict=True)]
    common |= _operands_and_epilogue(loads, stored)
    build = functools.partial(getattr(S, kind), tile, cluster, stages, **common)
    return Case(kind, build, **fused, **case)


def _operands_and_epilogue(loads: list, stored: dict) -> dict:
    """What a GEMM is given of a, b and the epilogue."""
    a, b = (tp.Operand(**load) for load in loads)
    return {"a": a, "b": b, "epilogue": E.Epilogue(**stored)}


def _draw_epilogue(rng: random.Random, batch: int) -> dict:
    """Nothing; an activation; operands, with or without an activation; two outputs; or sums of rows and columns."""
    which = rng.choice(["none", "none", "activation", "operands", "operands", "outputs", "reductions"])
    if which == "none":
        return {"formula": lambda acc: acc}
    ours, theirs = ACTIVATIONS[rng.choice(sorted(ACTIVATIONS))]
    if which == "activation":
        return {"formula": lambda acc: theirs(acc * 0.125), "options": {"function": lambda acc: ours(acc * 0.125)}}
    if which == "outputs":
        options = {"function": lambda acc: {"d": ours(acc), "sums": acc}, "outputs": {"sums": E.Output("fp32")}}
        return {"formula": lambda acc: (theirs(acc), acc), "options": options, "outputs": 2}
    if which == "reductions":
        options = {
            "function": lambda acc: {"d": acc, "rows": acc * acc, "columns": acc * acc + 1.0},
            "outputs": {"rows": E.RowSum(), "columns": E.ColumnSum()},
        }
        return {
            "formula": lambda acc: (acc, (acc * acc).sum(-1), (acc * acc + 1.0).sum(-2)),
            "options": options,
            "outputs": 3,
        }
    kinds = {
        "c": (E.Matrix, "matrix"),
        "bias": (E.PerColumn, "column"),
        "scale": (E.PerRow, "row"),
        "alpha": (E.Scalar, "scalar"),
    }
    names = rng.sample(sorted(kinds), rng.randint(1, 4)) if batch == 1 else ["c"]

    def combine(acc, c=0.0, bias=0.0, scale=1.0, alpha=1.0):
        return alpha * scale * acc + c + bias

    options = {
        "function": _with_parameters(combine, names),
        "operands": {name: kinds[name][0]() for name in names},
        "ahead": rng.choice([1, 2, 3]),
    }
    return {"formula": combine, "options": options, "operands": {name: kinds[name][1] for name in names}}


def _with_parameters(function, names):
    """*function* of the accumulator and just these of its parameters."""
    text = f"lambda acc, {', '.join(names)}: function(acc, {', '.join(f'{name}={name}' for name in names)})"
    return eval(text, {"function": function})


def run(case: Case, device: str) -> None:
    """Runs the case twice on *device* and checks everything that is asked of it."""
    generator = torch.Generator().manual_seed(hash((case.m, case.n, case.k)) & 0xFFFF)
    a, *bs = _inputs(case, device, generator)
    operands = {name: _operand(case, kind, device, generator) for name, kind in case.operands.items()}
    schedule = case.build()
    named = {name: _narrow(value, TYPES[case.types[2]]) for name, value in operands.items()}
    surrounded, out = _output(case, device)
    if case.outputs == 1:
        found = [schedule(a, *bs, **named, out=out)]
        assert found[0] is out
    else:
        found = list(schedule(a, *bs, **named))

    sums = [a.double() @ b.double().transpose(-1, -2) for b in bs]
    wanted = case.formula(*sums, **{name: _spread(case, name, value) for name, value in named.items()})
    for d, reference in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        _compare(case, d, reference)

    assert (surrounded == SENTINEL).sum() == surrounded.numel() - out.numel() + (out == SENTINEL).sum()
    if case.exact:
        again = (
            [schedule(a, *bs, **named, out=_output(case, device)[1])]
            if case.outputs == 1
            else schedule(a, *bs, **named)
        )
        for d, other in zip(found, again, strict=True):
            assert torch.equal(_bits(d), _bits(other)), "another run, other bits"


SENTINEL = -77.0  # fp16 and bf16 have it exactly


def _inputs(case: Case, device: str, generator: torch.Generator) -> list:
    lead = (case.batch,) if case.batch > 1 else ()
    made = []
    for i, rows in enumerate([case.m] + [case.n] * case.products):
        dtype = TYPES[case.types[min(i, 1)]]
        x = torch.randn(*lead, rows, case.k, generator=generator)
        if case.special and i == 0:
            x[..., rows // 2, case.k // 3] = float("nan")
        if case.special and i == 1 and torch.isinf(torch.tensor(float("inf")).to(dtype).float()):
            x[..., rows // 3, case.k // 2] = float("inf")
        transposed = case.majors[min(i, 1)] != "k"
        x = x.to(dtype).swapaxes(-1, -2) if transposed else x.to(dtype)
        length = -(-x.shape[-1] // 16) * 16 + (16 if case.strided else 0)
        stored = torch.zeros(*x.shape[:-1], length, dtype=dtype)
        stored[..., : x.shape[-1]] = x
        x = stored.to(device)[..., : x.shape[-1]]
        made.append(x.swapaxes(-1, -2) if transposed else x)
    return made


def _operand(case: Case, kind: str, device: str, generator: torch.Generator) -> torch.Tensor:
    lead = (case.batch,) if case.batch > 1 else ()
    shape = {"matrix": (*lead, case.m, case.n), "row": (case.m,), "column": (case.n,), "scalar": (1,)}[kind]
    return torch.randn(*shape, generator=generator).to(device)


def _narrow(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of the output's type where rows of that many bytes can be loaded, which a vector of any length cannot."""
    return value.to(dtype) if value.ndim > 1 or value.numel() * dtype.itemsize % 16 == 0 else value


def _spread(case: Case, name: str, value: torch.Tensor) -> torch.Tensor:
    value = value.double()
    return value[:, None] if case.operands[name] == "row" else value


def _output(case: Case, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(a larger tensor, the output within it), all of it set to `SENTINEL`."""
    lead = (case.batch,) if case.batch > 1 else ()
    whole = torch.full((*lead, case.m + 3, case.n + 2 * PAD), SENTINEL, device=device, dtype=TYPES[case.types[2]])
    return whole, whole[..., 1 : 1 + case.m, PAD : PAD + case.n]


def _compare(case: Case, d: torch.Tensor, reference: torch.Tensor) -> None:
    found = d.double()
    plain = reference.isfinite()
    assert torch.equal(found.isnan(), reference.isnan()), "NaN where there is none, or the other way round"
    assert torch.equal(found.isinf(), reference.isinf())
    assert torch.equal(found[reference.isinf()], reference[reference.isinf()]), "infinities of the wrong sign"
    error = (found - reference)[plain].norm() / max(reference[plain].norm().item(), 1e-30)
    rounding = next(TOLERANCE[name] for name, dtype in TYPES.items() if dtype == d.dtype)
    assert error < max(rounding, case.slack), f"relative error {error:.1e}"


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view({2: torch.int16, 4: torch.int32}[x.element_size()])
