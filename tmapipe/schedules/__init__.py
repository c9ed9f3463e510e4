"""Ready-made schedules: run them, give them other tiles and stages, or subclass them."""

from tmapipe.schedules.addparts import AddParts
from tmapipe.schedules.attention import Attention
from tmapipe.schedules.backward import (
    LayerNormBackward,
    LogSoftmaxBackward,
    NormBackwardRows,
    RmsNormBackward,
    SoftmaxBackward,
    SoftmaxBackwardRows,
)
from tmapipe.schedules.clustersplitk import ClusterSplitK
from tmapipe.schedules.conv import Conv
from tmapipe.schedules.copy import Copy, CopyRows
from tmapipe.schedules.crossentropy import (
    CrossEntropy,
    CrossEntropyBackward,
    CrossEntropyBackwardRows,
    CrossEntropyRows,
)
from tmapipe.schedules.cumsum import Cumsum, CumsumRows
from tmapipe.schedules.elementwise import Elementwise, ElementwiseTiles
from tmapipe.schedules.elementwiserows import ElementwiseRows
from tmapipe.schedules.finishparts import FinishParts
from tmapipe.schedules.gated import GatedGemm
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.grouped import GroupedGemm
from tmapipe.schedules.layernorm import LayerNorm, LayerNormRows
from tmapipe.schedules.pingpong import PingPong
from tmapipe.schedules.reduce import Reduce, ReduceRows
from tmapipe.schedules.rmsnorm import RmsNorm, RmsNormRows
from tmapipe.schedules.rotary import Rotary, RotaryTiles
from tmapipe.schedules.softmax import LogSoftmax, LogSoftmaxRows, Softmax, SoftmaxRows
from tmapipe.schedules.splitk import SplitK
from tmapipe.schedules.streamk import StreamK
from tmapipe.schedules.transpose import Transpose, TransposeTiles

__all__ = [
    "AddParts",
    "Attention",
    "ClusterSplitK",
    "Conv",
    "Copy",
    "CopyRows",
    "CrossEntropy",
    "CrossEntropyBackward",
    "CrossEntropyBackwardRows",
    "CrossEntropyRows",
    "Cumsum",
    "CumsumRows",
    "Elementwise",
    "ElementwiseRows",
    "ElementwiseTiles",
    "FinishParts",
    "GatedGemm",
    "Gemm",
    "GroupedGemm",
    "LayerNorm",
    "LayerNormBackward",
    "LayerNormRows",
    "LogSoftmax",
    "LogSoftmaxBackward",
    "LogSoftmaxRows",
    "NormBackwardRows",
    "PingPong",
    "Reduce",
    "ReduceRows",
    "RmsNorm",
    "RmsNormBackward",
    "RmsNormRows",
    "Rotary",
    "RotaryTiles",
    "Softmax",
    "SoftmaxBackward",
    "SoftmaxBackwardRows",
    "SoftmaxRows",
    "SplitK",
    "StreamK",
    "Transpose",
    "TransposeTiles",
]
