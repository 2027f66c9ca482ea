"""``torch.compile(…, backend="torchmdla")`` forward and backward: it computes eager's results."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_script
from in_threads import in_threads
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import torchmdla
from torchmdla import _C
from torchmdla.capture import background, dynamo
from torchmdla.compile_service import service
from torchmdla.compile_service.service import CompileOutcome
from torchmdla.compiler.program import Program
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(function: Any, **keywords: Any) -> Any:
    return torch.compile(function, backend="torchmdla", **keywords)


def run(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
    """Return the outputs, the inputs after the call, and which of these share memory. The inputs are copied first."""
    copies = copy.deepcopy(list(inputs))
    outputs = function(*copies)
    tensors = [leaf for leaf in tree_leaves((outputs, copies)) if isinstance(leaf, Tensor)]
    first = {}
    sharing = [first.setdefault(t.untyped_storage().data_ptr(), i) for i, t in enumerate(tensors) if t.numel()]
    return outputs, copies, sharing


def check(function: Callable[..., Any], *inputs: Any, calls: int = 3, **keywords: Any) -> None:
    """Compare calls: the first call records, and the second one runs compiled code."""
    program = compiled(function, **keywords)
    for _ in range(calls):
        expected, after, sharing = run(function, inputs)
        outputs, inputs_after, shared = run(program, inputs)
        assert_matches(outputs, expected, layers=4)
        assert_matches(inputs_after, after, layers=4)
        assert shared == sharing


# --- functions ---------------------------------------------------------------------------------------------------

X = torch.randn(4, 6)
Y = torch.randn(6, 5)


def views_that_leave(x: Tensor) -> Any:
    y = torch.relu(x) * 2
    return y.t(), y[:, 1:], x.view(-1), y.unsqueeze(0)


def one_tensor_twice(x: Tensor) -> Any:
    y = torch.exp(x) + 1
    return y, y, x, {"again": y, "list": [y * x, None]}


def numbers_and_tensors(x: Tensor, n: int, factor: float) -> Any:
    return torch.tanh(x * factor) + n, n + 1, x.size(0), "text"


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = torch.relu(x) + 1
    x.add_(z)
    y[1:].mul_(2)
    z.select(0, 0).fill_(5.0)
    return z * x + y.sum()


def written_after_it_was_read(x: Tensor) -> Any:
    view = x[:2]
    before = torch.sigmoid(view) * 2
    x.zero_()
    return before, torch.sigmoid(view) * 2


def written_through_a_view(x: Tensor) -> Tensor:
    y = x * 2 + 1
    y.view(-1)[::2].neg_()
    return y + x


def written_over_itself(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(x.t() * 2 + 1)  # the element at (i, j) from that at (j, i)
    y.copy_(y.flip(0) + y.exp())
    return x.sum()


def written_from_its_sum(x: Tensor, y: Tensor) -> None:
    x.sub_(x.mean(1, keepdim=True))
    y.div_(x.norm() + 1)


def exchanged(x: Tensor, y: Tensor) -> None:
    before = x * 2 + 1
    x.copy_(y.tanh() * 3)
    y.copy_(before)


def written_and_returned(x: Tensor, y: Tensor) -> Any:
    before = x.exp() * 2
    x.add_(y).mul_(2)
    y.copy_(x)
    return before, x, x * 1, y.view(-1)


def written_in_another_dtype(x: Tensor, y: Tensor) -> None:
    x.copy_(x.double().exp() + y[:1])
    y.copy_((x + y).to(torch.bfloat16))


def broken_graph(x: Tensor) -> Tensor:
    y = torch.relu(x @ x.t())
    if y.sum() > 0:  # the data decides, so Dynamo breaks the graph here
        y = y.softmax(-1) * 2
    return y + 1


def pieces(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    c, d, *_ = x.unbind(1)
    return torch.cat([a * b, torch.stack([c, d], 1)], 1).flip(0)


def of_many_dtypes(x: Tensor) -> Any:
    indices = x.argmax(1)
    half = x.to(torch.bfloat16) * 2
    return x > 0, indices, indices.float() / 2 + x[:, 0], half, x.double().sum(1), torch.complex(x, x).abs()


def without_elements(x: Tensor) -> Any:
    return torch.relu(x[:0]) + 1, x.sum() * 2 + x.mean()


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "product": (lambda x, y: torch.relu(x @ y).softmax(-1), (X, Y)),
    "views that leave": (views_that_leave, (X,)),
    "one tensor twice": (one_tensor_twice, (X,)),
    "numbers": (numbers_and_tensors, (X, 3, 0.5)),
    "in place": (in_place, (X, X + 1)),
    "written after it was read": (written_after_it_was_read, (X,)),
    "written through a view": (written_through_a_view, (X,)),
    "written over itself": (written_over_itself, (X @ X.t(), X + 1)),
    "written from its sum": (written_from_its_sum, (X, X + 1)),
    "exchanged": (exchanged, (X, X + 1)),
    "exchanged with other strides": (exchanged, (X.t().contiguous().t(), X + 1)),
    "written and returned": (written_and_returned, (X, X + 1)),
    "written in another dtype": (written_in_another_dtype, (X, X + 1)),
    "graph break": (broken_graph, (X,)),
    "pieces": (pieces, (X,)),
    "many dtypes": (of_many_dtypes, (X,)),
    "no elements": (without_elements, (X,)),
    "transposed input": (lambda x: torch.relu(x) + x.exp(), (X.t(),)),
    "channels last": (
        lambda x, w: torch.relu(functional.conv2d(x, w)),
        (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last), torch.randn(4, 3, 3, 3)),
    ),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, mode: Callable[[], Any]) -> None:
    function, inputs = FUNCTIONS[name]
    with mode():
        check(function, *inputs)
    assert torchmdla.stats().specialisations >= 1
    assert not torchmdla.stats().fallbacks


# --- gradients ---------------------------------------------------------------------------------------------------


def check_gradients(function: Callable[..., Tensor], *inputs: Tensor, **keywords: Any) -> None:
    program = compiled(function, **keywords)
    for _ in range(3):
        results = []
        for call in (program, function):
            arguments = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
            outputs = call(*arguments)
            loss = sum(y.sin().sum() for y in tree_leaves(outputs) if isinstance(y, Tensor) and y.requires_grad)
            loss.backward()
            results.append((outputs, [x.grad for x in arguments]))
        assert_matches(*results, layers=8)


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def attention(x: Tensor, weight: Tensor) -> Tensor:
    q, k, v = (x @ weight).view(1, 5, 2, 12).transpose(1, 2).chunk(3, -1)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).relu() + 1


def attention_with(mask: Tensor | None = None, **options: Any) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = (part.transpose(1, 2) for part in (query, key, value))
        return functional.scaled_dot_product_attention(*parts, mask, **options).transpose(1, 2).flatten(2) * 2

    return attend


def parts(queries: int, keys: int, heads: int = 2, **options: Any) -> tuple[Tensor, ...]:
    """Return queries, keys and values of two samples."""
    shapes = (2, queries, 2, 4), (2, keys, heads, 4), (2, keys, heads, 4)
    return tuple(torch.randn(shape, **options).requires_grad_() for shape in shapes)


def norms(x: Tensor, weight: Tensor) -> Tensor:
    return functional.group_norm(functional.layer_norm(x, (6,), weight), 2, eps=1e-3)


def pooled(x: Tensor, weight: Tensor) -> Tensor:
    return functional.max_pool2d(functional.conv2d(x, weight).relu(), 2)


TOKENS = torch.tensor([[0, 2], [2, 1]])

GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "product": (lambda x, y: torch.relu(x @ y).softmax(-1), (leaf(4, 6), leaf(6, 5))),
    "no gradient for some": (lambda x, y, z: (torch.tanh(x * y) + z.sin() * 0.0, x > 0), (leaf(4), X[0, :4], leaf(4))),
    "not used": (lambda x, y: x.exp() * 2 + 1, (leaf(4), leaf(4))),
    "views": (lambda x: (x * 2).relu().view(-1)[3:], (leaf(4, 6),)),
    "norms": (norms, (leaf(2, 4, 6), leaf(6))),
    "attention": (attention, (leaf(1, 5, 8), leaf(8, 24))),
    "attention of doubles": (attention_with(is_causal=True, scale=0.3), parts(5, 7, dtype=torch.float64)),
    "attention of halves": (attention_with(), parts(5, 7, dtype=torch.bfloat16)),
    "attention by blocks": (attention_with(), parts(1030, 70)),
    "causal attention by blocks": (attention_with(is_causal=True), parts(769, 700)),
    "masked attention by blocks": (attention_with(torch.randn(2, 1, 520, 7)), parts(520, 7)),
    "attention with keys masked": (attention_with(torch.tensor([[True, False, True]])), parts(5, 3)),
    "attention of nothing": (attention_with(torch.ones(4, 5).tril(-1) > 0), parts(4, 5)),
    "attention with shared keys": (attention_with(enable_gqa=True), parts(4, 5, 1)),
    "detached": (lambda x: x.exp().detach() * x + x.sin(), (leaf(4),)),
    "in place": (lambda x: (x * 2).mul_(3).relu_() + 1, (leaf(4, 6),)),
    "convolution": (pooled, (leaf(2, 3, 8, 8), leaf(4, 3, 3, 3))),
    "convolution of a signal": (
        lambda x, w, b: functional.conv1d(x, w, b, padding=1, groups=2).tanh(),
        (leaf(2, 4, 9), leaf(6, 2, 3), leaf(6)),
    ),
    "convolution by channel": (
        lambda x, w: functional.conv2d(x, w, stride=2, padding=2, dilation=(2, 1), groups=4).tanh(),
        (leaf(2, 4, 7, 6), leaf(4, 1, 3, 3)),
    ),
    "convolution of a volume": (
        lambda x, w, b: functional.conv3d(x, w, b, stride=2, padding=1).tanh(),
        (leaf(1, 2, 4, 5, 3), leaf(3, 2, 3, 3, 3), leaf(3)),
    ),
    "convolution of a volume by groups": (
        lambda x, w, b: functional.conv3d(x, w, b, stride=(2, 1, 2), padding=1, dilation=(1, 2, 1), groups=2).tanh(),
        (leaf(2, 4, 4, 5, 3), leaf(6, 2, 3, 3, 3), leaf(6)),
    ),
    "batch norm of permuted images": (
        lambda x, w: functional.batch_norm(x.permute(1, 3, 0, 2), None, None, w, None, True),
        (leaf(2, 4, 5, 6), leaf(6)),
    ),
    "batch norm of volumes with channels last": (
        lambda x, w: functional.batch_norm(x.permute(0, 4, 1, 2, 3), None, None, w, None, True),
        (leaf(2, 4, 5, 3, 6), leaf(6)),
    ),
    "transposed convolution": (
        lambda x, w, b: functional.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1).tanh(),
        (leaf(2, 3, 4, 5), leaf(3, 4, 3, 3), leaf(4)),
    ),
    "places from the end": (lambda x: (x[torch.tensor([-1, 0, -1])] * 2).tanh(), (leaf(5, 3),)),
    "totals repeated": (lambda x: x.sum((1, 2), keepdim=True) * x, (leaf(2, 3, 4, 5),)),
    "embedding": (lambda w: functional.gelu(functional.embedding(TOKENS, w)), (leaf(5, 3),)),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.sampled(2)
def test_gradients(name: str) -> None:
    function, inputs = GRADIENTS[name]
    check_gradients(function, *inputs)
    assert torchmdla.stats().specialisations >= 1
    assert not torchmdla.stats().fallbacks


class Classifier(nn.Module):
    """Convolutions, batch norms and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2)
        )
        self.head = nn.Linear(8, 5)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(self.features(x).mean((2, 3)))


OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_training_loop(optimiser: str) -> None:
    eager = Classifier().train()
    ours = copy.deepcopy(eager)
    program = compiled(ours)
    losses: list[list[float]] = []
    data = [(torch.randn(4, 3, 8, 8), torch.randint(5, (4,))) for _ in range(5)]
    for call, module in ((program, ours), (eager, eager)):
        steps = OPTIMISERS[optimiser](module.parameters())
        losses.append([])
        for images, labels in data:
            steps.zero_grad()
            loss = functional.cross_entropy(call(images), labels)
            loss.backward()
            steps.step()
            losses[-1].append(loss.item())
    assert_matches(*losses, layers=100)
    assert_matches(ours.state_dict(), eager.state_dict(), layers=400)
    # Eval mode uses the trained weights.
    ours.eval(), eager.eval()
    with torch.no_grad():
        for _ in range(2):
            assert_matches(program(data[0][0]), eager(data[0][0]), layers=400)
    assert not torchmdla.stats().fallbacks


def normed_layers() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())


def halved_layers() -> nn.Module:
    layers = nn.Flatten(), nn.Linear(192, 16), nn.Dropout(0.3), nn.Linear(16, 5)
    return nn.Sequential(*layers).to(torch.bfloat16)


@pytest.mark.parametrize("build", [normed_layers, halved_layers])
def test_only_random_numbers_are_outside_of_groups(build: Callable[[], nn.Module]) -> None:
    eager = build().train()
    ours = copy.deepcopy(eager)
    for step in range(3):
        x = torch.randn(2, 3, 8, 8).to(next(eager.parameters()).dtype)
        for program in (compiled(ours), eager):
            torch.manual_seed(step)
            program(x).square().mean().backward()
        assert_matches([p.grad for p in ours.parameters()], [p.grad for p in eager.parameters()], layers=8)
        assert_matches(dict(ours.named_buffers()), dict(eager.named_buffers()), layers=8)
    assert all(name.startswith("draw_mask:") for name in torchmdla.stats().ungrouped)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_is_in_one_group(dynamic: bool, dtype: torch.dtype) -> None:
    """Masks are drawn in the order of memory, for any sizes. One of them is transposed."""

    def drop(x: Tensor, weight: Tensor) -> Tensor:
        y = functional.dropout(torch.relu(x @ weight), 0.3)
        return functional.dropout(y.t().sin(), 0.6).exp()

    program = compiled(drop, dynamic=dynamic)
    weight = torch.randn(6, 7, dtype=dtype, requires_grad=True)
    for rows in (5, 5, 9, 9) if dynamic else (5, 5):
        x = torch.randn(rows, 6, dtype=dtype)
        results = []
        for call in (program, drop):
            torch.manual_seed(rows)
            y = call(x, weight)
            results.append((y, torch.autograd.grad(y.sum(), weight), torch.get_rng_state()))
        assert_matches(*results, layers=4)
    assert torchmdla.stats().groups == 2
    assert not torchmdla.stats().fallbacks


