"""``python -m pytest -p tests.oracle.ptx_run FILE``: the tests, with each launch on the model made again by its PTX, with the
same data, and compared.

Copies and transposes give the same bits; of other kernels all bytes outside of the outputs are the same, and the outputs are
near the model's, since functions are approximated on a GPU. What is large, or has instructions that `ptx_machine` does not
know (windows, descriptors that kernels make), is left out, and the summary says how often.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from tests.oracle.ptx import Ptx
from tests.oracle.ptx_floats import UNSIGNED
from tests.oracle.ptx_launch import Launch, parameters
from tests.oracle.ptx_machine import Machine
from tests.oracle.ptx_memory import Box, Memory
from tmapipe import schedule as module
from tmapipe.base.tma_rules import MAX_BOX
from tmapipe.bind import Bound
from tmapipe.gpu.build import build
from tmapipe.plan.model import Load, Plan, Store
from tmapipe.program import trace
from tmapipe.program.identity import identity
from tmapipe.tiles.dynamic import COUNTERS

__all__ = ["Differs", "judged", "run"]

LARGE, MANY = 1 << 20, 300  # bytes of tensors, and clusters, of launches that are left out
NEAR = 1e-5  # error before the result is rounded, relative to the largest: approximated functions have 2^-20
SAME_BITS = ("Copy", "CopyElements", "CopyPlaces", "CopyRuns", "TransposeTiles", "TransposeRows")
WORDS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int32": "s32", "int64": "s64", "fp64": "f64"}
_texts: dict[Any, tuple[str, Plan]] = {}  # of the kernels of this process


class Differs(AssertionError):
    """The PTX has computed something else than the model."""


# ---- descriptors ------------------------------------------------------------------------------------------------------


def box_of(part: Load | Store, tensor: Any, address: int, rows: int | None = None) -> Box:
    """What the descriptor of *part* says, for this tensor. Coordinates are in the order that `tests.emit.lower` has. rows: of
    a box, if they are not the part's."""
    if isinstance(part, Load) and (part.windows is not None or part.through is not None):
        raise NotImplementedError(f"the descriptor of {part.name}")
    rank, core, size = tensor.ndim, min(part.core, tensor.ndim), part.buffer.dtype.bytes
    word = WORDS.get(part.buffer.dtype.name, f"u{8 * size}")
    if isinstance(part, Store) and part.clipped:  # of rows that overlap, see `tmapipe.gpu.clipped`
        (m, n), height, row = tensor.shape, part.buffer.tile[0], tensor.stride(0) * size
        extents, strides, clipped = (n, height, m + 1), (size, row, row), (part.box[1], part.box[0], 1)
        return Box(address - height * row, size, extents, strides, clipped, (1, 1, 1), part.buffer.swizzle, word=word)
    inner, box, steps = part.part[-1], list(part.box), part.steps
    if rows is not None:
        box[-2] = rows
    encoded = isinstance(part, Load) and part.encoded
    across = list(range(rank - core, rank - 1))
    of_box = {rank - core + i: n for i, n in enumerate(box[len(box) - core :])}
    if inner <= MAX_BOX or part.buffer.swizzle or encoded:
        across.reverse()
        if not encoded:  # CuTe DSL has extents of 1 last, in their own order
            moved = {rank - core + i: n for i, n in enumerate(part.part[len(part.part) - core :])}
            ones = [dim for dim in across if moved[dim] == 1]
            across = [*(dim for dim in across if moved[dim] > 1), *reversed(ones)]
    batch = list(range(rank - core))
    dims = [rank - 1, *across, *(reversed(batch) if encoded else batch)]
    kind = UNSIGNED[size]
    outside = 0
    if isinstance(part, Load) and part.outside == "nan":
        outside = int(np.array(np.nan, part.buffer.dtype.numpy).view(kind))
    return Box(
        start=address,
        size=size,
        extents=tuple(tensor.shape[dim] for dim in dims),
        strides=tuple(tensor.stride(dim) * size for dim in dims),
        box=tuple(of_box.get(dim, 1) for dim in dims),
        steps=tuple(steps[len(steps) - rank + dim] for dim in dims),
        swizzle=part.buffer.swizzle,
        outside=outside,
        word=word,
        rounded=part.buffer.dtype.name == "tf32",
    )


