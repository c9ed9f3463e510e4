"""tmapipe: multi-stage, warp-specialized GPU kernels from declared pipelines.

Declare rings, stages and roles in a `Schedule`; the library derives bytes, counts, parities, fences and waits, emits CuTe
DSL for the GPU, and runs the same program on a CPU model of the hardware.
"""

from tmapipe import epilogue, math, schedules
from tmapipe.barrier import BarrierRing
from tmapipe.bulk_stage import BulkLoadStage
from tmapipe.bulk_store import BulkStoreStage
from tmapipe.calling import export
from tmapipe.cluster_sum import ClusterSum
from tmapipe.cp_async_stage import CpAsyncLoadStage
from tmapipe.descriptor_stage import DescriptorStage
from tmapipe.dim import Dim
from tmapipe.dtypes import DType, bf16, fp8_e4m3, fp8_e5m2, fp16, fp32, fp64, int8, int16, int32, int64, tf32
from tmapipe.errors import (
    DeadlockError,
    HazardError,
    InputError,
    MissingGpuError,
    MissingPackageError,
    PipelineError,
    ScopeError,
    UnsafeError,
)
from tmapipe.im2col_stage import Im2colLoadStage
from tmapipe.l2_stage import L2Stage
from tmapipe.loaded import load
from tmapipe.matmul import Wgmma
from tmapipe.multicast import MulticastGroup
from tmapipe.peer_stage import PeerStage, ReducedStage, SentStage
from tmapipe.reduction_scratch import ReductionScratch
from tmapipe.register_tile import RegisterTile
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.schedules import mainloop
from tmapipe.schedules.operand import Operand
from tmapipe.scratch import Scratch
from tmapipe.stage import SharedStage, TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.stored_stage import StoredStage
from tmapipe.table import Table
from tmapipe.tensor_map import Im2colBox, TensorMap
from tmapipe.thread_store import ThreadStoreStage
from tmapipe.tiles.dynamic import DynamicTiles
from tmapipe.tiles.gpc import GpcTiles
from tmapipe.tiles.grid import GridTiles
from tmapipe.tiles.grouped import GroupedTiles
from tmapipe.tiles.persistent import PersistentTiles
from tmapipe.tiles.raster import Backwards, Columns, Grouped, Hilbert, Snake
from tmapipe.tiles.splitk import SplitKTiles
from tmapipe.tiles.streamk import StreamKTiles
from tmapipe.tuning.autotune import autotune
from tmapipe.turnstile import Turnstile
from tmapipe.windows import Windows

__version__ = "0.1.0"

__all__ = [
    "Backwards",
    "BarrierRing",
    "BulkLoadStage",
    "BulkStoreStage",
    "ClusterSum",
    "Columns",
    "CpAsyncLoadStage",
    "DType",
    "DeadlockError",
    "DescriptorStage",
    "Dim",
    "DynamicTiles",
    "GpcTiles",
    "GridTiles",
    "Grouped",
    "GroupedTiles",
    "HazardError",
    "Hilbert",
    "Im2colBox",
    "Im2colLoadStage",
    "InputError",
    "L2Stage",
    "MissingGpuError",
    "MissingPackageError",
    "MulticastGroup",
    "Operand",
    "PeerStage",
    "PersistentTiles",
    "PipelineError",
    "ReducedStage",
    "ReductionScratch",
    "RegisterTile",
    "Role",
    "Schedule",
    "ScopeError",
    "Scratch",
    "SentStage",
    "SharedStage",
    "Snake",
    "SplitKTiles",
    "StoredStage",
    "StreamKTiles",
    "Table",
    "TensorMap",
    "ThreadStoreStage",
    "TmaLoadStage",
    "TmaStoreStage",
    "Turnstile",
    "UnsafeError",
    "Wgmma",
    "Windows",
    "autotune",
    "bf16",
    "epilogue",
    "export",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp16",
    "fp32",
    "fp64",
    "int8",
    "int16",
    "int32",
    "int64",
    "load",
    "mainloop",
    "math",
    "schedules",
    "tf32",
]
