"""TorchScript in the Torch dialect: it verifies, matches TorchScript, and passes upstream's pipeline."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mlir_running import run_text
from torch import Tensor, nn

import torchmdla
from torchmdla import Annotations, CaptureError, TensorSpec
from torchmdla.importer.script_program import program_of
from torchmdla.script.ir import Program
from torchmdla.testing.compare import assert_matches

_TO_BACKEND = "builtin.module(torchscript-module-to-torch-backend-pipeline)"

# --- functions ---------------------------------------------------------------------------------------------------


def scale(x: Tensor, factor: int = 2) -> Tensor:
    return x * factor


def chooses(x: Tensor, flag: bool) -> Tensor:
    if flag:
        y = x + 1
    elif bool(x.sum() > 0):
        y = x - 1
    else:
        raise ValueError("neither")
    return y


def loops(x: Tensor, n: int) -> tuple[Tensor, int]:
    count = 0
    for i in range(n):
        x = x + i
    while bool(x.sum() > 10.5) and count < 5:
        x = x / 2
        count += 1
        if count == 3:
            break
    return x, count


def optionals(x: Tensor, y: Tensor | None, n: int | None = None) -> tuple[Tensor, int | None]:
    if y is not None:
        x = x + y
    if n is not None:
        x = x * n
    return x, n


def dictionaries(values: dict[str, Tensor], x: Tensor) -> dict[str, list[int]]:
    sizes: dict[str, list[int]] = {}
    for key, value in values.items():
        sizes[key] = value.size()
    values["x"] = x
    return {"first": sizes["a"], "keys": [len(values), 3]}


def lists(x: Tensor) -> list[tuple[Tensor, float]]:
    pairs = [(x, 0.5)]
    pairs.append((x.t(), float("inf")))
    parts = x.unbind(0)
    a, b = [part * 2 for part in parts][:2]
    pairs.append((a + b, 1.0))
    return pairs


def text_and_devices(x: Tensor) -> Tensor:
    print(f"size {x.size(0)}", x.dtype)
    result = torch.zeros([2], dtype=torch.float64, device=torch.device("cpu"))
    result.add_(x.sum())
    return result.to(x.dtype)


def calls(x: Tensor) -> Tensor:
    return scale(scale(x), 3) + scale(x)


# Parts that the text of each function must contain.
FUNCTIONS: dict[Callable[..., Any], list[str]] = {
    chooses: ["torch.prim.If ", "torch.prim.RaiseException", "torch.prim.Uninitialized"],
    loops: ["torch.prim.Loop ", "torch.prim.Loop.condition", "torch.prim.TupleConstruct"],
    optionals: ["!torch.optional<tensor>", "torch.prim.unchecked_cast", "torch.derefine", "!torch.optional<int>"],
    dictionaries: ["!torch.dict<str, list<int>>", "torch.prim.DictConstruct", "torch.aten._set_item.str"],
    lists: ["!torch.list<tuple<tensor, float>>", "torch.prim.ListUnpack", "0x7FF0000000000000"],
    text_and_devices: ["torch.constant.device", "torch.prim.Print", "torch.aten.add_.Tensor"],
    calls: ["func.func private @__torch__.test_script_import.scale", "call @__torch__"],
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_functions(function: Callable[..., Any]) -> None:
    builder = torchmdla.ModuleBuilder()
    name = builder.import_function(torch.jit.script(function))
    text = str(builder.module)
    assert f"func.func public @{name}(" in text
    assert builder.module.operation.verify()
    for part in FUNCTIONS[function]:
        assert part in text


def test_several_functions_share_callees() -> None:
    builder = torchmdla.ModuleBuilder()
    builder.import_function(torch.jit.script(calls))
    builder.import_function(torch.jit.script(lambda_like))
    with builder.capture_function("captured", [torch.ones(2)]) as f:
        f.returns(torch.ones(2).exp())
    assert str(builder.module).count("func.func private @__torch__.test_script_import.scale") == 1
    assert builder.module.operation.verify()


def lambda_like(x: Tensor) -> Tensor:
    return scale(x, 5)


def test_a_traced_function() -> None:
    builder = torchmdla.ModuleBuilder()
    builder.import_function(torch.jit.trace(lambda x: torch.relu(x) + 1, torch.ones(2, 3)))
    assert "torch.aten.relu" in str(builder.module)


def test_a_function_with_known_arguments() -> None:
    builder = torchmdla.ModuleBuilder()
    builder.import_function(torch.jit.script(scale), {"x": TensorSpec((2, None), torch.float32)})
    assert "%arg0: !torch.tensor {torch.type_bound = !torch.vtensor<[2,?],f32>}" in str(builder.module)


# --- modules -----------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3, size)
        self.rate = 0.5
        self.sizes = [size, 3]
        self.named = {"ones": torch.ones(2)}
        self.pair = (1, "text")
        self.missing: int | None = None
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * self.rate

    @torch.jit.export
    def size(self, which: int) -> int:
        missing = self.missing
        return self.sizes[which] if missing is None else missing


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Encoder(20)
        self.layers = nn.ModuleList([nn.Linear(20, 20), nn.Tanh()])
        self.calls = 0

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        if scale is not None:
            x = x * scale
        return x

    @torch.jit.export
    def counted(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        return {"made": self.forward(x, 2.0), "size": torch.tensor(self.first.size(0))}


def imported(module: torch.jit.ScriptModule, annotations: Annotations | None = None) -> Any:
    builder = torchmdla.ModuleBuilder()
    builder.import_module(module, annotations)
    assert builder.module.operation.verify()
    return builder


def test_a_module() -> None:
    module = Network()
    text = str(imported(torch.jit.script(module)).module)
    for part in [
        'torch.attr "calls" : !torch.int',
        'torch.attr "sizes" : !torch.list<int>',
        'torch.attr "named" : !torch.dict<str, tensor>',
        'torch.attr "pair" : !torch.tuple<int, str>',
        'torch.method "counted", @__torch__.test_script_import',
        'torch.slot "rate", %float',
        "torch.prim.CallMethod %",
        'torch.prim.SetAttr %arg0["calls"]',
        'torch.prim.GetAttr %arg0["first"]',
        "dense_resource<",
        "dense<[true, false]>",
    ]:
        assert part in text
    # Large tensors are stored as their bytes.
    assert module.first.linear.weight.detach().numpy().tobytes().hex().upper() in text
    assert text.count("torch.nn_module {") == 6
    assert 'private "' not in text


def loaded(module: torch.jit.ScriptModule, folder: Path, load: Callable[[Path], Any] = torch.jit.load) -> Any:
    module.save(folder / "model.pt")
    return load(folder / "model.pt")


class Small(nn.Module):
    """Module that upstream's passes support: submodules, attributes, a loop over numbers, a branch on a size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
        self.rate = 2.0

    def forward(self, x: Tensor) -> Tensor:
        total = 0
        for i in range(3):
            total += i
        if x.size(1) > 2:
            x = x + total
        return scale(self.rest(self.linear(x)) * self.rate)

    @torch.jit.export
    def other(self, x: Tensor) -> Tensor:
        return x


