"""tmapipe: multi-stage, warp-specialized GPU kernels from declared pipelines.

Declare rings, stages and roles in a `Schedule`; the library derives bytes, counts, parities, fences and waits, emits CuTe
DSL for the GPU, and runs the same program on a CPU model of the hardware.
"""

from typing import Any

from tmapipe import epilogue, errors, math, schedules, tiles
from tmapipe.barrier import BarrierRing, Role, Turnstile
from tmapipe.base import Im2colBox, MulticastGroup, TensorMap
from tmapipe.base import arithmetic as dtypes
from tmapipe.base.arithmetic import Dim, DType
from tmapipe.base.tma_rules import Windows
from tmapipe.calling import export
from tmapipe.errors import InputError, PipelineError, UnsafeError
from tmapipe.loaded import load
from tmapipe.parts import ClusterSum, Exchange, ReductionScratch, RegisterTile, Scratch, SharedStage, Table, Wgmma
from tmapipe.schedule import Schedule
from tmapipe.schedules import mainloop
from tmapipe.schedules.mainloop import Operand
from tmapipe.stage import BulkLoadStage, CpAsyncLoadStage, DescriptorStage, Im2colLoadStage, L2Stage, TmaLoadStage
from tmapipe.store_pipeline import BulkStoreStage, StoredStage, ThreadStoreStage, TmaStoreStage
from tmapipe.tuning import autotune

__all__ = [
    "BarrierRing", "BulkLoadStage", "BulkStoreStage", "ClusterSum", "CpAsyncLoadStage", "DType", "DescriptorStage",
    "Dim", "Exchange", "Im2colBox", "Im2colLoadStage", "InputError", "L2Stage", "MulticastGroup", "Operand",
    "PipelineError", "ReductionScratch", "RegisterTile", "Role", "Schedule", "Scratch", "SharedStage", "StoredStage",
    "Table", "TensorMap", "ThreadStoreStage", "TmaLoadStage", "TmaStoreStage", "Turnstile", "UnsafeError", "Wgmma",
    "Windows", "autotune", "dtypes", "epilogue", "errors", "export", "load", "mainloop", "math", "schedules", "tiles",
]  # fmt: skip

#: Earlier names, and how the same is written now.
RENAMED = {
    "PeerStage": "SharedStage(group=Exchange(group, sender=, source=))",
    "ReducedStage": "SharedStage(writer=, group=Exchange(group, sender=, source=, reduce=)), with slot.<name>.reduce(to)",
    "SentStage": "SharedStage(group=Exchange(group, sender=)), with slot.<name>.send(to, values)",
}


def __getattr__(name: str) -> Any:
    if name in RENAMED:
        raise AttributeError(f"tmapipe.{name} is written tmapipe.{RENAMED[name]} now")
    raise AttributeError(f"module 'tmapipe' has no attribute {name!r}")


__version__ = "0.1.0"
