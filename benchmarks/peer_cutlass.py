"""CUTLASS's Hopper examples in CuTe DSL, imported: ``dense_gemm_persistent`` and, for promoted fp8, ``dense_gemm_fp8_2xacc``.

They must be importable as top-level modules: put CUTLASS's ``examples/.../hopper`` folder on PYTHONPATH. Compiled once a
process for a type and a configuration; shapes are dynamic, as in the examples' own `run`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import torch

from benchmarks.peers import Absent


@attrs.frozen
class Config:
    """tile: (m, n) elements of a CTA (k is four wgmma deep); cluster: CTAs along (m, n); swizzle, along_m: the order of
    output tiles."""

    tile: tuple[int, int] = (128, 256)
    cluster: tuple[int, int] = (2, 1)
    swizzle: int = 1
    along_m: bool = True

    def __str__(self) -> str:
        order = "m" if self.along_m else "n"
        return f"{self.tile[0]}x{self.tile[1]} cluster {self.cluster[0]}x{self.cluster[1]} order {order}{self.swizzle}"


FEW = (
    Config(),
    Config(swizzle=8),
    Config(cluster=(1, 2)),
    Config(cluster=(1, 1)),
    Config((128, 128)),
    Config((128, 128), (1, 1)),
    Config((64, 64), (1, 1)),
)
EVERY = (
    *FEW,
    Config(swizzle=8, along_m=False),
    Config(cluster=(1, 2), swizzle=8),
    Config(cluster=(2, 2)),
    Config((128, 128), (1, 2)),
    Config((128, 64), (1, 1)),
    Config((128, 64)),
)
PINNED = (str(Config()), f"fast {Config()}")  # what tmapipe is compared with at an equal tile and cluster


def prepare(a: Any, b: Any, out: Any, every: bool) -> dict[str, Callable[[], object]]:
    if a.element_size() > 1:
        return {str(config): _lazy(a, b, out, config) for config in (EVERY if every else FEW)}
    variants = {f"fast {config}": _lazy(a, b, out, config) for config in (EVERY if every else FEW)}
    variants[f"promoted 2xacc {Config()}"] = _lazy(a, b, out, Config(), promoted=True)
    return variants


def compile_cubin(config: Config, *, arch: str = "sm_90a") -> bytes:
    """The bf16 kernel's cubin for *arch*; needs no GPU."""
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream

    sample = _as_cute(torch.empty(256, 512, dtype=torch.bfloat16))
    gemm = _example(config)
    clusters = 132 // (config.cluster[0] * config.cluster[1])
    options = f"--gpu-arch {arch} --keep-cubin"
    return cute.compile(gemm, sample, sample, sample, clusters, make_fake_stream(), options=options).__cubin__


def _lazy(a: Any, b: Any, out: Any, config: Config, promoted: bool = False) -> Callable[[], object]:
    """Compiles at the first launch, so that a configuration that does not compile fails alone."""
    ready: list[Callable[[], object]] = []

    def run() -> None:
        if not ready:
            ready.append(_bind(a, b, out, config, promoted))
        ready[0]()

    return run


def _bind(a: Any, b: Any, out: Any, config: Config, promoted: bool) -> Callable[[], object]:
    import cuda.bindings.driver as cuda

    tensors = [_as_cute(t) for t in (a, b, out)]
    if promoted:
        tensors += [_as_cute_vector(torch.ones(1, device=a.device)) for _ in range(2)]
    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
    return functools.partial(_compiled(config, promoted, a.dtype, out.dtype, tensors, stream), *tensors, stream)


_cache: dict[Any, Any] = {}


def _compiled(config: Config, promoted: bool, dtype: Any, out_dtype: Any, tensors: list[Any], stream: Any) -> Any:
    import cutlass
    import cutlass.cute as cute

    key = (config, promoted, dtype, out_dtype)
    if key not in _cache:
        clusters = cutlass.utils.HardwareInfo().get_max_active_clusters(config.cluster[0] * config.cluster[1])
        gemm = _example_2xacc(config) if promoted else _example(config)
        _cache[key] = cute.compile(gemm, *tensors, clusters, stream)
    return _cache[key]


def _example(config: Config) -> Any:
    import cutlass

    try:
        from dense_gemm_persistent import HopperWgmmaGemmPersistentKernel
    except ImportError as error:
        raise Absent("CUTLASS's example dense_gemm_persistent.py is not on PYTHONPATH") from error
    return HopperWgmmaGemmPersistentKernel(cutlass.Float32, config.tile, config.cluster, config.swizzle, config.along_m)


def _example_2xacc(config: Config) -> Any:
    try:
        from dense_gemm_fp8_2xacc import HopperFP8WarpSpecialized2xAccGemmKernel
    except ImportError as error:
        raise Absent("CUTLASS's example dense_gemm_fp8_2xacc.py is not on PYTHONPATH") from error
    return HopperFP8WarpSpecialized2xAccGemmKernel(config.tile, config.cluster, config.swizzle, config.along_m)


def _as_cute(tensor: Any) -> Any:
    """A (rows, columns, 1) tensor with dynamic sizes, columns contiguous; the batch's stride is a matrix, as TMA wants."""
    import cutlass
    from cutlass.cute.runtime import from_dlpack

    fp8 = {torch.float8_e4m3fn: cutlass.Float8E4M3FN, torch.float8_e5m2: cutlass.Float8E5M2}.get(tensor.dtype)
    batched = (tensor.view(torch.uint8) if fp8 else tensor).unsqueeze(0).permute(1, 2, 0)
    wrapped = from_dlpack(batched, assumed_align=16)
    if fp8:
        wrapped.element_type = fp8
    return wrapped.mark_layout_dynamic(leading_dim=1)


def _as_cute_vector(tensor: Any) -> Any:
    from cutlass.cute.runtime import from_dlpack

    return from_dlpack(tensor, assumed_align=16).mark_layout_dynamic(leading_dim=0)
