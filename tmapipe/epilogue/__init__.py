"""What becomes of an accumulator before it is stored: functions, operands, outputs."""

from tmapipe.epilogue.epilogue import Epilogue
from tmapipe.epilogue.operands import Matrix, Operands, PerBatch, PerColumn, PerRow, Scalar, columns_of
from tmapipe.epilogue.outputs import Output
from tmapipe.epilogue.reductions import ColumnSum, RowSum

__all__ = [
    "ColumnSum", "Epilogue", "Matrix", "Operands", "Output", "PerBatch", "PerColumn", "PerRow", "RowSum", "Scalar",
    "columns_of",
]  # fmt: skip
