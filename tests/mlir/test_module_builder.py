"""Tests of dispatch capture: the block runs as eager, its function computes the same, errors keep the module."""

from __future__ import annotations

import copy
import gc
import re
import runpy
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from mlir_running import run_text
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import torchmdla
from torchmdla import CaptureError, CaptureWarning
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS

_LINALG = "torch-function-to-torch-backend-pipeline,torch-backend-to-linalg-on-tensors-backend-pipeline"


def lowered(builder: Any) -> str:
    """Parse the builder's module from its text, and return it as linalg on tensors."""
    from torch_mlir import ir
    from torch_mlir.passmanager import PassManager

    with builder.module.context:
        module = ir.Module.parse(str(builder.module))
        PassManager.parse(f"builtin.module({_LINALG})").run(module.operation)
        return str(module)


@contextmanager
def expect_warning(*parts: str) -> Iterator[None]:
    """Expect one warning that contains all ``parts``, or no warning without ``parts``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CaptureWarning)
        yield
    messages = [str(entry.message) for entry in caught if issubclass(entry.category, CaptureWarning)]
    assert len(messages) == bool(parts), messages
    for part in parts:
        assert part in messages[0]


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(CaptureWarning, match=r"model\.0\.weight \(float32\[16, 3\]\)"):
        runpy.run_path(str(Path(__file__).parents[2] / "examples" / "module_builder.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"func.func @mm\(%\w+: !torch.vtensor<\[2,3\],f32>, %\w+: !torch.vtensor<\[3,4\],f32>\)", printed)
    assert "torch.aten.mm" in printed
    first, last = map(float, re.findall(r"\d+\.\d+", printed.splitlines()[-1]))
    assert last < first


# --- blocks of functions -----------------------------------------------------------------------------------------

X = torch.randn(4, 6)
Y = torch.randn(6, 5)


def views_written_through(x: Tensor, y: Tensor) -> Any:
    z = x @ y
    row = z[1:3]
    row.mul_(2)
    z.t()[0].fill_(0.5)
    return {"z": z, "row": row, "again": [z, None]}


def written_arguments(x: Tensor, y: Tensor) -> Any:
    before = x.sum()
    x[1:].sub_(1)
    y.view(-1)[::2].neg_()
    return before + x @ y


def returned_arguments(x: Tensor) -> Any:
    x.add_(1)
    return x, x.t(), x[1:, 2], x * 2


def returned_but_not_written(x: Tensor) -> Any:
    return x, x.view(-1)[3:7]


def views_in_place(x: Tensor, y: Tensor) -> Any:
    z = x @ y
    z.t_().unsqueeze_(0)
    return z.relu() + 1, z


def literals(x: Tensor) -> Any:
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    weights += 1
    total = torch.tensor(0.0)
    for row in x:
        total = total + (row * weights).sum()
    return total, weights, torch.tensor([True, False])


def other_memory(x: Tensor) -> Any:
    half = x.data
    half.mul_(0.5)  # the same memory, accessed by an object that no operator returned
    return x + 1, torch.empty(2, 3).copy_(x[:2, :3]).exp_()


def pieces(x: Tensor) -> Any:
    left, right = x.chunk(2, 1)
    values, indices = x.topk(2)
    return torch.cat([left * right, right], 1), values, indices, [row * 2 for row in x.unbind(1)[:2]]


def gradients(x: Tensor, y: Tensor) -> Any:
    weight = y.detach().clone().requires_grad_()
    result = torch.tanh(x @ weight).softmax(-1)
    result.square().sum().backward()
    return result.detach(), weight.grad


def convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, weight, bias)]
    functional.conv2d(*leaves, stride=2, padding=1).relu().sum().backward()
    return [tensor.grad for tensor in leaves]


def many_dtypes(x: Tensor) -> Any:
    indices = x.argmax(1)
    x.index_fill_(0, torch.tensor([0]), 2.0)
    return indices, x > 0, x.double() / 3, x.to(torch.bfloat16), indices.float() * 2


def out_variants(x: Tensor, y: Tensor) -> Any:
    result = torch.empty(4, 5)
    torch.mm(x, y, out=result)
    return result


def of_lists(x: Tensor, y: Tensor) -> Any:
    torch._foreach_mul_([x, y], 2.0)
    return torch._foreach_add([x, y], 1.0)


BLOCKS: dict[str, tuple[Callable[..., Any], Sequence[Tensor]]] = {
    "product": (lambda x, y: torch.relu(x @ y).softmax(-1), (X, Y)),
    "views written through": (views_written_through, (X, Y)),
    "written arguments": (written_arguments, (X, Y)),
    "returned arguments": (returned_arguments, (X,)),
    "returned but not written": (returned_but_not_written, (X,)),
    "views in place": (views_in_place, (X, Y)),
    "literals": (literals, (X,)),
    "memory by another object": (other_memory, (X,)),
    "pieces": (pieces, (X,)),
    "gradients": (gradients, (X, Y)),
    "convolution": (convolution, (torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3), torch.randn(4))),
    "many dtypes": (many_dtypes, (X,)),
    "out": (out_variants, (X, Y)),
    "lists": (of_lists, (X, Y)),
    "indexed": (lambda x, i: (x[i], x[:, i] * 2), (X, torch.tensor([2, 0, 1]))),
    "nothing": (lambda x: None, (X,)),
    "no arguments": (lambda: torch.arange(6).view(2, 3) * 2.5, ()),
    "transposed": (lambda x: torch.exp(x) + x.sum(0), (X.t(),)),
}


def after(function: Callable[..., Any], arguments: Sequence[Tensor]) -> tuple[Any, Sequence[Tensor], list[int]]:
    """Return results, arguments after the call, and for each tensor the first tensor with the same memory."""
    inputs = [tensor.clone(memory_format=torch.preserve_format) for tensor in arguments]
    results = function(*inputs)
    tensors = [leaf for leaf in tree_leaves((results, inputs)) if isinstance(leaf, Tensor)]
    first: dict[int, int] = {}
    return (
        results,
        inputs,
        [first.setdefault(tensor.untyped_storage().data_ptr(), i) for i, tensor in enumerate(tensors)],
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    function, arguments = BLOCKS[name]
    expected = after(function, arguments)
    builder = torchmdla.ModuleBuilder()

    def capturing(*inputs: Tensor) -> Any:
        with expect_warning(), builder.capture_function("block", inputs) as f:
            results = function(*inputs)
            f.returns(results)
        return results

    # In the block, all values are eager's.
    assert_matches(after(capturing, arguments), expected)
    signature = builder.signatures["block"]
    assert [slot.shape for slot in signature.arguments] == [tuple(argument.shape) for argument in arguments]
    assert "torch.operator" not in str(builder.module)
    compiled = builder.compile()["block"]
    for _ in range(2):
        assert_matches(after(compiled, arguments), expected)
    assert not torchmdla.stats().fallbacks


@pytest.mark.parametrize("name", ["product", "views written through", "written arguments", "convolution"])
def test_lowers_to_linalg(name: str) -> None:
    function, arguments = BLOCKS[name]
    builder = torchmdla.ModuleBuilder()
    with builder.capture_function("block", arguments) as f:
        f.returns(function(*arguments))
    assert "torch." not in re.sub(r"#torch\S*", "", lowered(builder)).replace("torch.debug", "")


@pytest.mark.parametrize("name", ["product", "gradients", "written arguments", "literals", "convolution"])
def test_the_text_matches_eager(name: str) -> None:
    """Check the compiled text of the module. Other tests compile the graph from which the text was written."""
    function, arguments = BLOCKS[name]
    copies = [argument.clone() for argument in arguments]
    builder = torchmdla.ModuleBuilder()
    with builder.capture_function("forward", copies) as f:
        results = function(*copies)
        f.returns(results)
    roles = [slot.role for slot in builder.signatures["forward"].results]
    written = [
        argument for argument, before in zip(copies, arguments, strict=True) if not torch.equal(argument, before)
    ]
    expected = [leaf for leaf in tree_leaves(results) if leaf is not None] + written
    assert roles.count("written") == len(written)
    assert_matches(run_text(str(builder.module), arguments, expected), expected, layers=4, strides=False)


def test_several_functions() -> None:
    builder = torchmdla.ModuleBuilder()
    with builder.capture_function("mm", [X, Y]) as f:
        f.returns([X @ Y])
    with builder.capture_function("exp", [X]) as f:
        f.returns(X.exp() * 2)
    assert re.findall(r"func\.func @(\w+)", str(builder.module)) == ["mm", "exp"]
    assert builder.module.operation.verify()
    functions = builder.compile()
    assert_matches(functions["mm"](X, Y), [X @ Y])
    assert_matches(functions["exp"](X), X.exp() * 2)


def test_locations_are_the_users() -> None:
    builder = torchmdla.ModuleBuilder()
    with builder.capture_function("mm", [X, Y]) as f:
        f.returns(X @ Y)
    assert f'"{__file__}":' in builder.module.operation.get_asm(enable_debug_info=True)


def test_random_numbers_are_drawn_in_the_order_of_memory() -> None:
    def block(x: Tensor) -> Any:
        draws = torch.empty_like(x).bernoulli_(0.5), torch.empty_like(x).uniform_(), torch.empty_like(x).normal_()
        return functional.dropout(x, 0.3), draws, torch.rand_like(x), torch.randn(3), torch.randperm(5)

    x = torch.randn(2, 5, 4).permute(2, 0, 1)
    torch.manual_seed(5)
    expected, following = block(x), torch.rand(2)
    builder = torchmdla.ModuleBuilder()
    with builder.capture_function("f", [x]) as f:
        f.returns(block(x))
    for _ in range(2):
        torch.manual_seed(5)
        assert_matches(builder.compile()["f"](x), expected)
        assert torch.equal(torch.rand(2), following)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_and_composite_modules(mode: Callable[[], Any]) -> None:
    torch.manual_seed(2)
    layer, cell = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), nn.LSTM(16, 8, batch_first=True)
    x = torch.randn(2, 5, 16)
    with mode():
        expected = cell(layer(x))
        builder = torchmdla.ModuleBuilder()
        with expect_warning("layer.linear1.weight", "constants"), builder.capture_function("f", [x]) as f:
            results = cell(layer(x))
            f.returns(results)
        assert_matches(results, expected)
        for _ in range(2):
            assert_matches(builder.compile()["f"](x), expected, layers=10)


def test_torchscript_with_groups_inside() -> None:
    scripted = torch.jit.trace(lambda x: torch.relu(x @ x.t()).softmax(-1) * 2, X)
    with torch.no_grad():
        for _ in range(4):
            expected = scripted(X)
        assert torchmdla.stats().groups
        builder = torchmdla.ModuleBuilder()
        with builder.capture_function("f", [X]) as f:
            f.returns(scripted(X))
    # The module contains the group's operators, not the group.
    assert "torch.aten._softmax" in str(builder.module)
    assert_matches(builder.compile()["f"](X), expected, layers=2)


def test_a_builder_keeps_no_arguments_and_no_results() -> None:
    builder = torchmdla.ModuleBuilder()

    def capture() -> Sequence[Any]:
        argument = torch.randn(4, 6)
        with builder.capture_function("f", [argument]) as f:
            result = torch.relu(argument) + 1
            f.returns(result)
        return weakref.ref(argument), weakref.ref(result)

    gone = capture()
    compiled = builder.compile()["f"]
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert_matches(compiled(X), torch.relu(X) + 1)


# --- tensors that are not arguments ------------------------------------------------------------------------------


def test_constants_are_as_they_were() -> None:
    small, large = torch.randn(3), torch.randn(40, 6)
    expected = X.sum() * small, X @ large.t()
    builder = torchmdla.ModuleBuilder()
    with (
        expect_warning("small (float32[3])", "large (float32[40, 6])", "constants"),
        builder.capture_function("f", [X]) as f,
    ):
        f.returns((X.sum() * small, X @ large.t()))
    bits = large.numpy().tobytes().hex().upper()
    small.zero_()
    large.zero_()
    text = str(builder.module)
    assert "dense_resource<f.constant_0> : tensor<40x6xf32>" in text
    assert bits in text
    assert re.search(r"literal\(dense<\[.*\]> : tensor<3xf32>\)", text)
    compiled = builder.compile()["f"]
    for _ in range(2):
        assert_matches(compiled(X), expected)


def test_reads_of_numbers_are_reported() -> None:
    builder = torchmdla.ModuleBuilder()
    with expect_warning("aten::_local_scalar_dense", Path(__file__).name), builder.capture_function("f", [X]) as f:
        f.returns(X * float(X.sum()))
    with expect_warning(), builder.capture_function("g", [X]) as f:
        f.returns(X * float(torch.tensor([2.0, 3.0])[1]))


class Network(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        # Without bias, because the gradient of a bias before a batch norm is only rounding error.
        self.convolution = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(4 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.dropout(torch.relu(self.norm(self.convolution(x)))).flatten(1))


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 8, 8, generator=generator), torch.randint(5, (2,), generator=generator)


OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}


def step(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, targets: Tensor) -> Tensor:
    optimiser.zero_grad()
    loss = functional.cross_entropy(model(x), targets)
    loss.backward()
    optimiser.step()
    return loss.detach()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.sampled(1)
def test_training(name: str, dropout: float) -> None:
    """Check five steps: one creates the optimiser's state, one is captured, and three call the captured function."""
    torch.manual_seed(1)
    model = Network(dropout)
    reference = copy.deepcopy(model)
    optimiser, other = (OPTIMISERS[name](network.parameters()) for network in (model, reference))
    torch.manual_seed(7)
    expected = [step(reference, other, *batch(seed)) for seed in range(5)]
    after_all = torch.rand(3)

    torch.manual_seed(7)
    losses = [step(model, optimiser, *batch(0))]
    builder = torchmdla.ModuleBuilder()
    x, targets = batch(1)
    with (
        expect_warning("model.linear.weight", "model.norm.running_mean", "arguments and results"),
        builder.capture_function("step", [x, targets]) as f,
    ):
        loss = step(model, optimiser, x, targets)
        f.returns(loss)
    losses.append(loss)
    compiled = builder.compile()["step"]
    losses += [compiled(*batch(seed)) for seed in range(2, 5)]

    # Random numbers are drawn like in eager.
    assert torch.equal(torch.rand(3), after_all)
    assert_matches(losses, expected, layers=50)
    assert_matches(model.state_dict(), reference.state_dict(), layers=50)
    assert_matches(tree_leaves(optimiser.state_dict()), tree_leaves(other.state_dict()), layers=50)
    assert not torchmdla.stats().fallbacks
    signature = builder.signatures["step"]
    captured = [slot.name for slot in signature.arguments if slot.role == "captured"]
    assert sorted(slot.name for slot in signature.results if slot.role == "written") == sorted(captured)
    assert set(captured) >= {f"model.{key}" for key in model.state_dict()}


