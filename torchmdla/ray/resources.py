"""The processors that Ray assigned to an actor."""

from __future__ import annotations

import math

import ray
import torch


def use_assigned_threads() -> None:
    """Has PyTorch compute with as many threads as the actor that this runs in has CPUs: a part of one is one. Outside
    of an actor nothing is changed."""
    if not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return
    # An actor that asks for none has no entry.
    torch.set_num_threads(max(1, math.ceil(context.get_assigned_resources().get("CPU", 0.0))))
