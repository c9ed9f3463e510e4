"""The operator of torch, ``leaky::linear``, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch

import tmapipe.torch as ops
from leaky.schedule import LeakyGemm

SLOPE = 0.01
Tensors = tuple[torch.Tensor, ...]


def _gradients(grads: Tensors, inputs: Tensors, outputs: Tensors) -> Tensors:
    (grad,), (x, weight, _), (y,) = grads, inputs, outputs
    of_sum = torch.where(y > 0, grad, SLOPE * grad)
    return ops.gemm(of_sum, weight.mT), ops.gemm(of_sum.mT, x.mT), of_sum.sum(0)


#: (x [m, k], weight [n, k], bias [n]) -> [m, n].
linear: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = ops.register(
    LeakyGemm(SLOPE), "leaky::linear", backward=_gradients
)
