"""Where the time of a step goes on a GPU: the time of its kernels, by what they do."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from selfens.bench.steps import MODES, build_session, config_for, endless_rows, wait
from selfens.core.device import torch_settings
from selfens.data.dataset import Dataset

STEPS = 20
WARM_UP = 20
NAMED = 60
KINDS = {
    "convolutions, forward": "fprop",
    "convolutions, input gradient": "dgrad",
    "convolutions, weight gradient": "wgrad",
    "clearing memory": "memset|fillfunctor",
    "our kernels, forward": "^(_add_up|_pool_and_add_up|_shift_and_activate)$",
    "our kernels, backward": "^(_add_up_gradient|_write_gradient)$",
    "matrix products": "gemm|nvjet|splitk|cublas",
    "kernels of the compiler": "^triton_",
}
"""Patterns of the names that libraries and compilers give their kernels; the first that fits decides."""
OTHER = "everything else"


def kind_of(kernel: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE)), OTHER)


def time_kernels(method: str, mode: str, data: Dataset, device: torch.device) -> dict[str, Any]:
    """Microseconds per step of each kind of kernel, and the kernels that take longest by name."""
    config = config_for(method, data, device).with_overrides(MODES[mode])
    with torch_settings(config.training, device, 0):
        session = build_session(config, data, device, [])
        rows = endless_rows(session)
        for _ in range(WARM_UP):
            session.step(next(rows))
        wait(device)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(STEPS):
                session.step(next(rows))
            wait(device)
    times = {event.key: event.self_device_time_total / STEPS for event in profiler.key_averages()}
    kinds = dict.fromkeys([*KINDS, OTHER], 0.0)
    for kernel, microseconds in times.items():
        kinds[kind_of(kernel)] += microseconds
    longest = sorted(times.items(), key=lambda item: -item[1])[:NAMED]
    return {"method": method, "mode": mode, "total": sum(times.values()), "kinds": kinds, "kernels": dict(longest)}
