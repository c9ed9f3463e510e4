"""The clock of `tmapipe.tuning.timing` for a CUDA device: events around each launch, after a flush of the L2 cache."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

__all__ = ["CudaClock"]

FLUSH_BYTES = 256 << 20  # more than four times an H200's L2 cache of 60 MB
HEAD_START_CYCLES = 4_000_000  # the device idles for about 2 ms, in which the host queues the batch


class CudaClock:
    """Times kernels by the device's own clock. The cost of a launch on the host is hidden behind work of the device.

    Args:
        flush: What is done before each launch: "write" zeroes a large buffer, which leaves dirty lines that the launch must
            evict; "read" reads it, which leaves clean lines; "none" leaves the cache warm.
        device: As torch names it.
    """

    def __init__(self, flush: str = "write", device: str = "cuda"):
        if flush not in ("write", "read", "none"):
            raise ValueError(f"flush={flush!r}: give 'write', 'read' or 'none'")
        self.mode = flush
        self.buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device=device)

    def rest(self, seconds: float) -> None:
        torch.cuda.synchronize()
        time.sleep(seconds)

    def batch(self, run: Callable[[], object], launches: int) -> list[float]:
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(launches)]
        torch.cuda.synchronize()
        torch.cuda._sleep(HEAD_START_CYCLES)
        for start, end in pairs:
            self._flush()
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in pairs]

    def span(self, run: Callable[[], object], seconds: float) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        once = max(self.batch(run, 1)[0], 1.0)
        launches = max(1, round(seconds * 1e6 / once))
        start.record()
        for _ in range(launches):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / launches

    def _flush(self) -> None:
        if self.mode == "write":
            self.buffer.zero_()
        elif self.mode == "read":
            self.buffer.max()
