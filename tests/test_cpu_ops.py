"""Every operator that the cpu device lists computes what eager computes."""

from __future__ import annotations

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
COMPUTING = [name for name, support in OPS.items() if support.kind != "shape" and name not in WITHOUT_SAMPLE]


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
