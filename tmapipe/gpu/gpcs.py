"""Which multiprocessors of a device lie in one GPC, as `tmapipe.tiles.gpc_positions` asks.

No register names the GPC of a multiprocessor. But the CTAs of a cluster always lie in one GPC. So clusters of several sizes
are launched, each CTA writes down its multiprocessor, and multiprocessors that were seen in one cluster belong together.

On an H200, four pairs of multiprocessors form clusters only by themselves, and a GPC has half as many as the others. These are
taken as one GPC; they are near the same half of L2.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from cuda.bindings import driver

__all__ = ["called", "clusters_of", "gpcs", "joined"]

SIZES = (2, 3, 4, 5, 6, 7, 8, 16)  # CTAs of a cluster; more than 8 is not portable
SHARED_BYTES = 128 << 10  # so that each multiprocessor gets one CTA

#: Each CTA writes its multiprocessor's number and stays for 20 microseconds, so that no two CTAs share one.
PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry note_multiprocessor(.param .u64 numbers) {
    .reg .pred %early;
    .reg .b32 %cta, %multiprocessor;
    .reg .b64 %to, %offset, %begun, %now;
    mov.u64 %begun, %globaltimer;
    ld.param.u64 %to, [numbers];
    mov.u32 %cta, %ctaid.x;
    mul.wide.u32 %offset, %cta, 4;
    add.u64 %to, %to, %offset;
    mov.u32 %multiprocessor, %smid;
    st.global.u32 [%to], %multiprocessor;
stay:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begun;
    setp.lt.u64 %early, %now, 20000;
    @%early bra stay;
    ret;
}
"""


@functools.cache
def gpcs(device: int) -> tuple[tuple[int, ...], ...]:
    """The multiprocessors of a CUDA device, by GPC. Measured once per process."""
    with torch.cuda.device(device):
        count = torch.cuda.get_device_properties(device).multi_processor_count
        numbers = torch.empty(count, dtype=torch.int32, device="cuda")
        module = called(driver.cuModuleLoadData(PTX))
        kernel = called(driver.cuModuleGetFunction(module, b"note_multiprocessor"))
        attribute = driver.CUfunction_attribute
        for kind, value in (
            (attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, SHARED_BYTES),
            (attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
        ):
            called(driver.cuFuncSetAttribute(kernel, kind, value))
        clusters = [cluster for size in SIZES for cluster in clusters_of(kernel, size, numbers)]
        called(driver.cuModuleUnload(module))
    return joined(count, clusters)


def joined(count: int, clusters: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The numbers below *count* in sets, such that each of *clusters* lies in one set; sorted."""
    of = {number: {number} for number in range(count)}
    for first, *others in clusters:
        for other in others:
            if of[other] is not of[first]:
                of[first] |= of[other]
                of |= dict.fromkeys(of[other], of[first])
    return tuple(sorted({tuple(sorted(found)) for found in of.values()}))


def clusters_of(kernel: Any, size: int, numbers: torch.Tensor) -> list[list[int]]:
    """The multiprocessors of each cluster, for as many clusters of *size* CTAs as fit on the device at once.

    None if the device has no clusters of that size.
    """
    config, cluster = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = size, 1, 1
    config.gridDimX, config.gridDimY, config.gridDimZ = len(numbers) // size * size, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.sharedMemBytes = SHARED_BYTES
    config.attrs, config.numAttrs = [cluster], 1
    status, *most = driver.cuOccupancyMaxActiveClusters(kernel, config)
    if status != driver.CUresult.CUDA_SUCCESS or not most[0]:
        return []
    fit = most[0]
    config.gridDimX, config.hStream = fit * size, torch.cuda.current_stream().cuda_stream
    called(driver.cuLaunchKernelEx(config, kernel, ((numbers.data_ptr(),), (ctypes.c_void_p,)), 0))
    found = numbers[: fit * size].tolist()
    return [found[i : i + size] for i in range(0, len(found), size)]


def called(result: tuple[Any, ...]) -> Any:
    """What a driver call returned. Raises `RuntimeError` if it failed."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the CUDA driver answered {status.name} when it was asked about the device")
    return values[0] if values else None
