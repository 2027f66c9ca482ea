"""Tests of the tables of ``print(torchmdla.stats())``, and of the advice for each reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchmdla
from torchmdla.devices.mdla.lowering import NEEDS_ONNX
from torchmdla.report.advice import advice
from torchmdla.report.statistics import Statistics
from torchmdla.report.statistics_tables import reasons

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("without_gradients")


def two(x: Tensor) -> Tensor:
    return torch.sigmoid(torch.relu(x))


def power_of_size(x: Tensor) -> Tensor:
    return torch.relu(x) * (-1) ** x.size(0) + 1


def with_holes(x: Tensor) -> Tensor:
    return torch.relu(x).sum() + torch.nonzero(x).sum()


def test_a_row_for_each_group() -> None:
    compiled = torchmdla.compile(torch.jit.script(two), torch.randn(3, 4))
    before = torchmdla.stats()
    compiled(torch.randn(3, 4))
    (group,) = torchmdla.stats().by_group
    (earlier,) = before.by_group
    assert (group.compiled_calls, group.specialisations) == (earlier.compiled_calls + 1, 1)
    assert group.name.startswith("mdla_relu_sigmoid") and group.compile_seconds > 0
    line = two.__code__.co_firstlineno + 1
    assert group.source == f"{__file__}:{line}"
    text = str(torchmdla.stats())
    assert "1 group formed, 1 specialisation compiled" in text
    (row,) = [text_line for text_line in text.splitlines() if group.name in text_line]
    assert [cell.strip() for cell in row.split("│")[3:8]] == [
        str(n) for n in (group.compiled_calls, group.recorded_calls, 0, 0, 1)
    ]
    torchmdla.reset_stats()
    assert torchmdla.stats().by_group == ()
    with torchmdla.enabled(False):
        compiled(torch.randn(3, 4))
    (group,) = torchmdla.stats().by_group
    assert (group.compiled_calls, group.fallbacks) == (0, 1)


def test_brackets_are_printed() -> None:
    statistics = replace(torchmdla.stats(), fallbacks={f"{NEEDS_ONNX} [link=x]": 1})
    text = re.sub(r"[\s│]+", " ", str(statistics))
    assert "torchmdla[mdla]'" in text and "[link=x]" in text
    assert "install it" in text
    assert "torchmdla[mdla]" in re.sub(r"<[^>]*>", "", statistics._repr_html_())


def test_reasons_with_advice() -> None:
    scripted = torch.jit.script(power_of_size)
    for rows in (3, 3, 4, 5, 6):
        scripted(torch.randn(rows, 4))
    holes = torch.jit.script(with_holes)
    for _ in range(3):
        holes(torch.randn(3, 4))
    # Table cells are wrapped over several lines.
    text = str(torchmdla.stats())
    assert "aten::nonzero" in text and "torch.where(mask" in text
    assert "attempts" in text and "pad to" in text


def test_it_stays_data() -> None:
    statistics = Statistics(1, 2, 3, 4, 5, 0.5, 0, fallbacks={"a reason": 7})
    assert repr(statistics).startswith("Statistics(groups=1, specialisations=2, compiled=3, ")
    assert "by_group" not in repr(statistics)
    assert "a reason" in str(statistics) and "<pre" in statistics._repr_html_()


@pytest.mark.parametrize(
    ("written", "cells"),
    [
        (
            "aten::relu: device 'cpu' has no such operator (at a.py:3)",
            ("aten::relu: device 'cpu' has no such operator", "a.py:3"),
        ),
        ("a dispatch mode (autocast, vmap, …) is active", ("a dispatch mode (autocast, vmap, …) is active", "")),
        ("internal error: KeyError: 'x'", ("internal error: KeyError: 'x'", "")),
    ],
)
def test_reasons_are_taken_apart(written: str, cells: tuple[str, str]) -> None:
    ((_, *columns, count, _),) = reasons(Statistics(1, 1, 1, 0, 0, 0.1, 0, left_out={written: 4}))
    assert (tuple(columns), count) == (cells, 4)


# --- advice for each reason of the code ------------------------------------------------------------------------------

DEFAULT = advice("", "a reason that nobody knows")
DEFAULT_OF_SIZES = advice("", "it differs between sizes: a reason that nobody knows")

# Files that raise an error only because the sizes of a program vary, and the function or class that they call.
RAISES = {
    "torchmdla/capture/symbolic/dynamic.py": "CompileError",
    "torchmdla/capture/symbolic/run.py": "CompileError",
    "torchmdla/capture/symbolic/size_program.py": "CompileError",
    "torchmdla/devices/cpu/passes/generalise.py": "not_dynamic",
}


def texts(path: str, function: str) -> Iterator[str]:
    """Yield the first arguments of the calls of ``function`` in a file. ``7`` replaces each run-time value."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function:
            (first, *_) = node.args
            parts = first.values if isinstance(first, ast.JoinedStr) else [first]
            if not isinstance(parts[0], ast.Name):
                yield "".join(part.value if isinstance(part, ast.Constant) else "7" for part in parts)


@pytest.mark.parametrize("path", RAISES)
def test_every_reason_of_sizes_has_advice(path: str) -> None:
    messages = list(texts(path, RAISES[path]))
    assert messages
    if RAISES[path] == "CompileError" or "generalise" in path:
        assert len(messages) > 1
    # The wrapper itself writes "the program is not dynamic: …".
    missing = [
        text
        for text in messages
        if advice("", f"it differs between sizes: {text}") == DEFAULT_OF_SIZES and "program is not dynamic" not in text
    ]
    assert missing == []


@pytest.mark.parametrize(
    "file", ["src/group/statistics.cpp", "src/fusion/fusion_pass.cpp"], ids=["fallbacks", "outside of groups"]
)
def test_every_reason_of_the_runtime_has_advice(file: str) -> None:
    source = (ROOT / file).read_text()
    (body,) = re.findall(r"^(?:std::string|const char\*) describe\(.*?^}", source, re.MULTILINE | re.DOTALL)
    joined = re.sub(r'"\s*"', "", body)
    messages = [text for text in re.findall(r'"([^"]+)"', joined) if len(text) > 12]
    assert len(messages) >= 8
    # For "it could not be compiled", the table also shows the compiler's own reason.
    missing = [text for text in messages if advice("", text) == DEFAULT and text != "it could not be compiled"]
    assert missing == []


def test_another_devices_reasons_of_sizes() -> None:
    reason = "it differs between sizes: the mdla device takes no sizes that vary"
    assert advice("", reason) != DEFAULT_OF_SIZES
