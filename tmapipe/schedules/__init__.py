"""Ready-made schedules: run them, give them other tiles and stages, or subclass them."""

from tmapipe.schedules.attention import Attention, Score
from tmapipe.schedules.copy import Copy, CopyRuns
from tmapipe.schedules.crossentropy import (
    CrossEntropy,
    CrossEntropyBackward,
    CrossEntropyBackwardRows,
    CrossEntropyRows,
    Cumsum,
    CumsumRows,
    LogSoftmax,
    LogSoftmaxRows,
    Reduce,
    ReduceRows,
    Softmax,
    SoftmaxRows,
)
from tmapipe.schedules.dequant import DequantGemm, DequantGemv
from tmapipe.schedules.elementwise import Elementwise, ElementwiseTiles
from tmapipe.schedules.fused import AddParts
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.gemms import (
    ClusterSplitK,
    Conv,
    GatedGemm,
    GroupedGemm,
    PingPong,
    SplitK,
    StreamK,
    SymmetricGemm,
)
from tmapipe.schedules.mainloop import FinishParts
from tmapipe.schedules.normgradients import LayerNormBackward, NormBackwardRows, RmsNormBackward
from tmapipe.schedules.norms import (
    ElementwiseRows,
    LayerNorm,
    LayerNormRows,
    LogSoftmaxBackward,
    RmsNorm,
    RmsNormRows,
    SoftmaxBackward,
    SoftmaxBackwardRows,
)
from tmapipe.schedules.places import CopyElements, CopyPlaces
from tmapipe.schedules.rotary import Rotary, RotaryRows, RotaryTiles
from tmapipe.schedules.splitattention import CombineParts, SplitAttention, WindowAttention
from tmapipe.schedules.transpose import Transpose, TransposeRows, TransposeTiles

__all__ = [
    "AddParts", "Attention", "ClusterSplitK", "CombineParts", "Conv", "Copy", "CopyElements", "CopyPlaces", "CopyRuns",
    "CrossEntropy", "CrossEntropyBackward", "CrossEntropyBackwardRows", "CrossEntropyRows", "Cumsum", "CumsumRows",
    "DequantGemm", "DequantGemv", "Elementwise", "ElementwiseRows", "ElementwiseTiles", "FinishParts", "GatedGemm", "Gemm",
    "GroupedGemm", "LayerNorm", "LayerNormBackward", "LayerNormRows", "LogSoftmax", "LogSoftmaxBackward", "LogSoftmaxRows",
    "NormBackwardRows", "PingPong", "Reduce", "ReduceRows", "RmsNorm", "RmsNormBackward", "RmsNormRows", "Rotary",
    "RotaryRows", "RotaryTiles", "Score", "Softmax", "SoftmaxBackward", "SoftmaxBackwardRows", "SoftmaxRows",
    "SplitAttention", "SplitK", "StreamK", "SymmetricGemm", "Transpose", "TransposeRows", "TransposeTiles",
    "WindowAttention",
]  # fmt: skip