@pytest.mark.parametrize("probability", [0.0, 0.1, 1 / 3, 1.0])
def test_masks_are_those_of_eager(probability: float) -> None:
    """Masks of any length, after any others, leave PyTorch's generator as eager does."""
    results = []
    for draw in (_C.draw_mask, lambda sizes, p: torch.empty(sizes, dtype=torch.bool).bernoulli_(p)):
        torch.manual_seed(3)
        masks = [(torch.rand(length % 3), draw([length], probability)) for length in (1, 0, 311, 312, 623, 5000, 7)]
        results.append((masks, torch.get_rng_state()))
    assert_matches(*results)


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_masks_need_a_probability(probability: float) -> None:
    with pytest.raises(RuntimeError, match="bernoulli_ expects p"):
        _C.draw_mask([3], probability)


@pytest.mark.parametrize("name", ["bert", "gpt", "vit_b16"])
def test_transformers_train_as_two_groups(name: str) -> None:
    spec = MODELS[name].reduced()
    eager = spec.build().train()
    ours = copy.deepcopy(eager)
    for step in range(3):
        inputs = spec.inputs(batch=2, seed=step)
        for program in (compiled(ours), eager):
            torch.manual_seed(step)
            torch.stack([result.square().mean() for result in tree_leaves(program(*inputs))]).sum().backward()
        gradients = [
            # The gradient of a bias of keys is only rounding errors.
            {name: p.grad for name, p in model.named_parameters() if not name.endswith("key.bias")}
            for model in (ours, eager)
        ]
        assert_matches(*gradients, layers=spec.layers)
    assert torchmdla.stats().groups == 2


