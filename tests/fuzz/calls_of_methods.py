"""Public callables besides those of `publics.py` and `calls_of_rows.py`: operators of torch, modules, methods, results.

What is right is compared with PyTorch.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import tmapipe as tp
import tmapipe.torch as tt
from tests.fuzz.declarations import LOAD, RING, USE, A, B
from tests.fuzz.outcomes import Own, Wrong
from tmapipe import tuning
from tmapipe.schedules import mainloop

S, E = tp.schedules, tp.epilogue
X, WEIGHT, ONES = torch.linspace(-2, 2, 256).view(4, 64), torch.linspace(0, 1, 512).view(8, 64), torch.ones(64)
HEADS = torch.linspace(-1, 1, 1 * 2 * 8 * 64).view(1, 2, 8, 64).bfloat16()
PIXELS, FILTERS = (torch.linspace(-1, 1, 64 * n).view(-1, 16, 4, 4)[..., :r, :r].half() for n, r in ((8, 4), (32, 3)))
MATRIX, IMAGE = np.ones((64, 64), np.float16), np.arange(256, dtype=np.int32).reshape(4, 64)
STORE = tp.TmaStoreStage("m n", tile=(64, 64), role=USE)
SMALL = tuning.Problem(64, 64, 64)
CANDIDATE = tuning.Candidate("Gemm", (64, 64), (1, 1))
RIGHT = "a right one"
NAMES = iter(f"fuzz_{i}" for i in range(10**9))


def _as(name: str, right: Callable[..., Any], rough: float = 1e-3) -> Callable[..., Any]:
    """An operator of `tmapipe.torch`, compared with *right* for the arguments that both take."""

    def run(**given: Any) -> Any:
        try:
            found = getattr(tt, name)(**given)
        except RuntimeError as error:  # TypeErrors are refused by name
            if _refuses(lambda: right(**given)):
                raise Own(f"{type(error).__name__}: {error}") from None
            raise
        if given.get("dropout_p"):
            return found  # of random numbers
        if _refuses(lambda: right(**given)):
            raise Wrong("PyTorch refuses this")
        expected = right(**given)
        if found.shape != expected.shape or not torch.allclose(
            found.float(), expected.float(), atol=rough, rtol=rough, equal_nan=True
        ):
            raise Wrong("another result than PyTorch's")
        return found

    return run


def _refuses(run: Callable[[], Any]) -> bool:
    try:
        run()
    except Exception:
        return True
    return False


def _module(make: Callable[[], torch.nn.Module]) -> Callable[..., Any]:
    def run(**given: Any) -> Any:
        torch.manual_seed(0)
        return make()(*given.values())

    return run


def _registered(schedule: Any, name: Any, **more: Any) -> Any:
    return tt.register(schedule, f"fuzz::{next(NAMES)}" if name is RIGHT else name, **more)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Within an empty folder, which is where a file of a drawn name is written."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _exported(**options: Any) -> Any:
    with apart():
        given = {"path": "copy.so", "x": IMAGE, **options}
        path, x = given.pop("path"), given.pop("x")
        return S.Copy((4, 64)).export(path, x, **given)


def _alone() -> None:
    with tt.kernels_only():
        tt.softmax(X)


def _kept(path: Any) -> Any:
    with apart():
        return tuning.export_tuned(path)


def _method(made: Callable[[], Any], name: str, *positional: str) -> Callable[..., Any]:
    """Calls a method. positional: names of what goes by place."""

    def run(**given: Any) -> Any:
        by_place = [given.pop(each) for each in positional if each in given]
        return getattr(made(), name)(*by_place, **given)

    return run


def _copied(name: str) -> Callable[..., Any]:
    return _method(lambda: S.Copy((4, 64)), name, "x")


def _decided(**given: Any) -> Any:
    return tp.autotune(space={"rows": (4,)}, progress=False)(lambda rows: S.Copy((rows, 64))).candidates(**given)


#: By name: what is called, and arguments with which that is right.
CALLABLES: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "Score": (S.Score, {}),
    "Score.of": (S.Score.of, {"value": None}),
    "CombineParts": (S.CombineParts, {}),
    "CombineParts()": (
        lambda **of: S.CombineParts(64)(**of),
        {"x": np.ones((1, 2, 3, 8, 64), np.float32), "l": np.ones((1, 2, 3, 8), np.float32)},
    ),
    "SplitAttention": (S.SplitAttention, {"parts": 2}),
    "SplitAttention()": (lambda **of: S.SplitAttention(2, 64)(**of), {"q": HEADS, "k": HEADS, "v": HEADS}),
    "SplitAttention.of": (S.SplitAttention.of, {"q": HEADS, "k": HEADS, "v": HEADS}),
    "WindowAttention": (S.WindowAttention, {"window": 512}),
    "Attention.of": (S.Attention.of, {"q": HEADS, "k": HEADS, "v": HEADS}),
    "torch.Linear": (tt.Linear, {"in_features": 2048, "out_features": 2048}),
    "torch.Linear()": (_module(lambda: tt.Linear(64, 8)), {"input": X}),
    "torch.SwiGLU": (tt.SwiGLU, {"features": 2048, "hidden": 2048}),
    "torch.SwiGLU()": (_module(lambda: tt.SwiGLU(64, 32)), {"x": X}),
    "torch.cross_entropy": (
        _as("cross_entropy", lambda x, **of: functional.cross_entropy(x, **of)), {"x": X, "target": torch.arange(4)}
    ),
    "torch.layer_norm": (
        _as("layer_norm", lambda x, weight, bias=None, eps=1e-5: functional.layer_norm(x, (64,), weight, bias, eps)),
        {"x": X, "weight": ONES},
    ),
    "torch.log_softmax": (_as("log_softmax", lambda x, dim=-1: functional.log_softmax(x, dim)), {"x": X}),
    "torch.matmul": (_as("matmul", lambda a, b: torch.matmul(a, b), 2e-2), {"a": X.half(), "b": WEIGHT.half().T}),
    "torch.scaled_dot_product_attention": (
        _as("scaled_dot_product_attention", functional.scaled_dot_product_attention, 2e-2),
        {"query": HEADS, "key": HEADS, "value": HEADS},
    ),
    "torch.conv2d": (
        _as("conv2d", lambda x, weight, **of: functional.conv2d(x, weight, **of), 5e-2), {"x": PIXELS, "weight": FILTERS}
    ),
    "torch.grouped_gemm": (tt.grouped_gemm, {"a": X.half(), "b": WEIGHT.half()[None], "offsets": torch.tensor([4]).int()}),
    "torch.scaled_mm": (tt.scaled_mm, {
        "a": X.to(torch.float8_e4m3fn), "b": WEIGHT.to(torch.float8_e4m3fn), "scale_a": torch.ones(1), "scale_b": torch.ones(8)
    }),
    "torch.transpose": (
        _as("transpose", lambda x, dims=None: x.permute(dims) if dims is not None else x.transpose(-1, -2)), {"x": X}
    ),
    "torch.register": (_registered, {"schedule": S.Copy((4, 64)), "name": RIGHT}),
    "torch.fallbacks": (tt.fallbacks, {}),
    "torch.kernels_only": (_alone, {}),
    "columns_of": (E.columns_of, {"n": 64}),
    "in_shares": (mainloop.in_shares, {"rows": 64, "peers": 2}),
    "Operands": (E.Operands, {"declared": {}, "epilogue": None, "ring": RING, "matmul": tp.Wgmma(A, B)}),
    "DType": (tp.DType, {"name": "mine", "bytes": 2, "numpy": np.float16, "torch": "float16", "cute": "Float16"}),
    "Schedule": (lambda **of: type("Made", (tp.Schedule,), of)(), {"over": None}),
    "AutoTuned.candidates": (_decided, {"x": IMAGE}),
    "AutoTuned": (tuning.AutoTuned, {
        "make": lambda rows: S.Copy((rows, 64)), "space": {"rows": (4,)}, "key": None, "most": 3, "jobs": None,
        "progress": False,
    }),
    "Choice": (tuning.Choice, {"schedule": S.Copy((4, 64)), "parameters": {"rows": 4}}),
    "Tuned": (tuning.Tuned, {"schedule": S.Gemm(), "candidate": CANDIDATE, "us": 1.0}),
    "export_tuned": (_kept, {"path": "tuned.json"}),
    "Candidate.can_be_built": (CANDIDATE.can_be_built, {"problem": SMALL}),
    "Device.resident": (tuning.Device("X", 4, ((1, 4), (2, 2))).resident, {"cluster_size": 2}),
    "Role.jit": (tp.Role(warps=1).jit, {"body": lambda self, k, tile: None}),
    "BarrierRing.phase_of": (RING.phase_of, {"role": LOAD}),
    "TmaLoadStage.in_parts": (A.in_parts, {"parts": 2}),
    "TmaLoadStage.of_result": (A.of_result, {"store": STORE}),
    "TmaLoadStage.strided": (A.strided, {"m": 2}),
    "TmaStoreStage.in_parts": (STORE.in_parts, {"parts": 2}),
    "TmaStoreStage.in_place": (lambda load: STORE.in_place(load), {"load": A}),
    "TmaStoreStage.with_l2_hint": (STORE.with_l2_hint, {"hint": "evict_last"}),
    "Epilogue.of": (E.Epilogue.of, {"value": None}),
    **{f"Schedule.{name}": (_copied(name), {}) for name in ("program", "plan", "compile")},
    **{f"Schedule.{name}": (_copied(name), {"x": IMAGE}) for name in ("trace", "prepare", "warm_up")},
    "Schedule.export": (_exported, {"x": IMAGE}),
}  # fmt: skip
#: Of those whose signatures take any: further arguments.
FURTHER = {
    "Schedule": ("over", "tiles", "cluster", "relations", "load", "arch"),
    "CombineParts()": ("x", "l", "out"),
    "SplitAttention()": ("q", "k", "v", "out"),
    **dict.fromkeys(("SplitAttention.of", "Attention.of"), ("q", "k", "v", "causal", "window", "scale", "lse")),
    "torch.cross_entropy": ("x", "target", "ignore_index", "reduction"),
    "torch.layer_norm": ("x", "weight", "bias", "eps"),
    "torch.log_softmax": ("x", "dim"),
    "torch.matmul": ("a", "b"),
    "torch.scaled_dot_product_attention": (
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
    ),
    "torch.transpose": ("x", "dims"),
    "torch.conv2d": ("x", "weight", "bias", "stride", "padding", "dilation", "groups"),
    "torch.Linear()": ("input",),
    "torch.SwiGLU()": ("x",),
    "torch.register": ("schedule", "name", "backward"),
    "AutoTuned.candidates": ("x", "out"),
    "TmaLoadStage.strided": ("m", "k", "q"),
    "Schedule.program": ("dtypes", "arch"), "Schedule.plan": ("dtypes", "arch"),
    "Schedule.compile": ("dtypes", "arch", "unroll"),
    "Schedule.trace": ("x", "out", "clusters"),
    "Schedule.prepare": ("x", "out"), "Schedule.warm_up": ("x", "out"),
    "Schedule.export": ("path", "x", "name", "dtypes", "arch"),
}  # fmt: skip
