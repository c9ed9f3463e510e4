"""Fourth kind: every public callable with one argument that is junk, attributes that are assigned after a schedule is made,
and tensors that share memory."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import torch

import tmapipe as tp
from tests.fuzz import calls_of_methods, calls_of_rows
from tests.fuzz.declarations import LOAD, NEEDED, RING, USE, A, B
from tests.fuzz.junk import junk, said
from tests.fuzz.outcomes import Call, Unsafe, Wrong
from tmapipe import testing, tuning

__all__ = ["CALLABLES", "call"]

S, E = tp.schedules, tp.epilogue
MATRIX, SMALL = np.ones((64, 64), np.float16), tuning.Problem(64, 64, 64)
IMAGES, FILTERS = np.ones((1, 8, 8, 64), np.float16), np.ones((64, 3, 3, 64), np.float16)
WARPS = tp.Role(warps=4)


def _copy() -> tp.Schedule:
    return S.Copy((4, 64))


def _gemm() -> tp.Schedule:
    return S.Gemm((64, 64, 64), (1, 1), 2)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) @ b.astype(np.float32).T


#: By name: what is called, and arguments with which that is right.
CALLABLES: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    **{kind.__name__: (kind, needed) for kind, needed in NEEDED.items()},
    "Backwards": (tp.tiles.Backwards, {}),
    "BulkStoreStage": (tp.BulkStoreStage, {"dims": "n", "tile": (1024,), "role": USE}),
    "DescriptorStage": (tp.DescriptorStage, {"source": A, "ring": RING}),
    "Im2colBox": (tp.Im2colBox, {"lower": (0, 0), "upper": (0, 0), "channels": 64, "pixels": 8}),
    "Im2colLoadStage": (
        tp.Im2colLoadStage, {"dims": "m k", "tile": (64, 64), "ring": RING, "windows": tp.Windows((3, 3))}
    ),
    "MulticastGroup": (lambda axes, **options: tp.MulticastGroup(axes, **options), {"axes": "m"}),
    "ReductionScratch": (tp.ReductionScratch, {"role": WARPS, "rows": 8}),
    "RegisterTile": (tp.RegisterTile, {"role": USE, "shape": (64, 64)}),
    "StoredStage": (tp.StoredStage, {"store": tp.TmaStoreStage("m n", tile=(64, 64), role=USE), "ring": RING}),
    "TensorMap": (tp.TensorMap, {"tensor": MATRIX, "box": (64, 64)}),
    "Windows": (tp.Windows, {"size": (3, 3)}),
    "ClusterSum": (tp.ClusterSum, {"role": USE, "source": tp.Wgmma(A, B), "axis": "n", "ctas": 2}),
    "ClusterSplitK": (S.ClusterSplitK, {"parts": 2}),
    "DequantGemm": (S.DequantGemm, {}),
    "DequantGemv": (S.DequantGemv, {}),
    "SymmetricGemm": (S.SymmetricGemm, {}),
    "OperandSum": (E.OperandSum, {}),
    "Triangle": (tp.tiles.Triangle, {}),
    "Conv": (S.Conv, {"windows": tp.Windows((3, 3))}),
    "FinishParts": (S.FinishParts, {"epilogue": E.Epilogue()}),
    "Candidate": (
        lambda **of: tuning.Candidate(**of).build(SMALL), {"schedule": "Gemm", "tile": (64, 64), "cluster": (1, 1)}
    ),
    "Device": (
        lambda **of: tuning.choose(SMALL, tuning.Device(**of)),
        {"name": "X", "multiprocessors": 4, "clusters": ((1, 4), (2, 2))},
    ),
    "Problem.of": (tuning.Problem.of, {"a": MATRIX, "b": MATRIX}),
    "choose": (tuning.choose, {"problem": SMALL}),
    "choose_conv": (tuning.choose_conv, {"x": IMAGES, "f": FILTERS, "windows": tp.Windows((3, 3))}),
    "choose_dequant": (tuning.choose_dequant, {"shape": (8, 64, 64)}),
    "ranked": (tuning.ranked, {"problem": SMALL, "most": 1}),
    "tune": (tuning.tune, {"problem": SMALL}),
    "assert_safe": (testing.assert_safe, {"schedule": _copy()}),
    **{
        name: (lambda method=name, **given: getattr(_gemm(), method)(**given), needed)
        for name, needed in {
            "plan": {}, "check": {}, "explain": {},
            "simulate": {"a": MATRIX, "b": MATRIX}, "bind": {"a": MATRIX, "b": MATRIX}, "__call__": {"a": MATRIX, "b": MATRIX},
        }.items()
    },
    **{
        f"math.{name}": (getattr(tp.math, name), dict.fromkeys(inspect.signature(getattr(tp.math, name)).parameters, MATRIX))
        for name in ("exp", "log2", "tanh", "gelu", "maximum", "where", "row_sum", "row_sums", "cast", "rsqrt")
    },
} | calls_of_rows.CALLABLES | calls_of_methods.CALLABLES  # fmt: skip
#: Of methods, whose signatures take any: further arguments.
FURTHER = {
    **calls_of_rows.FURTHER, **calls_of_methods.FURTHER,
    "plan": ("dtypes", "arch"), "check": ("dtypes", "arch"), "explain": ("dtypes", "arch"),
    "simulate": ("a", "b", "out", "clusters", "seed", "trace", "d"), "bind": ("a", "b", "out", "d"),
    "__call__": ("a", "b", "out", "d"), "MulticastGroup": ("axes", "whole", "ctas"),
    "Exchange": ("group", "sender", "source", "reduce"),
    "Candidate": ("schedule", "tile", "cluster", "options"),
    "Device": ("name", "multiprocessors", "clusters", "memory"),
}  # fmt: skip
ORDERS = (
    tp.tiles.PersistentTiles(tp.tiles.Snake(2)), tp.tiles.DynamicTiles(), tp.tiles.GridTiles(), tp.tiles.GridTiles(each=2),
    tp.tiles.GridTiles(ctas=4),
    tp.tiles.SplitKTiles(2), tp.tiles.StreamKTiles(shares=2), tp.tiles.GroupedTiles(), tp.tiles.GpcTiles(),
    tp.tiles.Snake(8), None,
)  # fmt: skip
#: A function that makes the schedule, the names of its inputs, and a function that computes the result with NumPy.
KINDS: tuple[tuple[Callable[[], Any], str, Callable[..., np.ndarray]], ...] = (
    (_gemm, "a b", _product), (lambda: S.PingPong((64, 64, 64), (1, 1), 2), "a b", _product),
    (lambda: S.SplitK(2, (64, 64, 64), (1, 1), 2), "a b", _product),
    (lambda: S.StreamK(3, (64, 64, 64), (1, 1), 2), "a b", _product),
    (lambda: S.GatedGemm((64, 64, 64), (1, 1), 2, epilogue=lambda gate, up: gate - up), "a gate up",
     lambda a, gate, up: _product(a, gate) - _product(a, up)),
    (_copy, "x", lambda x: x),
    (lambda: S.AddParts((4, 64)), "x", lambda x: x.sum(0) if x.ndim > 2 else x),
    (lambda: S.Elementwise(lambda x: x * 2), "x", lambda x: x * 2), (S.Reduce, "x", lambda x: x.sum(-1)),
    (lambda: S.Cumsum(), "x", lambda x: x.cumsum(-1)), (S.Transpose, "x", lambda x: x.transpose()),
)  # fmt: skip


#: What the documentation says that a schedule may say of itself, besides what its constructor takes.
ATTRIBUTES = (
    "cluster", "tiles", "arch", "checked", "over", "relations", "transposed", "optional_roles", "watchdog", "epilogue",
    "mainloop",
)  # fmt: skip
#: Whose output may be its input, in the same places.
IN_PLACE = (S.Elementwise, S.Cumsum)
PARTS = (tp.Role, tp.BarrierRing, tp.TmaLoadStage, tp.TmaStoreStage, tp.Wgmma)
_SAME = {
    "checked",
    "operation",
    "function",
    "schedule",
    "ignored",
}  # attributes that say what is computed, or that nothing is checked


def call(seed: int) -> Call:
    """The call of this seed."""
    rng = random.Random(seed)
    return rng.choice((_callable, _callable, _assigned, _aliased))(rng, seed)


def _callable(rng: random.Random, seed: int) -> Call:
    name = rng.choice(list(CALLABLES))
    function, needed = CALLABLES[name]
    known = FURTHER.get(name) or [
        each
        for each, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    given = {**needed, rng.choice([*known, "colour"][: max(1, len(known))]): junk(rng)}
    shown = ", ".join(f"{each}={said(value)}" for each, value in given.items())
    return Call(f"publics {seed}: {name}({shown})", functools.partial(function, **given))


def _as_torch(array: np.ndarray) -> Any:
    return torch.from_numpy(array)


def _given(names: str, rng: random.Random) -> dict[str, np.ndarray]:
    source = np.random.default_rng(rng.getrandbits(32))
    if names == "x":
        return {"x": source.integers(-3, 4, (2, 8, 64) if rng.random() < 0.3 else (8, 64)).astype(np.float32)}
    return {name: source.integers(-3, 4, (72, 64)).astype(np.float16) for name in names.split()}


def _compare(right: np.ndarray, result: Any) -> None:
    if np.asarray(result).shape != right.shape or (np.asarray(result).astype(np.float64) != right).any():
        raise Wrong("another result than NumPy's")


def _assigned(rng: random.Random, seed: int) -> Call:
    """One or two attributes of a schedule that is made, its parts' and roles' too, then a call."""
    make, names, right = rng.choice(KINDS)
    given = _given(names, rng)
    made = make()
    parts = {name: value for name in dir(made) if isinstance(value := getattr(made, name), PARTS)}
    said_of = [name for name in inspect.signature(type(made)).parameters if hasattr(made, name)]
    own = [*(ATTRIBUTES if isinstance(made, tp.Schedule) else ()), *parts, *said_of] or ["colour"]
    chosen: dict[str, Any] = {}
    for name in rng.sample(own, min(len(own), rng.choice((1, 1, 2)))):
        chosen[name] = rng.choice(ORDERS) if name == "tiles" and rng.random() < 0.7 else junk(rng)
        if name in parts and rng.random() < 0.5:
            chosen[name] = rng.choice((None, A, B, RING, LOAD, USE))
        if name in parts and rng.random() < 0.2:  # which Python refuses: parts are frozen
            chosen[f"{name}.{rng.choice([field.name for field in attrs.fields(type(parts[name]))])}"] = chosen.pop(name)
        if name == "epilogue":
            chosen[name] = rng.choice((None, chosen[name], E.Epilogue(), E.Epilogue(dtype="fp32")))

    def run() -> None:
        schedule = make()
        for name, value in chosen.items():
            part, _, last = name.rpartition(".")
            try:
                setattr(getattr(schedule, part) if part else schedule, last, value)
            except AttributeError:
                return  # attrs' own, for a frozen part, or Python's, for a property
        result = schedule(*given.values())
        changed = callable(chosen.get("epilogue")) or not _SAME.isdisjoint(chosen)
        if not changed:
            _compare(right(*given.values()), result)

    shown = ", ".join(f"{name} = {said(value)}" for name, value in chosen.items())
    return Call(f"publics {seed}: {type(made).__name__}, then {shown}", run)


def _aliased(rng: random.Random, seed: int) -> Call:
    """Tensors in one array, which overlap or do not."""
    make, names, right = rng.choice(KINDS)
    given = _given(names, rng)
    memory = np.zeros(60_000, np.float32)
    starts = {name: 16 * rng.randrange(0, 3000) for name in (*given, "out")}
    if rng.random() < 0.4:
        starts["out"] = starts[next(iter(given))]
    if rng.random() < 0.3:  # inputs may share memory
        starts |= dict.fromkeys(given, starts[next(iter(given))])
    torches = rng.random() < 0.3

    def run() -> None:
        schedule = make()
        placed = {}
        for name, value in given.items():
            room = memory.view(value.dtype)[starts[name] * 4 // value.itemsize :][: value.size].reshape(value.shape)
            room[...] = value
            placed[name] = room
        values = {name: array.copy() for name, array in placed.items()}
        expected = right(*values.values())
        size = expected.size
        first = next(iter(placed.values()))
        out = memory.view(first.dtype)[starts["out"] * 4 // first.itemsize :][:size].reshape(expected.shape)
        shares = any(np.shares_memory(out, array) for array in placed.values())
        tensors = [_as_torch(array) for array in placed.values()] if torches else [*placed.values()]
        result = schedule(*tensors, out=_as_torch(out) if torches else out)
        in_place = isinstance(schedule, IN_PLACE) and starts["out"] == starts[next(iter(given))]
        if shares and not in_place:
            raise Wrong("an output that shares memory with an input should have been refused")
        if isinstance(schedule, tp.Schedule) and not schedule.check().ok:
            raise Unsafe("check")
        _compare(expected, result)

    of_torch = ", PyTorch's" if torches else ""
    return Call(f"publics {seed}: {type(make()).__name__} of parts of one array, {starts}{of_torch}", run)
