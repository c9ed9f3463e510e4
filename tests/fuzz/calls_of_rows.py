"""Public callables besides those of `publics.py`: kernels of rows, attention, operators of torch, tuning. What is right is
compared with NumPy."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import tmapipe as tp
import tmapipe.torch as tt
from tests.fuzz.declarations import LOAD, RING
from tests.fuzz.outcomes import Wrong
from tmapipe import tuning
from tmapipe.schedules.rowform import row_form

S = tp.schedules
ROWS = np.random.default_rng(0).standard_normal((4, 96)).astype(np.float32)
WEIGHT, NUMBERS, TARGET = np.ones(96, np.float32), np.ones(4, np.float32), np.arange(4)
EXP = np.exp(ROWS)
COS = np.ones((4, 32), np.float32)


def _of(make: Callable[[], Any], right: Any = None) -> Callable[..., Any]:
    """Calls what *make* makes. right: what it is for the arguments that are right."""

    def run(x: Any, **given: Any) -> Any:
        found = make()(x, **given)
        if right is not None and x is ROWS and not given and not np.allclose(found, right, atol=1e-3):
            raise Wrong("another result than NumPy's")
        return found

    return run


def _softmaxed(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(x) / np.exp(x).sum(1, keepdims=True))


def _reduced(operation: Any) -> Any:
    return S.Reduce(operation)(ROWS)


def _scaled(factor: Any) -> Any:
    return S.Elementwise(lambda x: x * factor)(ROWS)


def _tuned(space: Any, **options: Any) -> Any:
    return tp.autotune(space, **{"progress": False, **options})(lambda rows: S.Copy((rows, 64)))(ROWS)


def _attended(**given: Any) -> Any:
    rows = [np.ones((1, 64, 2, 64), np.float16) for _ in range(3)]
    return S.Attention(**{"d": 64, **given})(*rows)


def _exported(kernels: Any, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tp.export(f"{folder}/kernels.so", kernels, **options)


#: By name: what is called, and arguments with which that is right.
CALLABLES: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    **{name: (getattr(S, name), {}) for name in (
        "Attention", "CrossEntropy", "CrossEntropyBackward", "Cumsum", "LayerNorm", "LayerNormBackward", "LogSoftmax",
        "LogSoftmaxBackward", "Reduce", "RmsNorm", "RmsNormBackward", "Rotary", "RotaryRows", "RotaryTiles", "Softmax",
        "SoftmaxBackward", "Transpose", "TransposeRows", "TransposeTiles", "CopyElements", "CopyPlaces",
        "CopyRuns",
    )},
    "Attention()": (_attended, {}),
    "Transpose()": (_of(S.Transpose, ROWS.T), {"x": ROWS}),
    "Rotary()": (_of(S.Rotary), {"x": np.ones((1, 4, 2, 64), np.float32), "cos": COS[:, None], "sin": COS[:, None]}),
    "Cumsum()": (_of(S.Cumsum, ROWS.cumsum(1)), {"x": ROWS}),
    "Softmax()": (_of(S.Softmax, _softmaxed(ROWS)), {"x": ROWS}),
    "LogSoftmax()": (_of(S.LogSoftmax, np.log(_softmaxed(ROWS))), {"x": ROWS}),
    "Reduce(operation)()": (_reduced, {"operation": "max"}),
    "Reduce()": (_of(S.Reduce, ROWS.sum(1)), {"x": ROWS}),
    "Elementwise(x * factor)()": (_scaled, {"factor": 2}),
    "Elementwise": (S.Elementwise, {"function": lambda x: x}),
    "RmsNorm()": (_of(S.RmsNorm), {"x": ROWS, "weight": WEIGHT}),
    "LayerNorm()": (_of(S.LayerNorm), {"x": ROWS, "weight": WEIGHT}),
    "CrossEntropy()": (_of(S.CrossEntropy), {"x": ROWS, "target": TARGET}),
    "CrossEntropyBackward()": (
        _of(S.CrossEntropyBackward), {"x": ROWS, "target": TARGET, "lse": np.log(EXP.sum(1)), "dloss": NUMBERS}
    ),
    "SoftmaxBackward()": (lambda y, **of: S.SoftmaxBackward()(y, **of), {"y": ROWS, "dy": ROWS}),
    "LogSoftmaxBackward()": (lambda y, **of: S.LogSoftmaxBackward()(y, **of), {"y": ROWS, "dy": ROWS}),
    "RmsNormBackward()": (_of(S.RmsNormBackward), {"x": ROWS, "weight": WEIGHT, "dy": ROWS}),
    "LayerNormBackward()": (_of(S.LayerNormBackward), {"x": ROWS, "weight": WEIGHT, "dy": ROWS}),
    **{name: (lambda kind=name, **of: getattr(S, kind)(**of).plan(), {"form": row_form(96, 4)}) for name in (
        "CrossEntropyBackwardRows", "CrossEntropyRows", "CumsumRows", "LayerNormRows", "LogSoftmaxRows",
        "NormBackwardRows", "ReduceRows", "RmsNormRows", "SoftmaxBackwardRows", "SoftmaxRows",
    )},
    "ElementwiseRows": (S.ElementwiseRows, {"form": row_form(96, 4), "function": lambda x: x}),
    "ElementwiseTiles": (S.ElementwiseTiles, {"function": lambda x: x}),
    "Exchange": (lambda **of: tp.SharedStage(tile=(4, 64), ring=RING, dtype="fp32", group=tp.Exchange(**of)), {
        "group": tp.MulticastGroup("m"), "sender": LOAD
    }),
    "SharedStage(group=)": (tp.SharedStage, {
        "tile": (4, 64), "ring": RING, "dtype": "fp32", "group": tp.Exchange(tp.MulticastGroup("m"), sender=LOAD)
    }),
    "autotune": (_tuned, {"space": {"rows": (4,)}}),
    "export": (_exported, {"kernels": {"copy": (S.SoftmaxRows(row_form(96, 4)), ROWS)}}),
    "import_tuned": (tuning.import_tuned, {"path": "no_such_file.json"}),
    "load": (tp.load, {"path": "no_such_bundle.so"}),
    "candidates": (lambda **of: list(tuning.candidates(**of)), {
        "problem": tuning.Problem(64, 64, 64), "device": tuning.Device("X", 4, ((1, 4), (2, 2)))
    }),
    "estimate": (tuning.estimate, {
        "problem": tuning.Problem(64, 64, 64), "candidate": tuning.Candidate("Gemm", (64, 64), (1, 1)),
        "device": tuning.Device("X", 4, ((1, 4), (2, 2))),
    }),
    "torch.linear": (tt.linear, {"x": torch.ones(4, 64), "weight": torch.ones(8, 64)}),
    "torch.gemm": (tt.gemm, {"a": torch.ones(4, 64), "b": torch.ones(8, 64)}),
    "torch.softmax": (tt.softmax, {"x": torch.ones(4, 64)}),
    "torch.rms_norm": (tt.rms_norm, {"x": torch.ones(4, 64), "weight": torch.ones(64)}),
    **{
        f"math.{name}": (getattr(tp.math, name), dict.fromkeys(inspect.signature(getattr(tp.math, name)).parameters, ROWS))
        for name in (
            "abs", "column_max", "column_min", "column_sum", "erf", "exp2", "floor", "log", "minimum", "relu", "row_cumsum",
            "row_logsumexp", "row_max", "row_min", "sigmoid", "silu", "sqrt", "swap_pairs", "join_pairs", "split_pairs",
            "from_bits",
        )
    },
}  # fmt: skip
#: Of those whose signatures take any: further arguments.
FURTHER = {
    "Attention()": ("d", "causal", "window", "scale", "score", "lse", "tile", "tiles"),
    **dict.fromkeys(("Cumsum()", "Softmax()", "LogSoftmax()", "Reduce()"), ("x", "out")),
    "RmsNorm()": ("x", "weight", "residual", "out"),
    "LayerNorm()": ("x", "weight", "bias", "out"),
    "CrossEntropy()": ("x", "target"),
    "CrossEntropyBackward()": ("x", "target", "lse", "dloss", "out"),
    "SoftmaxBackward()": ("y", "dy", "out"),
    "LogSoftmaxBackward()": ("y", "dy", "out"),
    "RmsNormBackward()": ("x", "weight", "dy", "out"),
    "LayerNormBackward()": ("x", "weight", "dy", "out"),
    **dict.fromkeys(
        (name for name in CALLABLES if name.endswith("Rows") and "Elementwise" not in name), ("form", "stored")
    ),
    "export": ("kernels", "arch"),
    "Transpose()": ("x", "out"),
    "Rotary()": ("x", "cos", "sin", "out"),
    "autotune": ("space", "key", "most", "jobs", "progress"),
    "candidates": ("problem", "device"),
}