def test_a_step_lowers_to_linalg() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    builder = torchmdla.ModuleBuilder()
    x, targets = batch(0)
    with pytest.warns(CaptureWarning), builder.capture_function("step", [x, targets]) as f:
        f.returns(step(model, optimiser, x, targets))
    assert "linalg.generic" in lowered(builder)


def test_gradients_that_accumulate() -> None:
    weight = torch.randn(6, 5, requires_grad=True)
    (X @ weight).sum().backward()
    assert weight.grad is not None
    first = weight.grad.clone()
    builder = torchmdla.ModuleBuilder()
    with expect_warning("weight.grad", "weight (float32[6, 5])"), builder.capture_function("f", [X]) as f:
        (X @ weight).tanh().sum().backward()
        f.returns([])
    difference = weight.grad - first
    assert builder.compile()["f"](X) == []
    assert_matches(weight.grad, first + 2 * difference, layers=4)


# --- errors ------------------------------------------------------------------------------------------------------


def not_computed_inside(f: Any) -> None:
    f.returns([OUTSIDE])


def constant_as_a_result(f: Any) -> None:
    torch.relu(OUTSIDE)
    f.returns([OUTSIDE])


def returns_missing(f: Any) -> None:
    torch.relu(X)


def returns_twice(f: Any) -> None:
    f.returns(torch.relu(X))
    f.returns(torch.relu(X))


