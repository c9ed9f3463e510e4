"""Where no kernel takes a call: torch does, which is counted, and said once with the reason."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tmapipe.bind.tensors import signature
from tmapipe.errors import InputError

__all__ = ["eager", "fallbacks", "kernels_only", "otherwise", "reason_of", "settings", "where"]


class _Settings:
    """model: CPU tensors run on the model, which is slow, and not by torch. forbidden: how many `kernels_only` are open."""

    model = False
    forbidden = 0


settings = _Settings()
_counted: Counter[str] = Counter()


def fallbacks() -> dict[str, int]:
    """How often torch has computed what no kernel takes: ``operator: reason`` -> calls, since the process began."""
    return dict(_counted)


@contextlib.contextmanager
def kernels_only() -> Iterator[None]:
    """Within it, a call that no kernel takes raises `InputError`, in all threads: gradients are computed in others."""
    settings.forbidden += 1
    try:
        yield
    finally:
        settings.forbidden -= 1


def otherwise(operator: str, reason: str, run: Callable[[], Any]) -> Any:
    """What *run* computes with torch, in the place of an operator's kernel.

    Raises:
        InputError: Within `kernels_only`.
    """
    if settings.forbidden:
        fix = "pass other tensors, or leave kernels_only()"
        raise InputError(f"tmapipe.torch.{operator}", reason, "is computed by a kernel within kernels_only()", fix)
    said = f"{operator}: {reason}"
    _counted[said] += 1
    if _counted[said] == 1:
        warnings.warn(f"tmapipe.torch.{said}. torch computes it; fallbacks() counts.", RuntimeWarning, stacklevel=3)
    return run()


def reason_of(error: InputError) -> str:
    """Why a kernel takes no such tensors, the same for all of them."""
    return f"{error.argument} {error.rule}"


def eager(*tensors: Any) -> bool:
    """Whether a kernel can be launched for these at once: nothing traces them, and nobody asks for their gradients."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return signature(tensors, None) is not None


def where(tensor: Any) -> str | None:
    """Why no kernel runs where a tensor lies, or None."""
    if tensor.is_cuda or (settings.model and tensor.device.type == "cpu"):
        return None
    return f"tensors on {tensor.device.type}"
