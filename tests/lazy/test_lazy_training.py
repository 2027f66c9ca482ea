"""Training on PyTorch's lazy device: it agrees with the CPU."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest
import torch
import torch._lazy
from child_process import run_script
from torch import nn
from torch.nn import functional

import torchmdla
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("lazy_device")

EXAMPLES = Path(__file__).parents[2] / "examples"

OPTIMISERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
}


# PyTorch has kernels of the lazy device for these operators. Elsewhere it decomposes them to compute derivatives.
TAKEN_APART = {
    "std": lambda x: torch.ops.aten.std(x),
    "std.dim": lambda x: torch.ops.aten.std.dim(x, [1]),
    "logdet": lambda x: torch.logdet(x @ x.t() + torch.eye(4, device=x.device)),
    "svd": lambda x: torch.svd(x)[1],
    "pinv": lambda x: torch.linalg.pinv(x),
    "silu, twice": lambda x: torch.autograd.grad(functional.silu(x).sum(), x, create_graph=True)[0],
}


@pytest.mark.parametrize("name", TAKEN_APART)
def test_derivatives_of_decomposed_operators(name):
    def gradient(device):
        x = torch.linspace(-2, 2, 16).sin().view(4, 4).to(device).requires_grad_()
        TAKEN_APART[name](x).sum().backward()
        return x.grad.cpu()

    assert_matches(gradient("lazy"), gradient("cpu"), layers=16, strides=False)


def digits():
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    return torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def trained(make, loss_of, optimiser, device, steps):
    torch.manual_seed(0)
    model = make().to(device)
    steps_of = optimiser(model.parameters())
    losses = []
    for step in range(steps):
        steps_of.zero_grad()
        loss = loss_of(model, step, device)
        loss.backward()
        steps_of.step()
        if device == "lazy":
            torch._lazy.mark_step()
        losses.append(loss.item())
        if step == steps // 2:
            torchmdla.reset_stats()
    return losses


def agrees(make, loss_of, optimiser, steps=10):
    expected = trained(make, loss_of, optimiser, "cpu", steps)
    losses = trained(make, loss_of, optimiser, "lazy", steps)
    assert torchmdla.stats().specialisations == 0, "a step compiled again"
    assert torchmdla.stats().lazy.graphs == 0, "a step was another graph"
    assert max(abs(loss - other) for loss, other in zip(losses, expected, strict=True)) <= 1e-6
    assert expected[-1] < expected[0]


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.sampled(1)
def test_training_on_digits(optimiser):
    images, labels = digits()

    def loss_of(model, step, device):
        batch = slice(32 * step, 32 * step + 32)
        return functional.cross_entropy(model(images[batch].to(device)), labels[batch].to(device))

    agrees(convolutional, loss_of, OPTIMISERS[optimiser])


@pytest.mark.sampled(0)
def test_training_a_bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    tokens = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(0))

    def loss_of(model, step, device):
        return model(tokens.to(device)).last_hidden_state[:, :, 0].sub(1).square().mean()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agrees(lambda: transformers.BertModel(config, add_pooling_layer=False).train(), loss_of, OPTIMISERS["adamw"], 8)


@pytest.mark.sampled(0)
def test_memory_is_flat_over_steps():
    resource = pytest.importorskip("resource")
    model = nn.Linear(64, 64).to("lazy")
    optimiser = torch.optim.Adam(model.parameters())
    x = torch.randn(32, 64).to("lazy")

    def step():
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()
        torch._lazy.mark_step()

    for _ in range(200):
        step()
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(800):
        step()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB


@pytest.mark.sampled(0)
def test_the_example_of_training():
    pytest.importorskip("sklearn")
    pytest.importorskip("transformers")
    done = run_script(EXAMPLES / "lazy_training.py")
    assert done.returncode == 0, done.stderr
    digits, digits_ran, bert, bert_ran = done.stdout.splitlines()
    assert digits.startswith("digits: loss ") and bert.startswith("bert: loss ")
    assert digits_ran.endswith("none fell back") and bert_ran.endswith("none fell back")