def no_tensor(f: Any) -> None:
    f.returns([torch.relu(X), 3])


def another_device(f: Any) -> None:
    f.returns(torch.relu(torch.empty(3, device="meta")))


def an_exception(f: Any) -> None:
    f.returns(torch.relu(X))
    raise KeyError("mine")


def sizes_of_data(f: Any) -> None:
    f.returns(torch.relu(X).nonzero())


def a_generator(f: Any) -> None:
    f.returns(torch.rand(3, generator=torch.Generator()))


def sparse(f: Any) -> None:
    f.returns(torch.relu(X).to_sparse())


def resized(f: Any) -> None:
    f.returns(torch.zeros(2).resize_(5))


def shared_and_written(f: Any) -> None:
    torch.relu(PART)
    WRITTEN.mul_(2)
    f.returns(WRITTEN * 1)


def argument_turned(f: Any) -> None:
    ARGUMENT.t_()
    f.returns(ARGUMENT * 2)


OUTSIDE, WRITTEN, ARGUMENT = torch.randn(3), torch.randn(4), torch.randn(2, 3)
PART = WRITTEN[1:]

ERRORS: dict[Callable[[Any], None], tuple[type[BaseException], str]] = {
    not_computed_inside: (CaptureError, r"result 0, float32\[3\], was not computed inside"),
    constant_as_a_result: (CaptureError, r"result 0, float32\[3\], was not computed inside"),
    returns_missing: (CaptureError, "returns was not called"),
    returns_twice: (CaptureError, "returns was called twice"),
    no_tensor: (TypeError, "result 1 .* must be a tensor, got int"),
    another_device: (CaptureError, r"float32\[3\], is on device meta"),
    an_exception: (KeyError, "mine"),
    sizes_of_data: (CaptureError, r"sizes of what .*nonzero.* depend on data.*test_module_builder.py"),
    a_generator: (CaptureError, "generator of its own"),
    sparse: (CaptureError, "layout torch.sparse"),
    resized: (CaptureError, "resize_ gives a tensor other memory"),
    shared_and_written: (CaptureError, "share memory that is written to"),
    argument_turned: (CaptureError, "t_ changes a tensor from outside"),
}