class Dropping(nn.Module):
    """Two layers, and a dropout that evaluation leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Dropout())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize(
    ("training", "forces", "options", "in_process", "count"),
    [
        (True, False, {}, False, 2),
        (True, False, {}, True, 0),
        (True, True, {}, False, 0),
        (False, False, {}, False, 0),
        (True, False, {"strict": True}, False, 0),
        (True, False, {"background": True}, False, 0),
    ],
)
def test_a_training_step_is_compiled_before_its_groups_are_called(
    training: bool,
    forces: bool,
    options: dict[str, Any],
    in_process: bool,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead, called = [], []
    compile_program = service.compile_program

    def compile_noted(program: Program) -> CompileOutcome:
        (ahead if threading.current_thread().name == "ahead" else called).append(program.key)
        return compile_program(program)

    def submit_ahead(task: Callable[[], object]) -> None:
        thread = threading.Thread(target=task, name="ahead")
        thread.start()
        thread.join()

    monkeypatch.setattr(service.default_service(), "in_process", in_process)
    monkeypatch.setattr(service, "compile_program", compile_noted)
    monkeypatch.setattr(background, "submit_ahead", submit_ahead)
    model = Dropping().train(training)
    compiled(model, options=options)(X.clone().requires_grad_(forces)).sum().backward()
    assert len(ahead) == count
    if count:
        assert sorted(called) == sorted(ahead)


def test_a_backward_pass_may_be_repeated() -> None:
    """Check that the backward pass frees only values that PyTorch does not hold for another pass."""
    model, x = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)), torch.randn(256, 128)
    for program in (compiled(model), compiled(model)):
        results = program(x)
        gradients = [
            torch.autograd.grad(results.sum(), list(model.parameters()), retain_graph=again) for again in (1, 1, 0)
        ]
        for other in gradients:
            assert_matches(other, torch.autograd.grad(model(x).sum(), list(model.parameters())))


def test_saves_fewer_values_than_eager() -> None:
    """The operands of products are computed again from values that are saved for other reasons."""
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6()) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Conv2d(8, 8, 1)).train()
    weights = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    numbers = []
    for program in (compiled(model), model):
        for _ in range(2):
            saved: dict[int, int] = {}

            def count(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
                if tensor.data_ptr() not in weights:
                    saved[tensor.data_ptr()] = tensor.nbytes
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                program(torch.randn(4, 8, 16, 16)).sum().backward()
        numbers.append(sum(saved.values()))
    assert numbers[0] < 0.7 * numbers[1]


def test_a_long_backward_pass_frees_its_workspace() -> None:
    """PyTorch's operators between groups can use the memory, which is cheap to clear again."""
    small, weights = torch.randn(64, 64), torch.randn(64, 64)
    product = compiled(lambda x: (x @ weights).softmax(1) @ weights)
    wave = compiled(lambda x: x.sin().exp().cos().tanh().sum())
    long = torch.randn(1 << 21, requires_grad=True)

    def step(_: int) -> None:
        others = _C.memory_use()["workspace"]
        product(small)
        loss, used = wave(long), _C.memory_use()["workspace"]
        loss.backward()
        assert used > others
        assert _C.memory_use()["workspace"] == others

    wave(long).backward()  # compiles both groups
    product(small)
    assert not in_threads(1, step)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_no_garbage_is_collected_while_a_graph_is_traced(is_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[bool] = []
    compile_graph = dynamo.compile_boxed

    def note(*of: Any, **options: Any) -> Any:
        states.append(gc.isenabled())
        return compile_graph(*of, **options)

    monkeypatch.setattr(dynamo, "compile_boxed", note)
    if not is_enabled:
        gc.disable()
    try:
        compiled(nn.Linear(6, 3).train())(torch.randn(2, 6)).sum()
        assert states == [False, False]  # forward and backward
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["resnet18", "bert", "vit_b16"])
@pytest.mark.sampled(0)
def test_models(name: str) -> None:
    spec = MODELS[name].reduced()
    eager = spec.build().train()
    for layer in eager.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    ours = copy.deepcopy(eager)
    program = compiled(ours, dynamic=False)
    for seed in range(2):
        inputs = spec.inputs(batch=2, seed=seed)
        results = []
        for call, module in ((program, ours), (eager, eager)):
            module.zero_grad()
            outputs = call(*inputs)
            sum(output.sin().mean() for output in tree_leaves(outputs)).backward()
            # A constant added to the input of a softmax has no effect. The gradient of a key's bias is therefore only
            # rounding error.
            gradients = {k: p.grad for k, p in module.named_parameters() if not k.endswith("key.bias")}
            results.append((outputs, gradients, dict(module.named_buffers())))
        assert_matches(*results, layers=16 * spec.layers)
    assert not torchmdla.stats().fallbacks


