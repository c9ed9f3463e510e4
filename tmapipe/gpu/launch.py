"""Launching: from bound CUDA tensors to a running kernel, with one compilation per signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version
from tvm_ffi import convert

from tmapipe.bind.memory import check_apart, check_held, span
from tmapipe.dtypes import int32
from tmapipe.errors import InputError, MissingGpuError
from tmapipe.gpu.build import Compiled
from tmapipe.gpu.descriptors import WORDS, encoded_words
from tmapipe.gpu.gpcs import gpcs
from tmapipe.gpu.kernels import kernel_for
from tmapipe.gpu.residency import resident_clusters
from tmapipe.program.trace import Traced
from tmapipe.tiles.gpc_positions import COUNTERS

if TYPE_CHECKING:
    from tmapipe.bind.bound import Bound
    from tmapipe.schedule import Schedule

__all__ = ["Launcher", "Prepared", "adopt"]

Gate = Callable[[Traced | None, str | None], object]


class Launcher:
    """Launches one schedule for one signature of tensors, which `bind` has checked.

    Calling it again with tensors of the same signature costs a few microseconds on the host. What is checked again is whether
    an output that is passed overlaps another tensor, and whether all tensors still have their memory.
    """

    def __init__(self, schedule: Schedule, bound: Bound, gate: Gate):
        """Compiles *schedule* for the tensors' types and ranks, unless it has been.

        Args:
            gate: Called with the traced program and its identity, as of `tmapipe.gpu.kernels.kernel_for`.

        Raises:
            MissingGpuError: There is no GPU.
            InputError: The GPU has another architecture than the plan.
        """
        compiled = compiled_for(schedule, bound, gate)
        self.function = compiled.function
        self.device = bound.tensors[compiled.plan.arguments[0]].device
        resident = resident_clusters(self.device.index, compiled.plan.cluster_size)
        tiles = schedule.cluster_count(bound.shapes)
        near = functools.partial(gpcs, self.device.index)
        self.numbers: Any = list(schedule.tiles.launch_numbers(tiles, resident, compiled.plan.cluster_size, near))
        for load in compiled.plan.encoded:
            self.numbers += encoded_words(load, bound.tensors[load.argument])
        self.inputs = len(compiled.plan.arguments) - len(compiled.plan.stores)
        self.names = tuple(bound.tensors)
        self.spans = [span(tensor) for tensor in bound.tensors.values()]
        self.sizes = [tensor.itemsize for tensor in bound.tensors.values()]
        made = sum(buffer.stages for buffer in compiled.plan.made) * compiled.plan.cluster_size * self.numbers[0]
        self.scratch: list[tuple[int, torch.dtype]] = []
        if compiled.plan.queue is not None:
            self.scratch.append((COUNTERS, torch.int32))  # which each launch leaves at 0
        if made:
            self.scratch.append((WORDS * made, torch.int64))  # for the descriptors that the kernel makes
        self.scratch_of: dict[int, list[Any]] = {}  # by stream, since launches on different streams may run at once
        self.numbers = convert(self.numbers)
        self.one_device = torch.cuda.device_count() == 1
        self.views: list[int] = []  # positions of tensors that are passed with their last two dimensions exchanged
        self.outputs = []
        for name in bound.stores:
            tensor = bound.tensors[name]
            dense = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").stride()
            self.outputs.append((tuple(tensor.shape), dense, tensor.dtype, name in bound.added_to))

    def __call__(self, tensors: tuple[Any, ...], out: Any) -> Any:
        """Launches with tensors in the order of declaration, makes the outputs that are left out, and returns the outputs."""
        arguments = [*tensors] if out is None else [*tensors, out]
        given = len(arguments)
        for i in self.views:
            arguments[i] = arguments[i].mT
        for tensor, extent, size in zip(arguments, self.spans, self.sizes, strict=False):
            if tensor.untyped_storage().nbytes() < extent + tensor.storage_offset() * size:
                for name, each in zip(self.names, arguments, strict=False):
                    check_held(name, each)
        if given > self.inputs:
            self._check_apart(arguments)
        for shape, strides, dtype, added_to in self.outputs[given - self.inputs :]:
            # a torch.Size in the place of a tuple, or torch.empty, takes some microseconds more
            made = torch.empty_strided(shape, strides, dtype=dtype, device=self.device)
            arguments.append(made.zero_() if added_to else made)
        self.launch(arguments)
        if given > self.inputs:
            increment_version(arguments[self.inputs :])
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
        if self.one_device or torch.cuda.current_device() == self.device.index:
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


class Prepared:
    """A launch of fixed tensors, as `Schedule.prepare` says."""

    def __init__(self, launcher: Launcher, bound: Bound):
        self.launcher, self.arguments = launcher, list(bound.tensors.values())
        self.outputs, self.result = bound.outputs, bound.result()
        self.begin = bound.begin_sums if set(bound.made) & set(bound.added_to) else None

    def __call__(self) -> Any:
        if self.begin is not None:
            self.begin()
        self.launcher.launch(self.arguments)
        increment_version(self.outputs)
        return self.result


def compiled_for(schedule: Schedule, bound: Bound, gate: Gate) -> Compiled:
    """The compiled kernel for these tensors, of the schedule's or as `kernel_for` finds it."""
    ranks = {name: tensor.ndim for name, tensor in bound.tensors.items()}
    key = _key({name: bound.dtypes[name].name for name in ranks}, ranks)
    cache: dict[Any, Compiled] = schedule.__dict__.setdefault("_compiled", {})
    if key not in cache:
        plan = schedule.plan(bound.dtypes)
        _check_device(next(iter(bound.tensors.values())).device, plan.arch)
        cache[key] = kernel_for(schedule, plan, ranks, gate)
    return cache[key]


def adopt(schedule: Schedule, compiled: Compiled, ranks: dict[str, int]) -> None:
    """Lets *schedule* launch this kernel.

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
