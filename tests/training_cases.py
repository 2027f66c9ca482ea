"""Training in several processes, by eager PyTorch and compiled: wrappings of a model, and the training of one rank.

The processes of ``ranks.py`` import this.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from training_models import CLASSES, MODELS, OPTIMISERS, Model, Recomputed

import torchmdla
from torchmdla.testing.compare import assert_matches

STEPS = 50

# --- wrappings -------------------------------------------------------------------------------------------------------

# Returns the program that a rank trains, from its model. It is compiled, or runs eager operators.
Wrap = Callable[[nn.Module, bool], Any]


def compile_if(compiled: bool, module: nn.Module) -> Any:
    return torch.compile(module, backend="torchmdla") if compiled else module


def outside_ddp(**options: Any) -> Wrap:
    return lambda model, compiled: compile_if(compiled, DistributedDataParallel(model, **options))


def inside_ddp(**options: Any) -> Wrap:
    return lambda model, compiled: DistributedDataParallel(compile_if(compiled, model), **options)


def recomputed(model: nn.Module, compiled: bool) -> Any:
    blocks: Any = model.blocks
    for place, block in enumerate(blocks):
        blocks[place] = Recomputed(block)
    return compile_if(compiled, DistributedDataParallel(model))


def sharded(**options: Any) -> Wrap:
    """Return a wrapping by FSDP2, with each block a separate unit.

    All of it is compiled, except code that FSDP's hooks hide from Dynamo.
    """

    def wrap(model: nn.Module, compiled: bool) -> Any:
        for part in (*model.blocks, model):  # type: ignore[misc]
            fully_shard(part, **options)
        return compile_if(compiled, model)

    return wrap


def sharded_by_block(model: nn.Module, compiled: bool) -> Any:
    """Wrap blocks that are compiled in place by FSDP2, as PyTorch's own trainers do."""
    for block in model.blocks:  # type: ignore[union-attr]
        if compiled:
            block.compile(backend="torchmdla")
        fully_shard(block)
    return fully_shard(model)


def frozen_below(model: nn.Module, compiled: bool) -> Any:
    """Train only the last block and the head."""
    model.first.requires_grad_(False)  # type: ignore[operator, union-attr]
    model.blocks[0].requires_grad_(False)  # type: ignore[operator, index]
    return sharded_by_block(model, compiled)


def replicated_shards(model: nn.Module, compiled: bool) -> Any:
    """Return the model for two groups of processes. Each group has a whole model."""
    shape = (2, distributed.get_world_size() // 2)
    mesh = distributed.init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
    return sharded(mesh=mesh)(model, compiled)


WRAPPINGS: dict[str, Wrap] = {
    "compile(DDP)": outside_ddp(),
    "DDP(compile)": inside_ddp(),
    "compile(DDP), buckets": outside_ddp(bucket_cap_mb=1),
    "compile(DDP), static graph": outside_ddp(static_graph=True),
    "DDP(compile), static graph": inside_ddp(static_graph=True),
    "compile(DDP), unused parameters": outside_ddp(find_unused_parameters=True),
    "DDP(compile), unused parameters": inside_ddp(find_unused_parameters=True),
    "compile(DDP), gradients in buckets": outside_ddp(gradient_as_bucket_view=True),
    "compile(DDP), recomputed": recomputed,
    "compile(FSDP)": sharded(),
    "compile(FSDP), replicated": replicated_shards,
    "FSDP(compile)": sharded_by_block,
    "FSDP(compile), frozen": frozen_below,
    "compile(FSDP), not resharded": sharded(reshard_after_forward=False),
    "compile(FSDP), bfloat16": sharded(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)),
}