# --- sizes that vary ---------------------------------------------------------------------------------------------


@pytest.mark.sampled(0)
def test_dynamic_sizes() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    program = compiled(layer, dynamic=True)
    for batch, length in [(2, 5), (3, 5), (4, 7), (5, 9), (6, 11)]:
        x = torch.randn(batch, length, 8)
        assert_matches(program(x), layer(x), layers=8)
        layer.zero_grad()
        program(x).sin().sum().backward()
        gradients = {name: p.grad for name, p in layer.named_parameters()}
        layer.zero_grad(set_to_none=True)
        layer(x).sin().sum().backward()
        assert_matches(gradients, {name: p.grad for name, p in layer.named_parameters()}, layers=64)
    assert not torchmdla.stats().fallbacks


def test_sizes_that_leave() -> None:
    def function(x: Tensor) -> Any:
        y = torch.relu(x) + x.size(0) / 2
        return y.view(-1, 2), y.size(0) * 2, torch.full((x.size(1),), 2.0) * 3 + 1

    program = compiled(function, dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 4, 5, 6, 5):
            x = torch.randn(rows, 4)
            assert_matches(program(x), function(x))


def test_a_remainder_that_is_a_size_and_a_value() -> None:
    def function(x: Tensor) -> Tensor:
        return (torch.zeros((x.size(0) % 3, 4)) + (x.size(0) % 3)).flatten()

    program = compiled(function)
    with torch.no_grad():
        for rows in (19, 5, 23, 17, 17, 8):
            x = torch.randn(rows, 4)
            assert_matches(program(x), function(x))


