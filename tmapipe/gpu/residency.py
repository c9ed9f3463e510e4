"""How many clusters a device holds at once: what the driver says of a kernel that does nothing and takes all shared memory."""

from __future__ import annotations

import functools

import torch
from cuda.bindings import driver

from tmapipe.gpu.gpcs import called

__all__ = ["resident_clusters"]

PTX = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\0"
THREADS = 128  # of a CTA, of which one fits on a multiprocessor: it takes all shared memory


@functools.cache
def resident_clusters(device: int, cluster_size: int) -> int:
    """Clusters of this size that the device holds at once, with one CTA per multiprocessor."""
    if cluster_size == 1:
        return torch.cuda.get_device_properties(device).multi_processor_count
    number = called(driver.cuDeviceGet(device))
    called(driver.cuCtxPushCurrent(called(driver.cuDevicePrimaryCtxRetain(number))))  # torch's, in any thread
    try:
        return _asked(number, cluster_size)
    finally:
        called(driver.cuCtxPopCurrent())
        called(driver.cuDevicePrimaryCtxRelease(number))


def _asked(number: driver.CUdevice, cluster_size: int) -> int:
    most = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    shared = called(driver.cuDeviceGetAttribute(most, number))
    module = called(driver.cuModuleLoadData(PTX))
    kernel = called(driver.cuModuleGetFunction(module, b"nothing"))
    attribute = driver.CUfunction_attribute
    for kind, value in (
        (attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared),
        (attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
    ):
        called(driver.cuFuncSetAttribute(kernel, kind, value))
    config, cluster = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = cluster_size, 1, 1
    config.gridDimX, config.gridDimY, config.gridDimZ = cluster_size, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
    config.sharedMemBytes, config.attrs, config.numAttrs = shared, [cluster], 1
    found = called(driver.cuOccupancyMaxActiveClusters(kernel, config))
    called(driver.cuModuleUnload(module))
    return int(found)
