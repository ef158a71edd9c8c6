"""Time on a device; needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def timed(device: torch.device, work: Callable[[], None]) -> float:
    """Ms that `work` takes on `device`: CUDA events around its kernels there, the monotonic clock on a CPU."""
    if device.type == "cpu":
        begin = time.perf_counter()
        work()
        return 1000.0 * (time.perf_counter() - begin)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
