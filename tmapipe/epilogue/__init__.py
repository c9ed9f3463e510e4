"""What becomes of an accumulator before it is stored: functions, operands, outputs."""

from tmapipe.epilogue.epilogue import ColumnSum, Epilogue, RowSum
from tmapipe.epilogue.operands import Matrix, Operands, Output, PerBatch, PerColumn, PerRow, Scalar, columns_of

__all__ = [
    "ColumnSum", "Epilogue", "Matrix", "Operands", "Output", "PerBatch", "PerColumn", "PerRow", "RowSum", "Scalar",
    "columns_of",
]  # fmt: skip
