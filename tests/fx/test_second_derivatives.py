"""Derivatives of derivatives through ``torch.compile(…, backend="torchmdla")``: the training of forces."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_script
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import torchmdla
from torchmdla import _C
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import SCHNET

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(function: Any, **keywords: Any) -> Any:
    return torch.compile(function, backend="torchmdla", **keywords)


def assert_compiled() -> None:
    """Check that the second derivatives were compiled, and not left to eager operators."""
    assert not [reason for reason in torchmdla.stats().ungrouped if "second derivatives" in reason]
    assert not torchmdla.stats().fallbacks


def differentiate(function: Callable[..., Any], inputs: Sequence[Any], order: int = 2, seed: int = 0) -> Any:
    """Return the outputs of ``function`` and the derivatives up to ``order``; the last ones by ``backward``."""
    torch.manual_seed(seed)
    arguments = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs]
    wanted = [x for x in arguments if isinstance(x, Tensor) and x.requires_grad]
    outputs = function(*arguments)
    results = [outputs]
    loss = total([y.sin() for y in tree_leaves(outputs) if isinstance(y, Tensor) and y.requires_grad])
    for _ in range(order - 1):
        gradients = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        results.append(gradients)
        loss = total([loss, *(g.square() for g in gradients if g is not None)])
    loss.backward()
    return [*results, [x.grad for x in wanted], torch.rand(2)]


def total(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.sum() for tensor in tensors]).sum()


def check(function: Callable[..., Any], *inputs: Any, order: int = 2, layers: int = 16, **keywords: Any) -> None:
    """Compare calls with eager mode: the first call records, and the second one runs compiled code."""
    program = compiled(function, **keywords)
    for seed in range(3):
        expected = differentiate(function, inputs, order, seed)
        assert_matches(differentiate(program, inputs, order, seed), expected, layers=layers)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_()


# --- operators ---------------------------------------------------------------------------------------------------

PLACES = torch.tensor([0, 2, 2, 1, 0])
ROWS = PLACES[:, None].expand(5, 3)


def attention(x: Tensor, weight: Tensor) -> Tensor:
    query, key, value = (x @ weight).chunk(3, -1)
    return torch.softmax(query @ key.transpose(-1, -2) / 2.0, -1) @ value


OPERATORS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "index_add": (lambda x, y: x.index_add(0, PLACES, y).tanh(), ((3, 3), (5, 3))),
    "scatter_add": (lambda x, y: x.scatter_add(0, ROWS, y).tanh(), ((3, 3), (5, 3))),
    "index_select": (lambda x, y: x.index_select(0, PLACES) * y.exp(), ((3, 3), (5, 3))),
    "index": (lambda x, y: x[PLACES] * y, ((3, 3), (5, 3))),
    "gather": (lambda x: x.gather(0, ROWS).square(), ((3, 3),)),
    "embedding": (lambda x: functional.embedding(PLACES, x).tanh(), ((3, 4),)),
    "embedding with padding": (lambda x: functional.embedding(PLACES, x, padding_idx=2).tanh(), ((3, 4),)),
    "embedding by frequency": (lambda x: functional.embedding(PLACES, x, scale_grad_by_freq=True).tanh(), ((3, 4),)),
    "cdist": (lambda x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"), ((4, 3), (5, 3))),
    "norm": (lambda x: x.norm(dim=1), ((4, 3),)),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True) * x, ((4, 3),)),
    "root of a sum": (lambda x: x.square().sum(1).sqrt(), ((4, 3),)),
    "exp and cos": (lambda x: torch.exp(-x.square()) * torch.cos(x), ((4, 3),)),
    "power": (lambda x: (x.square() + 1.0).pow(-6.0) + x.pow(3), ((4, 3),)),
    "silu": (lambda x: functional.silu(x) * 2.0, ((4, 3),)),
    "softplus": (lambda x: functional.softplus(x) - 0.5, ((4, 3),)),
    "softplus, sharp": (lambda x: functional.softplus(x, beta=2.0, threshold=1.0) - 0.5, ((4, 3),)),
    "gelu": (lambda x: functional.gelu(x) * 2.0, ((4, 3),)),
    "tanh and sigmoid": (lambda x: torch.tanh(x) * torch.sigmoid(x), ((4, 3),)),
    "linear": (lambda x, w, b: functional.linear(x, w, b).tanh(), ((4, 3), (5, 3), (5,))),
    "batched product": (lambda x, y: torch.bmm(x, y).tanh(), ((2, 3, 4), (2, 4, 5))),
    "einsum": (lambda x, y: torch.einsum("ij,ikj->ik", x, y).tanh(), ((4, 3), (4, 5, 3))),
    "layer_norm": (lambda x, w, b: functional.layer_norm(x, (3,), w, b), ((4, 3), (3,), (3,))),
    "where": (lambda x, y: torch.where(x > 0.0, x.exp(), y * x), ((4, 3), (4, 3))),
    "clamp": (lambda x: x.clamp(-0.5, 0.5) * x, ((4, 3),)),
    "softmax": (attention, ((2, 5, 4), (4, 12))),
    "log_softmax": (lambda x: torch.log_softmax(x, 1).exp() * x, ((4, 3),)),
    "cross": (lambda x, y: torch.linalg.cross(x, y).square(), ((4, 3), (4, 3))),
    "cat and split": (lambda x, y: torch.cat([x, y.tanh()], 1).split(2, 1)[1].square(), ((4, 3), (4, 3))),
    "cumsum": (lambda x: x.square().cumsum(0).tanh(), ((4, 3),)),
    "convolution": (lambda x, w: functional.conv1d(x, w, padding=1).tanh(), ((2, 3, 6), (4, 3, 3))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.sampled(4)
def test_operators(name: str, dtype: torch.dtype) -> None:
    function, shapes = OPERATORS[name]
    check(function, *(leaf(*shape, dtype=dtype) for shape in shapes))
    assert_compiled()


@pytest.mark.parametrize("name", ["silu", "linear", "index_add", "norm", "embedding"])
@pytest.mark.sampled(1)
def test_gradients_of_gradients_by_differences(name: str) -> None:
    function, shapes = OPERATORS[name]
    inputs = tuple(leaf(*shape, dtype=torch.float64) for shape in shapes)
    assert torch.autograd.gradgradcheck(compiled(function), inputs, nondet_tol=1e-12)
    assert_compiled()


@pytest.mark.parametrize("name", ["softplus", "linear", "vector_norm"])
def test_third_derivatives(name: str) -> None:
    function, shapes = OPERATORS[name]
    check(function, *(leaf(*shape, dtype=torch.float64) for shape in shapes), order=3)
    assert_compiled()


# --- graphs ------------------------------------------------------------------------------------------------------


def stopped(x: Tensor, y: Tensor) -> Tensor:
    """Return a product that gradients pass through in one place only."""
    with torch.no_grad():
        scale = x.exp()
    return x.square() * scale + y.sin().detach() * x * y


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    z.mul_(x).add_(1.0)
    return z.tanh()


def aliases(x: Tensor, y: Tensor) -> Any:
    z = (x * y).exp()
    return z.t(), z[1:], x.view(-1), None, 3, z.sum()


def broken(x: Tensor, y: Tensor) -> Tensor:
    z = x.square() * y
    if z.sum() > 1e9:  # the data decides, so Dynamo breaks the graph here
        z = z + 1.0
    return z.tanh() * x


GRAPHS: dict[str, Callable[..., Any]] = {
    "no gradient in places": stopped,
    "in place": in_place,
    "aliases, None and numbers": aliases,
    "unused output": lambda x, y: (x * y.sin(), (x.exp() * y).detach(), y.square()),
    "graph break": broken,
    "unused input": lambda x, y: x.exp() * 2.0,
    "linear": lambda x, y: (x + y) * 2.0,
    "dropout": lambda x, y: functional.dropout(x.exp() * y, 0.5) * x,
    "no elements": lambda x, y: (x[:0].exp() * y[:0], x * y),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    check(GRAPHS[name], leaf(4, 3), leaf(4, 3))
    assert_compiled()


def written(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y.exp())
    return x.sin()


def counted(x: Tensor, y: Tensor, count: Tensor) -> Tensor:
    count += 1.0
    return (x * y).sin() * 2.0


def product(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sin()


def call_twice(call: Callable[..., Any], x: Tensor, y: Tensor) -> Tensor:
    return call(call(x, y), y)


# Programs around a compiled function, and the function.
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "inputs of which one comes from the other": (lambda call, x, y: call(x, y * x.exp()), product),
    "one input twice": (lambda call, x, y: call(x, x) * y, product),
    "a view": (lambda call, x, y: call(x.t(), y.t()[:, :]), product),
    "calls in a row": (call_twice, product),
    "a written input": (lambda call, x, y: (z := x * 2.0, call(z, y), z.cos()), written),
    "a written buffer": (lambda call, x, y: call(x, y, torch.zeros(())), counted),
    "autocast": (lambda call, x, y: call(x, y), lambda x, y: (x @ y.t()).float().sin()),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    around, function = CALLS[name]
    program = compiled(function)
    mode = torch.autocast("cpu", torch.bfloat16) if name == "autocast" else nullcontext()
    inputs = leaf(4, 3), leaf(4, 3)
    for _ in range(3):
        with mode:
            results = [differentiate(lambda *xs, call=call: around(call, *xs), inputs) for call in (program, function)]
        assert_matches(*results, layers=16, precision="bfloat16" if name == "autocast" else None)
    assert_compiled()


def test_only_the_gradients_that_are_asked_for_are_computed() -> None:
    """Each set of gradients has a function of its own, and its inputs get no others."""
    program = compiled(product)
    for wanted, _ in itertools.product([(0,), (1,), (0, 1)], range(2)):
        results = []
        for call in (program, product):
            inputs = [x.detach().requires_grad_() for x in (torch.ones(4), torch.full((4,), 0.5))]
            gradients = torch.autograd.grad(call(*inputs).sum(), [inputs[k] for k in wanted], create_graph=True)
            total(gradients).backward()
            results.append((gradients, [x.grad for x in inputs]))
        assert_matches(*results, layers=4)
    assert_compiled()


def test_a_backward_pass_computes_the_gradients_that_are_used() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).tanh() * 2.0

    program = compiled(function)
    numbers = {group["number"] for group in _C.groups()}
    for wanted in [(0,), (0,), (0, 1), (0, 1), (1,), (1,)]:
        results = []
        for call in (program, function):
            inputs = [torch.linspace(-1.0, 1.0, 16).view(4, 4).requires_grad_() for _ in range(2)]
            results.append(torch.autograd.grad(call(*inputs).sum(), [inputs[k] for k in wanted]))
        assert_matches(*results, layers=4)
    names = [group["name"] for group in _C.groups() if group["number"] not in numbers]
    # The product of the forward pass, and those of the three sets of gradients.
    assert sorted(name.split("_").count("mm") for name in names) == [1, 1, 1, 2]


# --- behaviour that PyTorch defines ------------------------------------------------------------------------------


def test_a_change_in_place_is_an_error_as_in_eager_mode() -> None:
    program = compiled(product)
    for call in (program, program, product):
        x, y = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        loss = call(x, y).sum()
        with torch.no_grad():
            y.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, x, create_graph=True)


def test_a_graph_is_freed_and_retained_as_in_eager_mode() -> None:
    program = compiled(product)
    for call in (program, program, product):
        x, y = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        call(x, y).sum().backward()
        loss = call(x, y).sum()
        for create_graph in (False, True, False):
            torch.autograd.grad(loss, x, retain_graph=True, create_graph=create_graph)
        torch.autograd.grad(loss, x, create_graph=True, retain_graph=False)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, x, create_graph=True)


def test_saved_tensors_go_through_hooks() -> None:
    program = compiled(product)
    x = leaf(4)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 2.0):
        loss = program(x, torch.ones(4)).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    assert packed
    assert_matches(gradient, 2.0 * torch.cos(4.0 * x))


def test_hooks_of_tensors() -> None:
    def scaled(call: Callable[..., Any], x: Tensor, y: Tensor) -> Tensor:
        x = x * 1.0
        x.register_hook(lambda gradient: gradient * y)
        z = call(x, y)
        z.register_hook(lambda gradient: gradient * 3.0)
        return z

    program = compiled(product)
    for _ in range(2):
        inputs = leaf(4), leaf(4)
        results = [differentiate(lambda *xs, call=call: scaled(call, *xs), inputs) for call in (program, product)]
        assert_matches(*results, layers=8)


def test_numbers_of_a_module_that_change() -> None:
    class Scaled(nn.Module):
        factor = 1.5

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.factor).tanh() * x.size(0)

    module = Scaled()
    program = compiled(module, dynamic=True)
    for rows, factor in [(2, 1.5), (3, 0.5), (4, 0.25), (5, 2.5)]:
        module.factor = factor
        x = leaf(rows)
        assert_matches(differentiate(program, [x]), differentiate(module, [x]), layers=4)
    assert_compiled()


def test_a_failed_trace_is_reported_and_left_to_eager_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchmdla.capture import double_backward

    def fail(*_: Any) -> None:
        raise NotImplementedError("no sizes today")

    monkeypatch.setattr(double_backward, "_renew", fail)
    for name in ("dropout", "in place", "no gradient in places"):
        check(GRAPHS[name], leaf(4, 3), leaf(4, 3))
    around, function = CALLS["inputs of which one comes from the other"]
    program = compiled(function)
    inputs = leaf(4), leaf(4)
    results = [differentiate(lambda *xs, call=call: around(call, *xs), inputs) for call in (program, function)]
    assert_matches(*results, layers=8)
    assert [reason for reason in torchmdla.stats().ungrouped if "no sizes today" in reason]


# --- potentials --------------------------------------------------------------------------------------------------


def force_step(call: Callable[..., Tensor], model: nn.Module, inputs: Sequence[Tensor], target: Tensor) -> Any:
    """Return the energy, the forces, and the gradients of a loss of both by the parameters."""
    model.zero_grad()
    positions, *others = inputs
    positions = positions.clone().requires_grad_()
    energy = call(positions, *others)
    (slope,) = torch.autograd.grad(energy, positions, create_graph=True)
    ((slope + target).square().mean() + 0.01 * energy).backward()
    return energy, slope, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.sampled(1)
def test_training_on_forces_with_numbers_of_atoms_that_vary(dtype: torch.dtype, limit: float) -> None:
    spec = SCHNET.reduced()
    model = spec.build().to(dtype)
    program = compiled(model, dynamic=True)
    torch._dynamo.utils.counters.clear()
    specialisations: list[int] = []
    for size in (*spec.sizes, *spec.sizes):
        inputs = [x.to(dtype) if x.is_floating_point() else x for x in spec.inputs(size=size)]
        target = torch.randn_like(inputs[0])
        expected = force_step(model, model, inputs, target)
        for actual, wanted in zip(
            *map(tree_leaves, (force_step(program, model, inputs, target), expected)), strict=True
        ):
            assert (actual - wanted).abs().max() <= limit * wanted.abs().max()
        specialisations.append(torchmdla.stats().specialisations)
    assert_compiled()
    # The energy, and its gradient, for all numbers of atoms.
    assert len(set(specialisations)) == 1
    assert torch._dynamo.utils.counters["aot_autograd"]["ok"] == 2


@pytest.mark.parametrize("traces", [True, False])
def test_forces_inside_of_the_compiled_function(traces: bool) -> None:
    """Dynamo traces ``autograd.grad`` on demand, and breaks the graph there otherwise."""
    spec = SCHNET.reduced()
    model = spec.build()

    def forces(positions: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        energy = model(positions, *others)
        return energy, -torch.autograd.grad(energy, positions, create_graph=True)[0]

    program = compiled(forces, dynamic=True, fullgraph=traces)
    with torch._dynamo.config.patch(trace_autograd_ops=traces):
        for size in spec.sizes:
            positions, *others = spec.inputs(size=size)
            results = []
            for call in (program, forces):
                model.zero_grad()
                energy, force = call(positions.clone().requires_grad_(), *others)
                (force.square().mean() + 0.01 * energy).backward()
                gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
                results.append(copy.deepcopy((energy.detach(), force.detach(), gradients)))
            assert_matches(*results, layers=4 * spec.layers)
    assert_compiled()


@pytest.mark.sampled(0)
def test_example_of_forces() -> None:
    script = Path(__file__).parents[2] / "examples" / "forces.py"
    assert "--atoms" in run_script(script, "--help").stdout
    done = run_script(script, "--atoms", "24", "--features", "16", "--steps", "9")
    assert done.returncode == 0, done.stderr
    difference = float(done.stdout.splitlines()[0].split()[-1])
    assert difference < 1e-5
    assert "none fell back" in done.stdout
