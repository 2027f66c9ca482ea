"""Results of models in files, for inputs of several kinds."""

from __future__ import annotations

import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_models import Exported, eager, export, flattened, tensors
from torch import Tensor, nn

import torchmdla
import torchmdla_runtime
from torchmdla.packages.native_file import info_of
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS
from torchmdla_runtime import ModelError, WrongTensor


@pytest.mark.parametrize("name", ["mlp", "resnet18", "bert", "mobilenet_v3_large", "lstm", "gpt"])
@pytest.mark.sampled(0)
def test_models_match_eager(name: str, tmp_path: Path) -> None:
    spec = MODELS[name].reduced()
    model = export(spec.build(), spec.inputs(), tmp_path / "model.tmdla", spec.layers)
    for threads in (1, 2):
        model.check(model.load(threads))


def test_models_report_inputs_and_outputs(any_batch: Exported) -> None:
    model = any_batch.load()
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in model.inputs] == [("input", np.float32, (None, 32))]
    assert [(tensor.dtype, tensor.shape) for tensor in model.outputs] == [(np.float32, (None, 64))]
    assert model.output_shapes((9, 32)) == [(9, 64)]


def test_any_sizes(any_batch: Exported) -> None:
    spec, model = MODELS["mlp"].reduced(), any_batch.load(2)
    for batch in (2, 3, 5, 31, 64):
        any_batch.check(model, spec.inputs(batch=batch))
    with pytest.raises(
        WrongTensor, match=r"no code .*for inputs float32 1x32, but for float32 2x32; float32 5x32; float32 \?x32"
    ):
        model(np.zeros((1, 32), np.float32))


class Halved(nn.Module):
    """A module whose result sizes are not polynomials of its input sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images).relu()
        return nn.functional.max_pool2d(self.second(x) + x, 2)


def test_sizes_that_a_call_computes(tmp_path: Path) -> None:
    calls = [(torch.randn(1, 3, *sides),) for sides in ((32, 32), (37, 50), (41, 64))]
    model = export(Halved(), calls, tmp_path / "model.tmdla", layers=3)
    loaded = model.load(2)
    assert loaded.inputs[0].shape == (1, 3, None, None)
    for sides in ((99, 31), (33, 13), (64, 200)):
        model.check(loaded, (torch.randn(1, 3, *sides),))
    with pytest.raises(WrongTensor, match="as large as what the program computes of it needs"):
        loaded.output_shapes((1, 3, 5, 6))


@pytest.mark.sampled(0)
def test_several_sizes(tmp_path: Path) -> None:
    spec = MODELS["resnet18"].reduced()
    calls = [spec.inputs(size=side) for side in (32, 64)]
    model = export(spec.build(), calls, tmp_path / "model.tmdla", spec.layers)
    for call in calls:
        model.check(model.load(), call)
    # Weights that both codes read are stored once.
    info = info_of(model.path)
    assert len(info.codes) == 2
    assert len({weight.digest for weight in info.weights}) == len(info.weights)


class Images(nn.Module):
    """A convolution whose channels are the innermost dimension, in the result too."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.convolution(images).relu()


def test_layouts(tmp_path: Path) -> None:
    images = torch.randn(2, 8, 10, 12)
    last = images.contiguous(memory_format=torch.channels_last)
    for example in (images, last):
        model = export(Images(), (example,), tmp_path / "model.tmdla")
        for argument in (
            images,
            last,
            torch.randn(2, 8, 12, 10).transpose(2, 3),
            torch.randn(4, 8, 10, 24)[::2, :, :, ::2],
        ):
            model.check(model.load(), (argument,))


def test_arrays_that_lie_otherwise(mlp: Exported) -> None:
    model, (rows,) = mlp.load(), mlp.inputs
    backwards = np.ascontiguousarray(rows.numpy()[::-1, ::-1])[::-1, ::-1]
    unaligned = np.frombuffer(b"\0" + rows.numpy().tobytes(), np.uint8)[1:].view(np.float32).reshape(rows.shape)
    field = np.zeros(rows.shape, [("padding", np.int8), ("number", np.float32)])
    field["number"] = rows.numpy()
    for argument in (backwards, unaligned, field["number"], np.asfortranarray(rows.numpy())):
        assert_matches(tensors(model(argument)), mlp.expected())


