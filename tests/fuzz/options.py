"""Second kind: ready-made schedules with options drawn at random, some of which do not go together, or are junk."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import tmapipe as tp
from tests.fuzz.junk import junk, said
from tests.fuzz.outcomes import Call
from tests.fuzz.schedules import TYPES, Arrays, Expected, Schedule, product
from tests.fuzz.tensors import compare

__all__ = ["call", "parameters_of"]

S, E = tp.schedules, tp.epilogue
EPILOGUES: tuple[tuple[Any, Callable[[Any, Arrays], Any]], ...] = (
    (None, lambda sums, given: sums),
    (lambda acc: acc * 2, lambda sums, given: sums * 2),
    (E.Epilogue(dtype="fp32"), lambda sums, given: sums),
    (E.Epilogue(stages=1), lambda sums, given: sums),
    (E.Epilogue(dtype="fp8_e5m2", stages=3), lambda sums, given: sums),
    (E.Epilogue(lambda acc, bias: acc + bias, operands={"bias": E.PerColumn()}), lambda sums, given: sums + given["bias"]),
    (E.Epilogue(lambda acc, c: acc - c, operands={"c": E.Matrix()}, ahead=1), lambda sums, given: sums - given["c"]),
    (lambda acc, other: acc, lambda sums, given: None),
    (E.Epilogue(lambda acc: acc, operands={"bias": E.PerColumn()}), lambda sums, given: None),
    (E.Epilogue(outputs={"e": E.Output()}), lambda sums, given: None),
    (E.Epilogue(stages=0), lambda sums, given: None),
    (E.Epilogue(dtype="int8"), lambda sums, given: None),
)  # fmt: skip
GATED = (
    (lambda gate, up: gate * 2 - up, lambda gate, up: gate * 2 - up),
    (E.Epilogue(lambda gate, up: gate + up, dtype="fp32", stages=1), lambda gate, up: gate + up),
    (lambda gate: gate, lambda gate, up: None),
    (None, lambda gate, up: gate / (1 + np.exp(-gate)) * up),
)
OPERANDS = (
    tp.Operand(), tp.Operand("m"), tp.Operand("n"), tp.Operand(l2_hint="evict_first"), tp.Operand(outside="anything"),
)  # fmt: skip
ORDERS = (
    tp.tiles.PersistentTiles(), tp.tiles.PersistentTiles(tp.tiles.Snake(2)), tp.tiles.PersistentTiles(tp.tiles.Hilbert(4)),
    tp.tiles.PersistentTiles(tp.tiles.Columns(2)), tp.tiles.DynamicTiles(), tp.tiles.DynamicTiles(stages=1),
    tp.tiles.GpcTiles(),
    tp.tiles.GridTiles(), tp.tiles.GridTiles(each=3), tp.tiles.SplitKTiles(2), tp.tiles.StreamKTiles(shares=3),
    tp.tiles.GroupedTiles(), tp.tiles.Snake(2),
)  # fmt: skip
POOLS: dict[str, tuple[Any, ...]] = {
    "tile": ((64, 64, 32), (64, 128, 64), (128, 64, 64), (128, 128, 64), (192, 64, 32), (256, 64, 32), (64, 72, 32),
             (64, 200, 16),
             (100, 64, 32), (64, 300, 32), (64, 64, 7), (64, 64), 64, (0, 64, 64), (64, -64, 64), (64.0, 64, 64), "tile"),
    "cluster": ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (17, 1), (1,), 2, None, (0, 1), (1, 1, 1), (1.0, 1), {"m": 2}),
    "stages": (None, 2, 3, 5, 1, 0, -1, 100, "2", 2.0),
    "a": OPERANDS,
    "b": OPERANDS,
    "mainloop": (tp.mainloop.Cooperative(), tp.mainloop.PingPong(), tp.mainloop.PingPong(in_turn=False),
                 tp.mainloop.Cooperative(promote=True), tp.mainloop.Cooperative(along="n"), tp.mainloop.PingPong),
    "tiles": ORDERS,
    "promote": (False, True, "yes"),
    "in_turn": (True, False, None),
    "ctas": (1, 4, 10, 0),
    "along": ("m", "n", "k", None),
    "raster": (tp.tiles.Grouped(8), tp.tiles.Snake(2), tp.tiles.Hilbert(2), tp.tiles.PersistentTiles()),
    "parts": (1, 2, 3, 7, 0, -1, 2.5, "2"),
    "shares": (1, 2, 3, 9, 0, -1, 2.5, "2"),
    "reduce": (None, "add", "max", True),
    "together": (1, 2, 4, 0, 2.5, None),
    "pending": (0, 1, 2, 5, -1, None),
    "dtype": (None, "fp32", "bf16", "int32", "float64", 3),
    "l2_hint": (None, "evict_first", "evict_last", "evict_normal", "evict", 3),
}  # fmt: skip
KINDS = (S.Gemm, S.Gemm, S.Gemm, S.PingPong, S.GatedGemm, S.GroupedGemm, S.SplitK, S.StreamK, S.Copy, S.AddParts)
NEEDED: dict[str, Any] = {"parts": 2, "shares": 3}


def call(seed: int) -> Call:
    """The call of this seed."""
    rng = random.Random(seed)
    kind: Any = rng.choice(KINDS)
    matmul = kind not in (S.Copy, S.AddParts)
    dtype = rng.choice(("fp16", "bf16", "fp16", "tf32", "int8", "fp8_e4m3") if matmul else ("fp16", "fp32", "int32"))
    names = [name for name in parameters_of(kind) if name != "epilogue"]
    chosen: dict[str, Any] = {name: NEEDED[name] for name in names if name in NEEDED}
    chosen["tile"] = (64, 64, 128 if dtype[-4:] == "e4m3" or dtype == "int8" else 32) if matmul else (4, 64)
    if matmul:
        chosen["cluster"] = (1, 1)
    if dtype == "tf32":
        chosen |= {"a": tp.Operand(dtype="tf32"), "b": tp.Operand(dtype="tf32")}
    for name in rng.sample(names, rng.choice((0, 1, 1, 2, 2, 3))):
        chosen[name] = rng.choice(POOLS[name])
    then: Callable[..., Any] | None = lambda sums, given: sums  # noqa: E731
    if matmul and rng.random() < 0.5:
        chosen["epilogue"], then = rng.choice(GATED if kind is S.GatedGemm else EPILOGUES)
    if rng.random() < 0.3:
        name = rng.choice([*parameters_of(kind), "colour"])
        chosen[name] = junk(rng)
        if name == "epilogue":
            then = None
    types = None if rng.random() < 0.9 else rng.choice(({}, {"q": "bf16"}, {"a": "bf17"}, "bf16", {"a": junk(rng)}))
    shown = ", ".join(f"{name}={said(value)}" for name, value in chosen.items())
    text = f"options {seed}: {kind.__name__}({shown}) of {dtype}{'' if types is None else f', plan({said(types)})'}"
    return Call(text, lambda: _run(kind, chosen, dtype, then, types, seed))


def parameters_of(kind: Any) -> list[str]:
    """The names of the constructor's arguments, with those that it hands on to `Gemm`'s."""
    own = inspect.signature(kind).parameters
    if "options" not in own:
        return list(own)
    handed_on = {"a", "b", "epilogue", "mainloop", "tiles"}
    handed_on -= {"mainloop"} if kind is S.PingPong else {"tiles"} if kind is not S.GatedGemm else set()
    return [*(name for name in own if name != "options"), *sorted(handed_on - set(own))]


def _run(kind: Any, chosen: dict[str, Any], dtype: str, then: Callable[..., Any] | None, types: Any, seed: int) -> None:
    schedule = kind(**chosen)
    if types is not None:
        schedule.plan(types)
    which, sizes = _described(kind, schedule, chosen, then), {"m": 80, "n": 96, "k": 144, "l": 2, "s": 3}
    given = which.tensors(sizes, "fp32" if dtype == "tf32" else dtype, np.random.default_rng(seed))
    for name in schedule.transposed:
        given[name] = np.ascontiguousarray(given[name].swapaxes(-1, -2)).swapaxes(-1, -2)
    extra = [name for name in given if name in ("bias", "c")]
    for name in extra:
        given[name] = given[name].astype(TYPES["fp16"] if dtype in ("int8", "fp8_e4m3") else given[name].dtype)
    result = schedule(*(given[name] for name in given if name not in extra), **{name: given[name] for name in extra})
    if then is not None:
        compare(which, given, result)


def _described(kind: Any, schedule: Any, chosen: dict[str, Any], then: Any) -> Schedule:
    """The schedule, and what is expected of it."""
    dims: dict[str, str] = {"a": "m k", "b": "n k"}

    def expected(given: Arrays) -> Expected | None:
        found = product(given["a"], given["b"])
        assert found is not None
        value = then(found[0], {name: array.astype(np.float64) for name, array in given.items()})
        return None if value is None else (value, 2 * found[1] + 9)

    if kind is S.Copy:
        dims, expected = {"x": "m n"}, lambda given: (given["x"].astype(np.float64), np.zeros(given["x"].shape))
    elif kind is S.AddParts:
        dims = {"x": "s m n"}

        def expected(given: Arrays) -> Expected | None:
            x = given["x"].astype(np.float64)
            return x.sum(0), 3 * np.abs(x).sum(0)

    elif kind is S.GatedGemm:
        dims = {"a": "m k", "gate": "n k", "up": "n k"}
        combine = then if "epilogue" in chosen else None

        def expected(given: Arrays) -> Expected | None:
            gate, up = (product(given["a"], given[name]) for name in ("gate", "up"))
            assert gate is not None and up is not None
            silu = gate[0] / (1 + np.exp(-gate[0])) * up[0]
            value = combine(gate[0], up[0]) if combine else silu
            return None if value is None else (value, (2 * gate[1] + up[1]) * (1 + np.abs(up[1])))

    elif kind is S.GroupedGemm or isinstance(chosen.get("tiles"), tp.tiles.GroupedTiles):
        dims = {"a": "m k", "b": "l n k", "offsets": "l"}

        def expected(given: Arrays) -> Expected | None:
            value, size = np.zeros((2, given["a"].shape[0], given["b"].shape[1]))
            start = 0
            for end, weights in zip(given["offsets"].tolist(), given["b"], strict=True):
                part = product(given["a"][start:end], weights)
                assert part is not None
                value[start:end], size[start:end], start = *part, end
            made = then(value, {name: array.astype(np.float64) for name, array in given.items()})
            return None if made is None else (made, 2 * size + 9)

    operands = getattr(schedule, "epilogue", None)
    for name in getattr(operands, "operands", None) or ():
        dims = {**dims, name: "n" if name == "bias" else "m n"}
    return Schedule(kind.__name__, lambda: schedule, dims, (), expected)
