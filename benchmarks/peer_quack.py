"""QuACK's GEMM for Hopper with explicit configurations: cooperative and ping-pong tiles, both clusters, swapped operands
(the transpose of the problem), and split-K where there are few output tiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

PINNED = ()
COOPERATIVE = ((128, 256), (256, 128), (256, 160), (256, 192), (256, 208), (128, 224))
PINGPONG = ((128, 128), (128, 160), (128, 192), (128, 208), (192, 128))
FEW_COOPERATIVE = ((128, 256), (256, 128), (256, 192))
FEW_PINGPONG = ((128, 128), (128, 160), (128, 192))


def prepare(a: Any, b: Any, out: Any, every: bool) -> dict[str, Callable[[], object]]:
    from quack.gemm import gemm
    from quack.gemm_config import SplitKMode

    tiles = [(tile, False) for tile in (COOPERATIVE if every else FEW_COOPERATIVE)]
    tiles += [(tile, True) for tile in (PINGPONG if every else FEW_PINGPONG)]
    prefix = "promoted " if a.element_size() == 1 else ""  # `gemm` leaves the kernel's fp8_fast_accum at False
    variants: dict[str, Callable[[], object]] = {}
    for tile, pingpong in tiles:
        for cluster in ((2, 1), (1, 2)):
            for swap in (False, True) if every else (False,):
                name = f"{prefix}{_name(tile, pingpong, cluster)}{' swapped' if swap else ''}"
                operands = (b, a, out.t()) if swap else (a, b, out)
                variants[name] = functools.partial(gemm, *operands, None, None, **_options(tile, pingpong, cluster))
    for tile, pingpong in (((128, 256), False), ((128, 192), True), ((128, 128), True)):
        for split in splits(a.shape[0], b.shape[0], a.shape[1], tile, _sm_count(a))[-2 if every else -1 :]:
            for mode in SplitKMode:
                name = f"{prefix}{_name(tile, pingpong, (2, 1))} split {split} {mode.name.lower()}"
                operands = (a.unsqueeze(0), b.unsqueeze(0), out.unsqueeze(0))  # split-K wants a batch dimension
                options = {**_options(tile, pingpong, (2, 1)), "split_k": split, "split_k_mode": mode}
                variants[name] = functools.partial(gemm, *operands, None, None, **options)
    return variants


def _options(tile: tuple[int, int], pingpong: bool, cluster: tuple[int, int]) -> dict[str, Any]:
    return {
        "tile_M": tile[0],
        "tile_N": tile[1],
        "cluster_M": cluster[0],
        "cluster_N": cluster[1],
        "pingpong": pingpong,
    }


def _name(tile: tuple[int, int], pingpong: bool, cluster: tuple[int, int]) -> str:
    kind = "ping-pong" if pingpong else "cooperative"
    return f"{tile[0]}x{tile[1]} {kind} cluster {cluster[0]}x{cluster[1]}"


def splits(m: int, n: int, k: int, tile: tuple[int, int], multiprocessors: int) -> list[int]:
    """Powers of two by which k may be split so that output tiles times splits fit the device at once and every split has
    512 of k or more."""
    tiles = -(-m // tile[0]) * -(-n // tile[1])
    return [split for split in (2, 4, 8, 16, 32) if tiles * split <= multiprocessors and k // split >= 512]


def _sm_count(tensor: Any) -> int:
    import torch

    return torch.cuda.get_device_properties(tensor.device).multi_processor_count
