"""tmapipe: multi-stage, warp-specialized GPU kernels from declared pipelines.

Declare rings, stages and roles in a `Schedule`; the library derives bytes, counts, parities, fences and waits, emits CuTe
DSL for the GPU, and runs the same program on a CPU model of the hardware.
"""

from tmapipe import epilogue, math, schedules
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import (
    Dim,
    DType,
    bf16,
    fp8_e4m3,
    fp8_e5m2,
    fp16,
    fp32,
    fp64,
    int8,
    int16,
    int32,
    int64,
    tf32,
)
from tmapipe.base.tensor_map import Im2colBox, MulticastGroup, TensorMap
from tmapipe.base.tma_rules import Windows
from tmapipe.calling import export
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
from tmapipe.loaded import load
from tmapipe.parts.matmul import ClusterSum, RegisterTile, Wgmma
from tmapipe.parts.stages import (
    DescriptorStage,
    L2Stage,
    PeerStage,
    ReducedStage,
    ReductionScratch,
    Scratch,
    SentStage,
    Table,
    Turnstile,
)
from tmapipe.schedule import Schedule
from tmapipe.schedules import mainloop
from tmapipe.schedules.mainloop import Operand
from tmapipe.stage import BulkLoadStage, CpAsyncLoadStage, Im2colLoadStage, SharedStage, TmaLoadStage
from tmapipe.store_pipeline import BulkStoreStage, StoredStage, ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import DynamicTiles, GpcTiles
from tmapipe.tiles.grouped import GroupedTiles, SplitKTiles, StreamKTiles
from tmapipe.tiles.persistent import Backwards, Columns, GridTiles, Grouped, Hilbert, PersistentTiles, Snake
from tmapipe.tuning.autotune import autotune

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


__version__ = "0.1.0"
