"""Operators of torch: `linear`, `gemm`, `softmax`, `rms_norm` and `scaled_dot_product_attention` by kernels, and `register`
for schedules of one's own.

They are `torch.library` operators: they have gradients (attention has none), and `torch.compile` takes them whole. Tensors
that no kernel takes are computed by torch itself; `fallbacks` counts such calls with their reasons, and within `kernels_only`
they are errors.
"""

from tmapipe.errors import needed

__all__ = [
    "fallbacks",
    "gemm",
    "kernels_only",
    "linear",
    "register",
    "rms_norm",
    "scaled_dot_product_attention",
    "softmax",
]


with needed("torch", "torch", "for its operators"):
    from tmapipe.torch.attention import scaled_dot_product_attention
    from tmapipe.torch.operators import fallbacks, gemm, kernels_only, linear, register, rms_norm, softmax