MAKERS: dict[str, Callable[[nn.Module, Tensor, Path], Any]] = {
    "script": lambda module, x, folder: torch.jit.script(module),
    "trace": lambda module, x, folder: torch.jit.trace(module, x),
    "script, loaded": lambda module, x, folder: loaded(torch.jit.script(module), folder),
    "trace, loaded": lambda module, x, folder: loaded(torch.jit.trace(module, x), folder),
    "frozen": lambda module, x, folder: torch.jit.freeze(torch.jit.script(module.eval())),
    "script, read": lambda module, x, folder: loaded(torch.jit.script(module), folder, torchmdla.read),
    "trace, read": lambda module, x, folder: loaded(torch.jit.trace(module, x), folder, torchmdla.read),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_to_the_backend_contract_and_run(maker: str, tmp_path: Path) -> None:
    """Check that upstream's pipeline removes the object graph, and that the rest computes eager's values."""
    from torch_mlir.passmanager import PassManager

    torch.manual_seed(0)
    module, x = Small().eval(), torch.randn(5, 3)
    scripted = MAKERS[maker](module, x, tmp_path)
    program = scripted if isinstance(scripted, Program) else program_of(scripted)
    name = program.method().parameters[1]
    known = {"forward": {name: TensorSpec(x.shape, torch.float32)}}
    builder = imported(scripted, Annotations(exports=["forward"], arguments=known))
    with builder.module.context:
        PassManager.parse(_TO_BACKEND).run(builder.module.operation)
    text = str(builder.module)
    assert "nn_module" not in text
    assert re.findall(r"func\.func @(\w+)", text) == ["forward"]
    expected = [module(x).detach()]
    assert_matches(run_text(text, [x], expected), expected, layers=2)


# --- annotations -------------------------------------------------------------------------------------------------


def test_exports_and_arguments() -> None:
    annotations = Annotations(
        exports=["forward", "first.size"],
        arguments={
            "forward": {"x": TensorSpec((-1, 3), torch.float32)},
            "first.forward": {"x": TensorSpec((2, 3), torch.float64)},
        },
        mutable={"first.forward": ["x"]},
    )
    text = str(imported(torch.jit.script(Network()), annotations).module)
    for part in [
        'torch.method "forward", @__torch__.test_script_import.Network.forward',
        'torch.method private "counted"',
        'torch.attr private "calls"',
        'torch.attr "first"',
        'torch.attr private "layers"',
        'torch.method "size"',
        'torch.method private "forward", @__torch__.test_script_import.Encoder.forward',
        "{torch.type_bound = !torch.vtensor<[?,3],f32>}",
        "{torch.type_bound = !torch.tensor<[2,3],f64>}",
    ]:
        assert part in re.sub(r"___torch_mangle_\d+\.", "", text)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        (Annotations(exports=["backward"]), "no method or attribute 'backward'"),
        (Annotations(exports=["second.forward"]), "no submodule 'second' on the path 'second.forward'"),
        (Annotations(arguments={"calls": {}}), "no method 'calls'"),
        (Annotations(arguments={"forward": {"y": TensorSpec((1,), torch.float32)}}), "unknown argument 'y'"),
    ],
)
def test_invalid_annotations_are_rejected(annotations: Annotations, message: str) -> None:
    builder = torchmdla.ModuleBuilder()
    before = str(builder.module)
    with pytest.raises(ValueError, match=message):
        builder.import_module(torch.jit.script(Network()), annotations)
    assert str(builder.module) == before