# --- training of a rank ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Training options of one test.

    Attributes:
        wrapping, model, optimiser: names in the tables above.
        accumulates: two batches make a step. After the first of them ranks do not exchange gradients.
        evaluates: every ten steps, in eval mode without gradients. These losses count, too.
        restores: the state saved after 20 steps is loaded after 30, into the present model and optimiser.
        precision: that of the comparison, where it is not the dtype's.
    """

    wrapping: str
    model: str
    optimiser: str
    accumulates: bool = False
    evaluates: bool = False
    restores: bool = False
    precision: str | None = None


@dataclass(frozen=True)
class Activity:
    """Counts of a rank during compiled training.

    They are the graphs that Dynamo captured, the graphs that the backend received, and :func:`torchmdla.stats`.
    """

    captured: int
    graphs: int
    specialisations: int
    compiled_calls: int
    fallbacks: dict[str, int]


def train_both(case: Case) -> Activity:
    """Train by eager operators and compiled, and compare all losses and the trained parameters.

    Raises:
        AssertionError: they differ, or the ranks do not agree on the parameters.
    """
    expected = _train(case, compiled=False)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torchmdla.reset_stats()
    losses, state = _train(case, compiled=True)
    # Rounding errors of a step persist in all later steps.
    layers = MODELS[case.model].layers * STEPS
    assert_matches(losses, expected[0], layers=layers, precision=case.precision)
    assert_matches(state, expected[1], layers=layers, precision=case.precision)
    assert losses[-5:].mean() < losses[:5].mean()
    assert_ranks_agree(state)
    return activity()


def activity() -> Activity:
    stats = torchmdla.stats()
    return Activity(
        captured=torch._dynamo.utils.counters["stats"]["unique_graphs"],
        graphs=torch._dynamo.utils.counters["aot_autograd"]["total"],
        specialisations=stats.specialisations,
        compiled_calls=stats.compiled_calls,
        fallbacks=stats.fallbacks,
    )


def _train(case: Case, compiled: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the losses, and the parameters and buffers.

    The losses are those of the step's batch, then those of an evaluation if there is one.
    """
    torch.manual_seed(1)
    spec = MODELS[case.model]
    module = spec.build()
    program = WRAPPINGS[case.wrapping](module, compiled)
    optimiser = OPTIMISERS[case.optimiser](program.parameters())
    batches = batches_of(spec)
    losses: list[float] = []
    saved = None
    for step in range(STEPS):
        ends = not case.accumulates or step % 2 == 1
        with gradients_stay(program, not ends):
            losses.append(_backward(program, *next(batches)))
        if ends:
            optimiser.step()
            optimiser.zero_grad()
        if case.restores and step == 19:
            saved = get_state_dict(module, optimiser, options=_WHOLE)
        if case.restores and step == 29:
            assert saved is not None
            set_state_dict(module, optimiser, model_state_dict=saved[0], optim_state_dict=saved[1], options=_WHOLE)
        if case.evaluates and step % 10 == 9:
            losses.append(_evaluate(program, *next(batches)))
    return torch.tensor(losses), whole_state(module)


# A checkpoint as one process would write it.
_WHOLE = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def batches_of(spec: Model) -> Iterator[tuple[Tensor, Tensor]]:
    """Return four batches that repeat. They differ in each rank."""
    torch.manual_seed(100 + distributed.get_rank())
    rows = [spec.rows[number % len(spec.rows)] for number in range(4)]
    return itertools.cycle([(spec.draw(count), torch.randint(CLASSES, (count,))) for count in rows])


def _backward(program: Any, x: Tensor, labels: Tensor) -> float:
    loss = functional.cross_entropy(program(x), labels)
    loss.backward()
    return loss.item()


def _evaluate(program: Any, x: Tensor, labels: Tensor) -> float:
    program.eval()
    with torch.no_grad():
        loss = functional.cross_entropy(program(x), labels)
    program.train()
    return loss.item()


def gradients_stay(program: Any, stay: bool) -> AbstractContextManager[None]:
    """Return a context in which a backward pass keeps each rank's own gradients if ``stay``."""
    if hasattr(program, "set_requires_gradient_sync"):  # FSDP2
        program.set_requires_gradient_sync(not stay)
        return nullcontext()
    return program.no_sync() if stay else nullcontext()


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers of a model, gathered if they are sharded."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: getattr(tensor, "full_tensor", tensor.clone)().detach() for name, tensor in named}


def assert_ranks_agree(state: dict[str, Tensor]) -> None:
    """Check that trained values agree bit by bit. Each rank has its own statistics of batches."""
    parameters = torch.cat(
        [tensor.flatten() for name, tensor in state.items() if "running" not in name and tensor.is_floating_point()]
    )
    others = [torch.empty_like(parameters) for _ in range(distributed.get_world_size())]
    distributed.all_gather(others, parameters)
    assert all(torch.equal(other.view(torch.int32), parameters.view(torch.int32)) for other in others)