@pytest.mark.parametrize("block", ERRORS, ids=lambda block: block.__name__)
def test_errors_leave_the_module_as_it_was(block: Callable[[Any], None]) -> None:
    kind, message = ERRORS[block]
    builder = torchmdla.ModuleBuilder()
    with builder.capture_function("good", [X, Y]) as f:
        f.returns(X @ Y)
    before = str(builder.module)
    with pytest.raises(kind, match=message), builder.capture_function("bad", [ARGUMENT]) as f:
        block(f)
    assert str(builder.module) == before
    assert list(builder.signatures) == list(builder.compile()) == ["good"]
    # The capture has no effect afterwards: the name is free, and PyTorch dispatches as before.
    with builder.capture_function("bad", [X]) as f:
        f.returns(X * 2)
    assert_matches(builder.compile()["bad"](X), X * 2)


def test_arguments_are_checked() -> None:
    builder = torchmdla.ModuleBuilder()
    with builder.capture_function("f", [X]) as f:
        f.returns(X * 2)
    with pytest.raises(ValueError, match="has a function 'f' already"):
        builder.capture_function("f", [X])
    with pytest.raises(TypeError, match="argument 1 of 'g' must be a tensor, got int"):
        builder.capture_function("g", [X, 3])
    with pytest.raises(CaptureError, match="is on device meta"):
        builder.capture_function("g", [torch.empty(3, device="meta")])
    with pytest.raises(CaptureError, match="inside of another"), builder.capture_function("g", [X]):  # noqa: SIM117
        with builder.capture_function("h", [X]):
            pass
    with pytest.raises(CaptureError, match="inside of the block"):
        builder.capture_function("g", [X]).returns(X)
    assert list(builder.compile()) == ["f"]