def test_inputs_may_be_any_array(mlp: Exported) -> None:
    model, (rows,) = mlp.load(), mlp.inputs
    buffer = memoryview(array.array("f", rows.flatten().tolist())).cast("B").cast("f", tuple(rows.shape))
    for argument in (rows, rows.numpy(), buffer):
        assert_matches(tensors(model(argument)), mlp.expected())


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "the model has 1 inputs, and 0 are given"),
        ((np.zeros((4, 32)),), r"input 0 \(input\) is float32, and float64 is given"),
        ((np.zeros((3, 32), np.float32),), r"no code .*for inputs float32 3x32, but for float32 4x32"),
        ((np.zeros((4, 32, 1), np.float32),), "has 2 dimensions, and 4x32x1 is given"),
    ],
)
def test_wrong_tensors(mlp: Exported, inputs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(WrongTensor, match=message):
        mlp.load()(*inputs)
    with pytest.raises(TypeError, match="input input is a list, and no array"):
        mlp.load()([1.0])


class Several(nn.Module):
    """A module with results in a different order than they are computed, one of them twice."""

    def forward(self, x: Tensor, unused: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        first = x.relu() * 3 + y
        second = first.double().sum(1) * 2
        return second, (first, second), first - 1


class Functions(nn.Module):
    """Library functions: libtorch has them for vectors, and the C library for numbers."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.sin(x) + x, torch.atan2(x, y), torch.pow(x.abs(), y), torch.erf(x.double())


@pytest.mark.parametrize(("make", "sizes"), [(Several, ((6, 10), (1,), (10,))), (Functions, ((37, 5), (37, 5)))])
def test_small_modules(make: type[nn.Module], sizes: tuple[tuple[int, ...], ...], tmp_path: Path) -> None:
    model = export(make(), tuple(map(torch.randn, sizes)), tmp_path / "model.tmdla")
    model.check(model.load())


def test_errors_of_the_model(tmp_path: Path) -> None:
    model = export(
        nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4)), (torch.tensor([1, 9]),), tmp_path / "model.tmdla"
    )
    model.check(model.load())
    with pytest.raises(ModelError, match="an index out of bounds") as raised:
        model.load()(np.array([1, 10]))
    assert raised.value.status == 6


@pytest.mark.sampled(0)
def test_a_level_of_processors(tmp_path: Path) -> None:
    try:
        torchmdla.devices.get("cpu").configure(processor="x86-64-v3")
    except ValueError as error:
        pytest.skip(str(error))
    finally:
        torchmdla.enable()
    spec = MODELS["resnet18"].reduced()
    model = export(spec.build(), spec.inputs(), tmp_path / "model.tmdla", spec.layers, "x86-64-v3")
    model.check(model.load())
    (target,) = info_of(model.path).targets
    assert target.startswith("x86-64-v3") and "avx2" in target and "avx512f" not in target


def test_several_levels_of_processors(tmp_path: Path) -> None:
    """The runtime takes the target with the most features; all share the weights that are not packed."""
    spec = MODELS["mlp"].reduced()
    path, module = tmp_path / "model.tmdla", spec.build().eval()
    info = torchmdla.export_native(module, spec.inputs(), path, ["x86-64-v2", "native"])
    assert [target.partition(":")[0] for target in info.targets] == ["native", "x86-64-v2"]
    Exported(path, module, spec.inputs(), spec.layers).check(torchmdla_runtime.Model(path, threads=1))


def test_scripts_and_numbers_of_threads(tmp_path: Path) -> None:
    script = torch.jit.script(Images().eval())
    images = torch.randn(1, 8, 6, 6)
    torchmdla.export_native(script, images, tmp_path / "model.tmdla")
    loaded = Exported(tmp_path / "model.tmdla", script, (images,)).load(3)
    assert loaded.threads == 3
    loaded.threads = 1
    assert_matches(tensors(loaded(images)), flattened(eager(script, (images,))), strides=False)
    for wrong in (-1, 1 << 20):
        with pytest.raises(ModelError, match="no model runs on"):
            loaded.threads = wrong
