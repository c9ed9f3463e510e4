"""What an epilogue takes and gives besides the accumulator and the output."""

from tmapipe.epilogue.operands import Matrix, Operands, PerColumn, PerRow, Scalar, columns_of, spread
from tmapipe.epilogue.reductions import ColumnSum, RowSum

__all__ = ["ColumnSum", "Matrix", "Operands", "PerColumn", "PerRow", "RowSum", "Scalar", "columns_of", "spread"]
