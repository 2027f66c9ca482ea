"""Every operator that the cpu device lists computes what eager computes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from executing import execute
from op_samples import SAMPLES
from recording import run_and_record
from single_op import graph_of, schemas

from torchmdla.devices.cpu.ops import OPS
from torchmdla.errors import CompileError
from torchmdla.importer import import_graph
from torchmdla.testing.compare import assert_matches

# No graph text names them: chunks have attributes, and the overload is what the script compiler prefers for a list.
WITHOUT_SAMPLE = {"prim::ConstantChunk", "aten::split"}
COMPUTING = [
    name for name, support in OPS.items() if support.kind not in ("shape", "item") and name not in WITHOUT_SAMPLE
]


def converted(value: object, dtype: torch.dtype) -> object:
    """float32 tensors, also in lists, as ``dtype``."""
    if isinstance(value, list):
        return [converted(item, dtype) for item in value]
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def check(name: str, arguments: tuple[object, ...]) -> None:
    graph, inputs = graph_of(name, arguments, copy=OPS[name].kind == "view")
    expected, record = run_and_record(graph, inputs)
    made = execute(import_graph(graph, record, ()), graph, inputs)
    for result, wanted in zip(made, expected, strict=True):
        assert_matches(result, wanted)


def test_names_are_the_registrys() -> None:
    assert set(OPS) <= set(schemas())


def test_conditions_name_arguments() -> None:
    for name, support in OPS.items():
        assert set(support.where) <= {argument.name for argument in schemas()[name].arguments}


@pytest.mark.parametrize("name", COMPUTING)
def test_single_precision(name: str) -> None:
    for arguments in SAMPLES[name]:
        check(name, arguments)


@pytest.mark.parametrize("name", COMPUTING)
def test_other_dtypes(name: str) -> None:
    """What eager takes is either compiled and right, or refused before it runs."""
    for dtype in (torch.float64, torch.int64, torch.bool):
        arguments = tuple(converted(value, dtype) for value in SAMPLES[name][0])
        try:
            graph, inputs = graph_of(name, arguments, copy=False)
            run_and_record(graph, inputs)
        except RuntimeError:
            continue
        try:
            check(name, arguments)
        except CompileError:
            assert dtype != torch.float64 or name == "aten::grid_sampler"


def memory_transposed(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(0, -1).contiguous().transpose(0, -1) if value.dim() > 1 else value


def strided(value: torch.Tensor) -> torch.Tensor:
    return torch.stack([value, value], -1)[..., 1] if value.dim() else value


def channels_last(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value


def mapped(change: Callable[[torch.Tensor], torch.Tensor], value: object) -> object:
    """``change`` applied to every tensor, also in lists."""
    if isinstance(value, list):
        return [mapped(change, item) for item in value]
    return change(value) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("change", [memory_transposed, strided, channels_last])
@pytest.mark.parametrize("name", COMPUTING)
def test_strides(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    arguments = SAMPLES[name][0]
    changed = tuple(mapped(change, value) for value in arguments)
    if all(
        getattr(new, "stride", None) == getattr(old, "stride", None)
        for new, old in zip(changed, arguments, strict=True)
    ):
        return
    graph, inputs = graph_of(name, changed, copy=True)
    try:
        run_and_record(graph, inputs)
    except RuntimeError:
        return  # eager refuses these strides, as view does
    check(name, changed)


@pytest.mark.parametrize("sizes", [(), (0,), (2, 0, 3), (1,), (5, 1, 3)], ids=str)
@pytest.mark.parametrize("name", [name for name, support in OPS.items() if support.kind == "cheap"])
def test_sizes(name: str, sizes: tuple[int, ...]) -> None:
    """0-d, empty and broadcasting tensors, for every op that eager gives a meaning with them."""
    numbers = torch.linspace(0.1, 0.9, max(1, math.prod(sizes)))[: math.prod(sizes)].view(sizes)
    first = True

    def resized(value: torch.Tensor) -> torch.Tensor:
        nonlocal first
        full, first = first, False
        # Tensors after the first broadcast against it.
        result = numbers if full or not sizes else numbers[..., :1]
        return result.to(value.dtype) if value.dtype != torch.bool else result > 0.5

    arguments = tuple(mapped(resized, value) for value in SAMPLES[name][0])
    try:
        graph, inputs = graph_of(name, arguments, copy=False)
        run_and_record(graph, inputs)
    except (RuntimeError, IndexError):
        return
    check(name, arguments)