# --- errors ------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self, parts: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.one = nn.Parameter(parts[0])
        self.other = nn.Parameter(parts[1])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.one + self.other


def test_one_tensor_is_one_value() -> None:
    weight = torch.ones(3)
    text = str(imported(torch.jit.script(Tied((weight, weight)))).module)
    assert text.count("torch.tensor.literal") == 1


def test_memory_that_is_shared_in_part() -> None:
    builder = torchmdla.ModuleBuilder()
    before = str(builder.module)
    weight = torch.ones(4)
    with pytest.raises(CaptureError, match=r"attribute 'other' of .*Tied.*shares memory with another"):
        builder.import_module(torch.jit.script(Tied((weight[:1], weight))))
    assert str(builder.module) == before


def forks(x: Tensor) -> Tensor:
    return torch.jit.wait(torch.jit.fork(torch.relu, x))


def test_inexpressible_programs_are_named() -> None:
    builder = torchmdla.ModuleBuilder()
    before = str(builder.module)
    with pytest.raises(CaptureError, match=r"prim::fork|aten::wait|Future"):
        builder.import_function(torch.jit.script(forks))
    assert str(builder.module) == before


def test_wrong_use() -> None:
    builder = torchmdla.ModuleBuilder()
    with pytest.raises(TypeError, match="takes a scripted function, got function"):
        builder.import_function(scale)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a scripted module, got Linear"):
        builder.import_module(nn.Linear(2, 2))  # type: ignore[arg-type]
    builder.import_function(torch.jit.script(scale))
    with pytest.raises(ValueError, match="already"):
        builder.import_function(torch.jit.script(scale))
    builder.import_module(torch.jit.script(Small()))
    with pytest.raises(ValueError, match="a module was imported before"):
        builder.import_module(torch.jit.script(Small()))