# ---- launches ---------------------------------------------------------------------------------------------------------


def text_for(schedule: Any, plan: Plan, tensors: dict[str, Any], unroll: bool = True) -> tuple[str, Plan]:
    """The kernel's PTX, as it is compiled for tensors of these ranks, and the plan that it was compiled from."""
    ranks = {name: tensor.ndim for name, tensor in tensors.items()}
    key = identity(trace(schedule, plan)), tuple(sorted(ranks.items())), unroll
    if key[0] is None or key not in _texts:
        _texts[key] = build(schedule, plan, ranks, keep=True, unroll=unroll).ptx or "", plan
    return _texts[key]


def storages(tensors: dict[str, Any]) -> dict[int, np.ndarray]:
    """The bytes of the tensors' memory, copied, by its address."""
    found = {}
    for tensor in tensors.values():
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in found and storage.nbytes():
            found[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().copy()
    return found


def run(
    schedule: Any,
    plan: Plan,
    text: str,
    tensors: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    before: dict[int, np.ndarray],
    clusters: int,
    seed: int = 0,
) -> dict[int, np.ndarray]:
    """Executes a launch; returns the bytes of each storage after it.

    Args:
        tensors: By stage: where they lie in the storages.
        shapes: Of them, with the leading dimensions that they lack.
        before: The bytes of each storage, by its address.
        clusters: In the grid.
        seed: Of the order in which engines do what they are asked for.
    """
    ctas = clusters * plan.cluster_size
    memory = Memory(
        [*((content, place) for place, content in before.items()), (np.zeros(4 * COUNTERS, np.uint8), 0)],
        ctas,
        plan.smem_bytes,
        plan.cluster_size,
    )
    starts = dict(zip(before, memory.starts, strict=False))
    places = {
        name: (
            starts[x.untyped_storage().data_ptr()] + x.storage_offset() * x.element_size(), x.stride(), tuple(x.shape)
        )
        for name, x in tensors.items()
    }  # fmt: skip
    tables = {name: tensors[name] for name in plan.tables}
    launch = Launch(shapes, clusters, tables=tables, places=places, counters=memory.starts[-1])  # type: ignore[arg-type]
    given = parameters(plan, schedule, launch)
    sizes = _parameter_sizes(text)
    values = {n: _packed(given[n], size) for n, size in sizes.items() if n < len(given)}
    boxes = {}
    described = [*((part, None) for part in plan.described), *((x, x.edge_rows) for x in plan.loads if x.edge_rows)]
    for n, (part, rows) in enumerate(described):
        with contextlib.suppress(NotImplementedError):  # which fails where it is used
            boxes[2 * n] = box_of(part, tensors[part.argument], places[part.argument][0], rows)
    machine = Machine(text, Ptx(text, plan), memory, values, boxes, ctas, seed)
    machine.run()
    return {place: memory.storage(n, len(content)) for n, (place, content) in enumerate(before.items())}


def _parameter_sizes(text: str) -> dict[int, int]:
    found = {}
    for word, number, count in re.findall(
        r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+\w+_param_(\d+)(?:\[(\d+)\])?", text
    ):
        found[int(number)] = int(word[1:]) // 8 * int(count or 1)
    return found


def _packed(parts: dict[int, Any], size: int) -> bytes:
    """A parameter's bytes: each value reaches up to the next."""
    if isinstance(parts.get(0), str):
        return b""  # a descriptor
    offsets = sorted(parts)
    if offsets and offsets[-1] >= size:
        raise AssertionError(f"a parameter of {size} bytes with a value at {offsets[-1]}")
    found = b""
    for offset, end in zip(offsets, [*offsets[1:], size], strict=True):
        found += struct.pack("<q", int(parts[offset]))[: end - offset].ljust(end - offset, b"\0")
    return found


# ---- comparing --------------------------------------------------------------------------------------------------------


@attrs.define
class Judge:
    """launches: how many have been compared; left_out: why others were not. Others as of `judged`."""

    text: str = ""
    seed: int = 0
    unroll: bool = True
    change: Callable[[str], str] = lambda text: text
    launches: int = 0
    left_out: Counter[str] = attrs.field(factory=Counter)

    def run(
        self, schedule: Any, bound: Bound, tensors: dict[str, Any], clusters: int, before: dict[int, np.ndarray]
    ) -> None:
        """Executes the PTX on the memory *before*, and compares what it leaves with the tensors."""
        plan, expected = schedule.plan(bound.dtypes), storages(tensors)
        text = self.text if not self.launches else ""
        if not text:
            text, plan = text_for(schedule, plan, tensors, self.unroll)
        given = tensors, bound.shapes, before, clusters, self.seed
        found = run(schedule, plan, self.change(text), *given)
        for place, content in expected.items():
            if not np.array_equal(content, found[place]):
                outputs = {name: tensors[name] for name in bound.stores}
                _compare(type(schedule).__name__, outputs, place, content, found[place])
        self.launches += 1


def _compare(name: str, outputs: dict[str, Any], place: int, expected: np.ndarray, found: np.ndarray) -> None:
    """Memory that differs: only in the outputs' elements, and not by more than approximations make."""
    written = expected.copy()
    if name in SAME_BITS:
        different = np.flatnonzero(expected != found)
        raise Differs(f"{name}: {len(different)} of {len(expected)} bytes, the first one at {different[0]}")
    for output, tensor in outputs.items():
        if tensor.untyped_storage().data_ptr() == place:
            one, other, kept = (_viewed(x, tensor) for x in (expected, found, written))
            kept.copy_(other)
            relative = 2 * torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0
            one, other = one.double(), other.double()
            largest = torch.where(one.isfinite(), one, 0).abs().max().item()
            if not torch.allclose(other, one, relative, NEAR * largest * bool(relative), equal_nan=True):
                worst = (one - other).abs().nan_to_num(1e30).max()
                raise Differs(f"{name}: {output} is off by {worst:.3g}, where the largest is {largest:.3g}")
    if not np.array_equal(written, found):
        raise Differs(f"{name}: writes outside of its outputs")


def _viewed(content: np.ndarray, like: Any) -> Any:
    return torch.empty(0, dtype=like.dtype).set_(
        torch.from_numpy(content).untyped_storage(), like.storage_offset(), like.shape, like.stride()
    )


@contextlib.contextmanager
def judged(**options: Any) -> Iterator[Judge]:
    """Within it, what a call computes on the model is computed by its PTX too, launch by launch, and compared.

    Args:
        options: Of `Judge`: *text* of the first launch's kernel, if it is compiled; *seed* of the order of what engines do;
            *unroll* as of `Schedule.compile`; *change* of the PTX, to see whether it is noticed.
    """
    judge, on_model = Judge(**options), module.on_model

    def both(schedule: Any, bound: Bound, clusters: int | None, machine: Any) -> Any:
        number = clusters or schedule.spans(bound.shapes) or min(2, schedule.cluster_count(bound.shapes))
        reason = _left_out(bound, number)
        tensors = {name: _as_torch(x, bound.dtypes.get(name)) for name, x in bound.tensors.items()}
        before = storages(tensors) if reason is None else {}
        found = on_model(schedule, bound, clusters, machine)
        if reason is None:
            try:
                judge.run(schedule, bound, tensors, number, before)
            except NotImplementedError as error:
                reason = re.sub(r"line \d+: ", "", str(error))
        judge.left_out.update([] if reason is None else [reason])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "on_model", both)
        yield judge


def _as_torch(x: Any, dtype: Any) -> Any:
    """A tensor; of an array, one of the same memory."""
    if isinstance(x, torch.Tensor):
        return x
    kind = torch.int32 if dtype is None else getattr(torch, dtype.in_memory.torch)
    return torch.from_numpy(x.view(f"i{x.itemsize}")).view(kind)


def _left_out(bound: Bound, clusters: int) -> str | None:
    if sum(tensor.nbytes for tensor in bound.tensors.values()) > LARGE or clusters > MANY:
        return "large"
    return None


# ---- plugin -----------------------------------------------------------------------------------------------------------

_all = Judge()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    with judged() as judge:
        try:
            return (yield)
        finally:
            _all.launches += judge.launches
            _all.left_out.update(judge.left_out)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(
        f"{_all.launches} launches of emitted PTX agree with the model; left out: {dict(_all.left_out)}"
    )
