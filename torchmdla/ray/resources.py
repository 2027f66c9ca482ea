"""CPUs that Ray assigned to an actor."""

from __future__ import annotations

import math

import ray
import torch


def use_assigned_threads() -> None:
    """Set PyTorch's number of threads to the number of CPUs of this actor; a fraction counts as one.

    Outside an actor, nothing changes.
    """
    if not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return
    # An actor that requests no CPUs has no entry.
    torch.set_num_threads(max(1, math.ceil(context.get_assigned_resources().get("CPU", 0.0))))