def test_calls_are_checked() -> None:
    builder = torchmdla.ModuleBuilder()
    x, y = X.clone(), X.clone()
    with builder.capture_function("f", [x, y]) as f:
        f.returns(x.add_(y).t())
    function = builder.compile()["f"]
    for arguments, kind, message in [
        ((X,), TypeError, "takes 2 arguments, got 1"),
        ((X, 1), TypeError, "argument 1 of f must be a tensor, got int"),
        ((X, X[:2]), ValueError, r"argument 1 of f must be float32\[4, 6\] on cpu, got float32\[2, 6\]"),
        ((X, X.double()), ValueError, r"must be float32\[4, 6\] on cpu, got float64\[4, 6\]"),
        ((torch.zeros(6, 4).t(), X), ValueError, "must have strides"),
        ((x, x), ValueError, "argument 0 of f, which is written to, shares memory"),
    ]:
        with pytest.raises(kind, match=message):
            function(*arguments)
    with pytest.raises(ValueError, match="no device"):
        builder.compile(device="abacus")


@pytest.mark.parametrize("name", ["resnet18", "bert", "vit_b16"])
@pytest.mark.sampled(1)
def test_whole_models(name: str) -> None:
    spec = MODELS[name].reduced()
    model, inputs = spec.build(), list(spec.inputs())
    builder = torchmdla.ModuleBuilder()
    with torch.no_grad():
        with builder.capture_function("model", inputs) as f:
            f.returns([model(*inputs)])
        expected = [model(*inputs)]
        function = builder.compile(strict=True)["model"]
        for _ in range(2):
            assert_matches(function(*inputs), expected, layers=spec.layers)
    assert torchmdla.stats().specialisations
