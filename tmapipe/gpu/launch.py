"""Launching: from bound CUDA tensors to a running kernel, with one compilation per signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from cutlass.utils import HardwareInfo

from tmapipe.bind.memory import check_apart, note_written, span
from tmapipe.dtypes import int32
from tmapipe.errors import InputError, MissingGpuError
from tmapipe.gpu.build import Compiled, build
from tmapipe.gpu.descriptors import WORDS, encoded_words
from tmapipe.gpu.gpcs import gpcs
from tmapipe.tiles.gpc_positions import COUNTERS

if TYPE_CHECKING:
    from tmapipe.bind.bound import Bound
    from tmapipe.schedule import Schedule

__all__ = ["Launcher", "adopt"]


class Launcher:
    """Launches one schedule for one signature of tensors, which `bind` has checked.

    Calling it again with tensors of the same signature costs a few microseconds on the host. The only check that is repeated
    is whether an output that is passed overlaps another tensor.
    """

    def __init__(self, schedule: Schedule, bound: Bound, gate: Callable[[], object]):
        """Compiles *schedule* for the tensors' types and ranks, unless it has been.

        Args:
            gate: Called before compiling.

        Raises:
            MissingGpuError: There is no GPU.
            InputError: The GPU has another architecture than the plan.
        """
        compiled = compiled_for(schedule, bound, gate)
        self.function = compiled.function
        self.device = bound.tensors[compiled.plan.arguments[0]].device
        resident = _resident_clusters(self.device.index, compiled.plan.cluster_size)
        tiles = schedule.cluster_count(bound.shapes)
        near = functools.partial(gpcs, self.device.index)
        self.numbers = list(schedule.tiles.launch_numbers(tiles, resident, compiled.plan.cluster_size, near))
        for load in compiled.plan.encoded:
            self.numbers += encoded_words(load, bound.tensors[load.argument])
        self.inputs = len(compiled.plan.arguments) - len(compiled.plan.stores)
        self.names = tuple(bound.tensors)
        self.spans = [span(tensor) for tensor in bound.tensors.values()]
        made = sum(buffer.stages for buffer in compiled.plan.made) * compiled.plan.cluster_size * self.numbers[0]
        self.scratch: list[tuple[int, torch.dtype]] = []
        if compiled.plan.queue is not None:
            self.scratch.append((COUNTERS, torch.int32))  # which each launch leaves at 0
        if made:
            self.scratch.append((WORDS * made, torch.int64))  # for the descriptors that the kernel makes
        self.scratch_of: dict[int, list[Any]] = {}  # by stream, since launches on different streams may run at once
        fresh = ((bound.tensors[name], torch.zeros if name in bound.added_to else torch.empty) for name in bound.stores)
        self.outputs = [(tensor.shape, tensor.dtype, make) for tensor, make in fresh]

    def __call__(self, tensors: tuple[Any, ...], out: Any) -> Any:
        """Launches with tensors in the order of declaration, makes the outputs that are left out, and returns the outputs."""
        arguments = list(tensors)
        if out is not None:
            arguments.append(out)
        if len(arguments) > self.inputs:
            self._check_apart(arguments)
        for shape, dtype, make in self.outputs[len(arguments) - self.inputs :]:
            arguments.append(make(shape, dtype=dtype, device=self.device))
        self.launch(arguments)
        if len(tensors) > self.inputs or out is not None:
            note_written(arguments[self.inputs :])
        results = arguments[self.inputs :]
        return results[0] if len(results) == 1 else tuple(results)

    def _check_apart(self, arguments: list[Any]) -> None:
        """Raises `InputError` if an output overlaps another tensor. Looks closely only where their spans overlap."""
        starts = [tensor.data_ptr() for tensor in arguments]
        for i in range(self.inputs, len(starts)):
            for j in range(i):
                if starts[i] < starts[j] + self.spans[j] and starts[j] < starts[i] + self.spans[i]:
                    check_apart(dict(zip(self.names, arguments, strict=False)), self.names[self.inputs :])

    def launch(self, arguments: list[Any]) -> None:
        """Launches on torch's current stream of the tensors' device."""
        if self.scratch:
            arguments = [*arguments, *self._scratch()]
        if torch.cuda.current_device() == self.device.index:
            self.function(arguments, self.numbers)
        else:
            with torch.cuda.device(self.device):
                self.function(arguments, self.numbers)

    def _scratch(self) -> list[Any]:
        """Global memory that the kernel works in, beside its tensors: each stream's own, made at its first launch there."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        if stream not in self.scratch_of:
            self.scratch_of[stream] = [torch.zeros(n, dtype=dtype, device=self.device) for n, dtype in self.scratch]
        return self.scratch_of[stream]


def compiled_for(schedule: Schedule, bound: Bound, gate: Callable[[], object] = lambda: None) -> Compiled:
    """The compiled kernel for these tensors, from the schedule's cache or new. *gate* is called before compiling."""
    ranks = {name: tensor.ndim for name, tensor in bound.tensors.items()}
    key = _key({name: bound.dtypes[name].name for name in ranks}, ranks)
    cache: dict[Any, Compiled] = schedule.__dict__.setdefault("_compiled", {})
    if key not in cache:
        plan = schedule.plan(bound.dtypes)
        _check_device(next(iter(bound.tensors.values())).device, plan.arch)
        gate()
        cache[key] = build(schedule, plan, ranks)
    return cache[key]


def adopt(schedule: Schedule, compiled: Compiled, ranks: dict[str, int]) -> None:
    """Lets *schedule* launch a kernel that another process has compiled.

    Args:
        ranks: Number of dimensions of each tensor that it was compiled for.
    """
    types = {part.argument: part.buffer.dtype.in_memory.name for part in compiled.plan.transfers}
    types |= dict.fromkeys(compiled.plan.tables, int32.name)
    schedule.__dict__.setdefault("_compiled", {})[_key(types, ranks)] = compiled


def _key(types: dict[str, str], ranks: dict[str, int]) -> tuple[tuple[str, str, int], ...]:
    return tuple((name, types[name], rank) for name, rank in sorted(ranks.items()))


def _check_device(device: Any, arch: str) -> None:
    if device.type != "cuda" or not torch.cuda.is_available():
        raise MissingGpuError(f"tensors lie on {device}, where no CUDA kernel can run; CPU tensors run on the model.")
    major, minor = torch.cuda.get_device_capability(device)
    have = f"sm_{major}{minor}" + "a" * (major >= 9)
    if have != arch:
        raise InputError("arch", arch, f"the device {device} is {have}", f'set the schedule\'s arch to "{have}"')


@functools.cache
def _resident_clusters(device: int, cluster_size: int) -> int:
    """Clusters of this size that the device holds at once, with one CTA per SM."""
    if cluster_size == 1:
        return torch.cuda.get_device_properties(device).multi_processor_count
    return HardwareInfo(device).get_max_active_clusters(cluster_size)
