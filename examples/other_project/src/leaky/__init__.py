"""``max(x w^T + bias, slope (x w^T + bias))``: a shipped GEMM with another epilogue and another loading role."""

from leaky.operators import linear
from leaky.schedule import LeakyGemm

__all__ = ["LeakyGemm", "linear"]
