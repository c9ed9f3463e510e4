"""Operators of torch: `linear`, `gemm`, `softmax` and `rms_norm` by kernels, and `register` for schedules of one's own.

They are `torch.library` operators: they have gradients, and `torch.compile` takes them whole. Tensors that no kernel takes are
computed by torch itself; `fallbacks` counts such calls with their reasons, and within `kernels_only` they are errors.
"""

from tmapipe.errors import needed

__all__ = ["fallbacks", "gemm", "kernels_only", "linear", "register", "rms_norm", "softmax"]


with needed("torch", "torch", "for its operators"):
    from tmapipe.torch.operators import fallbacks, gemm, kernels_only, linear, register, rms_norm, softmax
