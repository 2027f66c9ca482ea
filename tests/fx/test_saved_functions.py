"""Functions that ``aot_compile`` saved: another process loads them, and compiles nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import output_of, run_python
from saved_programs import PROGRAMS, classify, loss_of, mlp
from torch import Tensor, nn

import torchmdla
from torchmdla.capture.fx import saved_graph
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

TESTS = str(Path(__file__).parent.parent)
CODE = """
    import sys
    from pathlib import Path
    import saved_programs
    getattr(saved_programs, sys.argv[1])(Path(sys.argv[2]), sys.argv[3:])
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the programs' files, which a process wrote."""
    folder: Path = tmp_path_factory.mktemp("saved")
    output_of(CODE, "save", str(folder), *PROGRAMS, PYTHONPATH=TESTS)
    return folder


@pytest.fixture(scope="module")
def loaded(files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the statistics of a process that loaded and ran the programs, with an empty cache."""
    cache = tmp_path_factory.mktemp("cache")
    lines = output_of(CODE, "load", str(files), *PROGRAMS, PYTHONPATH=TESTS, TORCHMDLA_CACHE_DIR=str(cache))
    assert not list(cache.glob("*.artifact"))
    return dict(map(json.loads, lines.splitlines()))


@pytest.mark.sampled(len(PROGRAMS))
@pytest.mark.parametrize("name", PROGRAMS)
def test_loaded_function_runs_compiled_without_a_compiler(name: str, loaded: dict[str, Any]) -> None:
    counts = loaded[name]
    assert counts.pop("packaged") > 0
    assert counts == {"compiled": 0, "recorded": 0, "refused": [], "warnings": []}


# Environments in which the code of a file is refused, and the reason.
REFUSALS = {
    "processor": ({"TORCHMDLA_PROCESSOR": "x86-64-v2"}, "the package has no code for this processor"),
    "signature": ({"TORCHMDLA_REQUIRE_SIGNATURE": ""}, "no files of public keys are named"),
}


@pytest.mark.parametrize(("environment", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_refused_code_is_compiled_anew(environment: dict[str, str], reason: str, files: Path, tmp_path: Path) -> None:
    variables = {"PYTHONPATH": TESTS, "TORCHMDLA_CACHE_DIR": str(tmp_path), **environment}
    done = run_python(CODE, "load", str(files), "module", "gradients", **variables)
    assert done.returncode == 0, done.stderr
    assert f"torchmdla: a saved function: {reason}" in done.stderr
    for _, counts in map(json.loads, done.stdout.splitlines()):
        assert counts["compiled"] > 0 and counts["packaged"] == 0
        assert all(reason in refusal for refusal in counts["refused"]), counts


def test_code_for_less_than_this_machine_runs(tmp_path: Path) -> None:
    variables = {"PYTHONPATH": TESTS, "TORCHMDLA_CACHE_DIR": str(tmp_path)}
    output_of(CODE, "save", str(tmp_path), "module", TORCHMDLA_PROCESSOR="x86-64-v2", **variables)
    (line,) = output_of(CODE, "load", str(tmp_path), "module", **variables).splitlines()
    assert json.loads(line)[1] == {"compiled": 0, "packaged": 1, "recorded": 0, "refused": [], "warnings": []}


def _flip(data: bytes, mark: bytes) -> bytes:
    """Return a file with another byte behind the last block that begins with ``mark``."""
    place = data.rindex(mark) + 200
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_damaged_code_is_compiled_anew(files: Path, tmp_path: Path) -> None:
    (tmp_path / "module").write_bytes(_flip((files / "module").read_bytes(), b"torchmdla-target"))
    lines = output_of(CODE, "load", str(tmp_path), "module", PYTHONPATH=TESTS)
    ((_, counts),) = map(json.loads, lines.splitlines())
    assert counts["compiled"] > 0 and "is not the one that its index has" in counts["refused"][0]


def test_damaged_graph_is_refused(files: Path, tmp_path: Path) -> None:
    (tmp_path / "module").write_bytes(_flip((files / "module").read_bytes(), b"mdla-graph"))
    done = run_python(CODE, "load", str(tmp_path), "module", PYTHONPATH=TESTS)
    assert done.returncode != 0
    assert "a saved graph whose content does not match its checksum; compile and save the function anew" in done.stderr


# In one process -----------------------------------------------------------------------------------


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that compiles a program, saves it, and loads it with other external data."""

    def save_and_load(
        function: Any, *inputs: Any, data: Any = None, other: Any = None, **options: Any
    ) -> Callable[..., Any]:
        compiled = torch.compile(function, backend="torchmdla", fullgraph=True, options=options or None)
        target = compiled.forward if isinstance(function, nn.Module) else compiled
        target.aot_compile((inputs, {})).save_compiled_function(str(tmp_path / "function"), external_data=data)
        torchmdla.reset_stats()
        with open(tmp_path / "function", "rb") as file:
            loaded: Callable[..., Any] = torch.compiler.load_compiled_function(file, external_data=other)
        return loaded

    return save_and_load


def test_guards_fail_with_error_of_pytorch(save: Callable[..., Any]) -> None:
    function = save(classify, torch.randn(4, 8), mlp())
    with pytest.raises(RuntimeError, match=r"(?s)GuardManager check failed.*size mismatch"):
        function(torch.randn(5, 8), mlp())


def test_weights_are_external_data(save: Callable[..., Any]) -> None:
    x, module, other = torch.randn(4, 8), mlp(), mlp()
    with torch.no_grad():
        function = save(module, x, data={"model": module}, other={"model": other})
        assert_matches(function(x), other(x), layers=2)
    assert torchmdla.stats().packaged == 1


def test_loaded_function_is_saved_again(save: Callable[..., Any], tmp_path: Path) -> None:
    x, module = torch.randn(4, 8), mlp()
    save(classify, x, module).save_compiled_function(str(tmp_path / "again"))
    torchmdla.reset_stats()
    with open(tmp_path / "again", "rb") as file:
        function = torch.compiler.load_compiled_function(file)
    assert_matches(function(x, module), classify(x, module), layers=2)
    assert torchmdla.stats().compiled_calls > 0 and torchmdla.stats().recorded_calls == 0


def test_compiled_function_runs_without_recording() -> None:
    x, module = torch.randn(4, 8), mlp()
    function = torch.compile(loss_of, backend="torchmdla", fullgraph=True).aot_compile(((x, module), {}))
    torchmdla.reset_stats()
    gradients = torch.autograd.grad(function(x, module), list(module.parameters()))
    assert_matches(gradients, torch.autograd.grad(loss_of(x, module), list(module.parameters())), layers=3)
    assert torchmdla.stats().recorded_calls == 0 and torchmdla.stats().compiled_calls == 2


def test_second_derivative_of_loaded_function_raises_error_of_pytorch(save: Callable[..., Any]) -> None:
    x, module = torch.randn(4, 8, requires_grad=True), mlp()
    function = save(loss_of, x, module)
    (gradient,) = torch.autograd.grad(function(x, module), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.square().sum().backward()


def test_strict_mode_refuses_to_save_operators_outside_of_groups(save: Callable[..., Any]) -> None:
    with pytest.raises(torchmdla.CompileError, match="_linalg_svd"):
        save(lambda x: torch.linalg.svdvals(x) * 2, torch.randn(4, 4), strict=True)


def test_sizes_that_depend_on_values_are_compiled_by_the_loading_process(save: Callable[..., Any]) -> None:
    def places(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x > 0).nonzero() * 2.0 + 1, x.sin() + 1

    x = torch.randn(40)
    captured = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with captured, pytest.warns(RuntimeWarning, match="saved without some code.*depends on the values of tensors"):
        function = save(places, x)
    assert_matches(function(x), places(x))
    assert torchmdla.stats().packaged > 0 and torchmdla.stats().recorded_calls > 0


def test_failure_of_example_is_a_warning(save: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise IndexError("out of range")

    monkeypatch.setattr(saved_graph, "_example", fail)
    with pytest.warns(RuntimeWarning, match="saved without some code.*out of range"):
        function = save(lambda x: torch.exp(x) + 1, torch.zeros(4))
    assert_matches(function(torch.ones(4)), torch.ones(4).exp() + 1)
