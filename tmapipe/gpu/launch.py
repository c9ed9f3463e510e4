"""Launching: from bound CUDA tensors to a running kernel, with one compilation a signature."""

from __future__ import annotations

import functools
from typing import Any

import torch
from cutlass.utils import HardwareInfo

from tmapipe.errors import InputError, MissingGpuError
from tmapipe.gpu.build import Compiled, build

__all__ = ["launch"]


def launch(schedule: Any, bound: Any) -> None:
    """Compiles *schedule* for the tensors' types and ranks if it has not been, and launches it on torch's current stream.

    Raises `MissingGpuError` without a GPU and `InputError` for one of another architecture than the plan's."""
    compiled = compiled_for(schedule, bound)
    tensors = [bound.tensors[name] for name in compiled.plan.arguments]
    device = tensors[0].device
    clusters = min(schedule.cluster_count(bound.shapes), _resident_clusters(device.index, compiled.plan.cluster_size))
    with torch.cuda.device(device):
        compiled.function(tensors, clusters)


def compiled_for(schedule: Any, bound: Any) -> Compiled:
    """The compiled kernel for these tensors, from the schedule's own cache or new."""
    ranks = {name: tensor.ndim for name, tensor in bound.tensors.items()}
    key = tuple((name, bound.dtypes[name].name, rank) for name, rank in ranks.items())
    cache: dict[Any, Compiled] = schedule.__dict__.setdefault("_compiled", {})
    if key not in cache:
        plan = schedule.plan(bound.dtypes)
        _check_device(next(iter(bound.tensors.values())).device, plan.arch)
        cache[key] = build(schedule, plan, ranks)
    return cache[key]


def _check_device(device: Any, arch: str) -> None:
    if device.type != "cuda" or not torch.cuda.is_available():
        raise MissingGpuError(f"tensors lie on {device}, where no CUDA kernel can run; CPU tensors run on the model.")
    major, minor = torch.cuda.get_device_capability(device)
    have = f"sm_{major}{minor}a"
    if have != arch:
        raise InputError("arch", arch, f"the device {device} is {have}", f'set the schedule\'s arch to "{have}"')


@functools.cache
def _resident_clusters(device: int, cluster_size: int) -> int:
    """Clusters of this size that the device holds at once, with one CTA an SM."""
    if cluster_size == 1:
        return torch.cuda.get_device_properties(device).multi_processor_count
    return HardwareInfo(device).get_max_active_clusters(cluster_size)