@pytest.mark.parametrize(
    "part", [lambda x: x[..., 1], lambda x: x[:, 3:, 0], lambda x: x.flatten()[4:], lambda x: x.view(-1, 4)[1:]]
)
def test_a_view_of_a_written_tensor(part: Callable[[Tensor], Tensor]) -> None:
    """AOT Autograd recreates the view from the input, with the offset and strides of the written result."""

    def function(x: Tensor) -> Tensor:
        x.copy_(x * 2)
        return x.reshape(-1, 4)

    program = compiled(function)
    with torch.no_grad():
        for rows in (64, 25, 13, 13):
            ours, expected = (part(torch.arange(8.0 * rows).view(4, rows, 2)) for _ in range(2))
            result, wanted = program(ours), function(expected)
            assert_matches((result, ours), (wanted, expected))
            assert (result.data_ptr() == ours.data_ptr()) == (wanted.data_ptr() == expected.data_ptr())


# --- behaviour that PyTorch defines -----------------------------------------------------------------------------------


def test_random_numbers_are_eagers() -> None:
    layer = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 2)).train()
    program = compiled(layer)
    for seed in range(3):
        results = []
        for call in (program, layer):
            torch.manual_seed(seed)
            layer.zero_grad()
            result = call(X)
            result.sum().backward()
            results.append((result, [p.grad for p in layer.parameters()], torch.rand(3)))
        assert_matches(*results)


