"""Warnings of deprecation: no entry point causes one, and those of the user's own calls are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from child_process import run_python, run_script

# Categories that PyTorch has for TorchScript: the first in 2.13, the second from 2.14 on.
ERRORS = ("-W", "error::DeprecationWarning", "-W", "error::FutureWarning")

# Warnings of the user's own calls do not matter.
BEFORE = """
import sys, warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    x = torch.randn(2, 4)
    traced, exported = torch.jit.trace(model, x), torch.export.export(model, (x,))
warnings.simplefilter("error", DeprecationWarning)
warnings.simplefilter("error", FutureWarning)
warnings.filterwarnings("ignore", "Guards may run slower", RuntimeWarning)  # of PyTorch, on Python 3.13.0
import torchmdla
"""

ENTRY_POINTS = {
    "compile a module": "torchmdla.compile(model, x)(x)",
    "compile a function": "torchmdla.compile(lambda x: x.relu() + 1, x)(x)",
    "compile a method": "torchmdla.compile(model.forward, x)(x)",
    "compile TorchScript": "torchmdla.compile(traced, x)(x)",
    "compile an exported program": "torchmdla.compile(exported)(x)",
    "torch.compile": "torch.compile(model, backend='torchmdla')(x)",
    "run TorchScript": "[traced(x) for _ in range(3)]",
    "graph_for": "torchmdla.graph_for(traced, x)",
    "save and load a module": "torchmdla.save(model, 'p.pt', x); torchmdla.load('p.pt')(x)",
    "save and load an exported program": "torchmdla.save(exported, 'p.pt2'); torchmdla.load('p.pt2')(x)",
    "export_native": "torchmdla.export_native(model, x, 'p.tmdla')",
    "save a program of read": "torchmdla.save(traced, 'r.pt', x); torchmdla.save(torchmdla.read('r.pt'), 's.pt', x)",
    "the own reader": "torchmdla.save(traced, 'o.pt', x); torchmdla.load('o.pt', reader='own')(x)",
    "get_mlir of a module": "str(torchmdla.get_mlir(model, x))",
    "get_mlir of TorchScript": "str(torchmdla.get_mlir(traced, x))",
    "get_mlir of an exported program": "str(torchmdla.get_mlir(exported))",
    "explain a module": "str(torchmdla.explain(model, x))",
    "explain TorchScript": "str(torchmdla.explain(traced, x))",
    "lazy": "from torchmdla import lazy; lazy.initialize(); (x.to('lazy') + 1).cpu()",
    "acap": "(x.to(torchmdla.acap_device()) + 1).cpu()",
    "aten": "from torchmdla.aten import graphs; str(graphs.from_module(model, x))",
}


# Each in turn, in one process.
RUN = """
import json, traceback
problems = {}
for name, code in json.loads(sys.argv[1]).items():
    try:
        exec(code)
    except Exception:
        problems[name] = traceback.format_exc()
print(json.dumps(problems))
"""


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Errors by entry point; a warning is one."""
    code = f"import os\nos.chdir({str(tmp_path_factory.mktemp('files'))!r})\n{BEFORE}\n{RUN}"
    done = run_python(code, json.dumps(ENTRY_POINTS))
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


@pytest.mark.sampled(len(ENTRY_POINTS))
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_no_entry_point_causes_a_warning_of_deprecation(entry: str, problems: dict[str, str]) -> None:
    assert problems.get(entry) is None


@pytest.mark.parametrize("module", ["torchmdla", "torchmdla.lazy", "torchmdla.mdla", "torchmdla.capture.dynamo"])
def test_an_import_causes_none(module: str) -> None:
    done = run_script(*ERRORS, "-c", f"import {module}")
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_cause_none(tmp_path: Path) -> None:
    """Check the commands that read a TorchScript file, which call its functions in place of the user."""
    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(4, 4), torch.ones(2, 4)), path)
    done = run_script(*ERRORS, "-m", "torchmdla", "explain", path, "--input", "2x4")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_users_own_calls_warn() -> None:
    """Check that a call of ``torch.jit`` warns before and after torchmdla makes a TorchScript program."""
    done = run_python(f"""{BEFORE}
def warns(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        call()
    return any("torch.jit." in str(warning.message) for warning in caught)

class Scripting(torch.nn.Module):
    def forward(self, x):
        torch.jit.script(torch.nn.ReLU())
        return x.relu()

assert warns(lambda: torch.jit.trace(model, x))
torchmdla.compile(model, x)
assert warns(lambda: torch.jit.trace(model, x))
assert warns(lambda: torch.jit.freeze(traced))
# The call is the user's here, too.
assert warns(lambda: torchmdla.compile(Scripting(), x))
""")
    assert done.returncode == 0, done.stderr
