"""Steps of training: models with batches and losses, trained by eager PyTorch, torchmdla or a peer.

This module does not import torch at import time: children import torch after their environment is set.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from harness import jax_steps

if TYPE_CHECKING:
    import torch
    from torch import nn

# Systems that are backends of torch.compile.
BACKENDS = ("inductor", "zentorch", "torchmdla")


class Task(NamedTuple):
    """Model of :data:`torchmdla.testing.models.MODELS`, or of :func:`_architectures`, with its batch and loss.

    ``rate`` is the learning rate.
    """

    model: str
    batch: int
    loss: str = "cross_entropy"
    size: int | None = None
    rate: float = 1e-3


TASKS: Mapping[str, Task] = {
    "mlp": Task("mlp", 64, "mse"),
    "resnet18": Task("resnet18", 4),
    "resnet50": Task("resnet50", 4),
    "mobilenet_v2": Task("mobilenet_v2", 4),
    "unet": Task("unet", 1, "mse"),
    "bert": Task("bert", 4, "mse", 128),
    "vit_s": Task("vit_b16", 4),
    "gpt2": Task("gpt", 1, "next_token", 128),
    "lstm": Task("lstm", 8, "mse"),
    "gru": Task("gru", 8, "mse"),
    "schnet": Task("schnet", 1, "forces", 216, rate=1e-5),
}

OPTIMISERS = ("sgd", "adamw")


class Program(NamedTuple):
    """Model in training mode, with its inputs and target.

    ``loss`` is a function from the model, or its compiled form, the inputs and the target to the loss.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    target: torch.Tensor
    loss: Callable[..., torch.Tensor]
    rate: float

    def to(self, device: Any) -> Program:
        """Return a copy on ``device``."""
        module = copy.deepcopy(self.module).to(device)
        return self._replace(
            module=module, inputs=tuple(x.to(device) for x in self.inputs), target=self.target.to(device)
        )


def build(task: Task, quick: bool) -> Program:
    """Return the program of a task, reduced if ``quick``."""
    import torch

    from torchmdla.testing.models import MODELS, SCHNET

    spec = {**MODELS, "schnet": SCHNET}[task.model]
    spec = spec.reduced() if quick else replace(spec, architecture=_architectures().get(task.model, spec.architecture))
    module = spec.build().train()
    inputs = spec.inputs(batch=8 if quick else task.batch, size=None if quick else task.size)
    generator = torch.Generator().manual_seed(1)
    if task.loss == "forces":
        return Program(module, inputs, torch.randn(inputs[0].shape, generator=generator), _loss_of_forces, task.rate)
    with torch.no_grad():
        result = _first(copy.deepcopy(module)(*inputs))
    targets = {
        "mse": lambda: torch.randn(result.shape, generator=generator),
        "cross_entropy": lambda: torch.randint(
            result.shape[-1], (result.numel() // result.shape[-1],), generator=generator
        ),
        "next_token": lambda: inputs[0][:, 1:].flatten(),
    }
    return Program(module, inputs, targets[task.loss](), _LOSSES[task.loss], task.rate)


def _architectures() -> Mapping[str, Callable[[], nn.Module]]:
    """Return the models that are smaller here than those whose inference is measured."""
    from torchmdla.testing.architectures import Bert, Vit

    return {"bert": lambda: Bert(30522, 512, 4, 768, 12), "vit_b16": lambda: Vit(224, 16, 12, 384, 6, 1000)}


def _first(results: Any) -> torch.Tensor:
    """Return the first result of a model, which has one or several."""
    tensor: torch.Tensor = results[0] if isinstance(results, tuple) else results
    return tensor


def _mse(model: Any, inputs: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.mse_loss(_first(model(*inputs)).float(), target)


def _cross_entropy(model: Any, inputs: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.cross_entropy(_first(model(*inputs)).flatten(0, -2).float(), target)


def _next_token(model: Any, inputs: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    import torch

    logits = _first(model(*inputs))[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), target)


def _loss_of_forces(model: Any, inputs: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Return the error of the forces, the negative gradient of the energy with respect to positions."""
    import torch

    positions = inputs[0].detach().requires_grad_()
    energy = model(positions, *inputs[1:])
    (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
    return torch.nn.functional.mse_loss(-gradient.float(), target)


_LOSSES = {"mse": _mse, "cross_entropy": _cross_entropy, "next_token": _next_token}


class Training(NamedTuple):
    """Copy of a program's model in training.

    ``step`` trains it by one step and returns the loss. ``free_gradients`` frees the gradients that a step leaves.
    """

    step: Callable[[], float]
    free_gradients: Callable[[], None]


def train(system: str, program: Program, optimiser: str, compile_optimiser: bool, precision: str) -> Training:
    """Return a copy of the program's model in training by ``system``."""
    import torch

    if system == "jax":
        return Training(jax_steps.train(program.module, program.inputs, program.target, program.rate), _nothing)
    module, inputs, target, loss, rate = program.to(_device(system))
    updating = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimiser](module.parameters(), lr=rate)
    update: Any = updating.step
    forward: Any = module
    if system in BACKENDS:
        forward = torch.compile(_with_own_code(module), backend=system)
        update = torch.compile(update, backend=system) if compile_optimiser else update
    elif system == "torchscript":
        forward = torch.jit.trace(module, inputs, check_trace=False)
    # PyTorch has no autocast for the lazy device.
    autocast = "cpu" if system == "lazy" else inputs[0].device.type

    def step() -> float:
        with torch.autocast(autocast, torch.bfloat16, enabled=precision == "bfloat16"):
            value = loss(forward, inputs, target)
        updating.zero_grad()
        value.backward()
        update()
        _SYNCHRONISE.get(system, _nothing)()
        return float(value.detach())

    return Training(step, updating.zero_grad)


def _with_own_code(module: nn.Module) -> nn.Module:
    """Let ``module`` run a copy of its code: Dynamo skips code for all backends after one of them breaks its graph."""
    kind = type(module)
    forward: Any = kind.forward
    copied = types.FunctionType(
        forward.__code__.replace(), forward.__globals__, "forward", forward.__defaults__, forward.__closure__
    )
    module.__class__ = type(kind.__name__, (kind,), {"forward": copied})
    return module


def _device(system: str) -> Any:
    """Return the device of a system, and prepare it."""
    import torchmdla
    from torchmdla import lazy

    if system == "acap":
        return torchmdla.acap_device()
    if system == "lazy":
        lazy.initialize()
        return "lazy"
    return "cpu"


def _mark_lazy() -> None:
    import torch._lazy

    torch._lazy.mark_step()


def _mark_acap() -> None:
    import torchmdla.acap

    torchmdla.acap.mark_step()


def _nothing() -> None:
    """Do nothing: most systems compute at once, and JAX leaves no gradients."""


_SYNCHRONISE: Mapping[str, Callable[[], None]] = {"lazy": _mark_lazy, "acap": _mark_acap}