def test_autocast() -> None:
    layer = nn.Linear(6, 5)

    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x).relu() + 1

    with torch.no_grad():
        check(function, X)
        with torch.autocast("cpu", torch.bfloat16):
            check(lambda x: layer(x).float().exp() * 2, X)


def test_errors_are_eagers() -> None:
    def function(x: Tensor, indices: Tensor) -> Tensor:
        return torch.relu(x.index_select(0, indices)) + 1

    program = compiled(function)
    with torch.no_grad():
        for index in (1, 2, 100):
            try:
                expected: Any = function(X, torch.tensor([index]))
            except Exception as error:
                with pytest.raises(type(error), match="index"):
                    program(X, torch.tensor([index]))
            else:
                assert_matches(program(X, torch.tensor([index])), expected)


def test_switched_off() -> None:
    program = compiled(lambda x: torch.relu(x) * 2 + 1)
    program(X)
    with torchmdla.enabled(False):
        assert_matches(program(X), torch.relu(X) * 2 + 1)
    assert sum(torchmdla.stats().fallbacks.values()) == 1


def test_threads() -> None:
    layer = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6)).eval()
    program = compiled(layer)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(20):
                x = torch.randn(4, 6, generator=generator)
                assert_matches(program(x), layer(x))

    with torch.no_grad():
        program(X)
    assert not in_threads(4, work)


def test_whole_graph() -> None:
    with torch.no_grad():
        check(lambda x: torch.relu(x) + 1, X, fullgraph=True)
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(broken_graph, fullgraph=True)(X)


# --- mode and options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"options": {"speed": 3}}, "unknown option 'speed'.*background, device"),
        ({"options": {"strict": 1}}, "option 'strict' is a bool, got int"),
        ({"options": {"device": "gpu"}}, "no device named 'gpu'"),
        ({"options": {"max_specialisations": -1}}, "must not be negative"),
        ({"mode": "fastest"}, "unknown mode 'fastest'"),
    ],
)
def test_unknown_options(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        compiled(lambda x: x + 1, **keywords)(X)


def test_modes_and_options() -> None:
    with torch.no_grad():
        check(lambda x: torch.relu(x) + 1, X, mode="max-autotune")
        check(lambda x: torch.relu(x) + 2, X, options={"device": "cpu", "strict": True, "background": False})


def test_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise torchmdla.CompileError("refused", diagnostic='loc("aten::relu"("graph":1:0)): no')

    monkeypatch.setattr("torchmdla.compile_service.service.compile_program", refuse)
    function = lambda x: torch.relu(x) * 2 + 1  # noqa: E731
    with pytest.warns(RuntimeWarning, match=r"aten::relu: refused \(at .*test_dynamo.py:"):
        assert_matches(compiled(function)(X), function(X))
    torch._dynamo.reset()
    with pytest.raises(torchmdla.CompileError, match="refused"):
        compiled(function, options={"strict": True})(X)


def test_specialisations_are_limited() -> None:
    torchmdla.enable(dynamic=False)
    program = compiled(lambda x: torch.relu(x) * 2 + 1, dynamic=True, options={"max_specialisations": 1})
    for rows in (2, 3, 3):
        assert_matches(program(X[:rows]), torch.relu(X[:rows]) * 2 + 1)
    assert sum(torchmdla.stats().fallbacks.values()) == 2


@pytest.mark.sampled(0)
def test_found_without_import() -> None:
    script = (
        "import torch\n"
        "program = torch.compile(lambda x: torch.relu(x) * 2 + 1, backend='torchmdla')\n"
        "x = torch.randn(3)\n"
        "for _ in range(2): assert torch.equal(program(x), torch.relu(x) * 2 + 1)\n"
        "import torchmdla\n"
        "print(torchmdla.stats().specialisations)\n"
    )
    done = run_script("-c", script)
    assert done.stdout.split() == ["1"], done.stderr


@pytest.mark.parametrize("example", ["fx_model", "training_loop"])
@pytest.mark.sampled(0)
def test_examples(example: str) -> None:
    script = Path(__file__).parents[2] / "examples" / f"{example}.py"
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert "groups were compiled" in done.stdout
    assert "a group runs in" not in done.stderr
