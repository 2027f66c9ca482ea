"""Other compilers for PyTorch's lazy device."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from child_process import run_python
from lazy_device import X, check

from torchmdla import lazy

pytestmark = pytest.mark.usefixtures("lazy_device")

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_backend_of_ones_own():
    graphs, calls = [], []

    def interpret(graph):
        graphs.append(graph)
        function = torch._C._create_function_from_graph("graph", graph)
        return lambda *inputs: calls.append(inputs) or [function(*inputs)]

    lazy.set_backend(SimpleNamespace(compile=interpret))
    check(lambda x: torch.exp(x) * 2 + x.t().sum(), X)
    assert len(graphs) == 1
    assert len(calls) == 4


def test_a_backend_may_refuse():
    lazy.set_backend(SimpleNamespace(compile=lambda graph: None))
    check(lambda x: torch.exp(x) * 3, X)


REENTERING = """
import faulthandler, torch
from torchmdla import _C, lazy

faulthandler.dump_traceback_later(60, exit=True)
lazy.initialize()

class Program:
    def __call__(self, *inputs):
        return [torch.zeros(4)]

    def __del__(self):
        _C.lazy_latest_computation()
        _C.lazy_set_text_writer(print)

class Backend:
    def compile(self, graph):
        return Program()

    def __del__(self):
        _C.lazy_latest_computation()

for n in range(3):
    lazy.set_backend(Backend())
    (torch.ones(4).to("lazy") + n).cpu()
print("ended")
"""


def test_objects_of_python_go_when_no_lock_is_held():
    """A program or a backend that acquires the device's lock in its destructor does not cause a deadlock."""
    child = run_python(REENTERING)
    assert child.stdout == "ended\n", child.stderr


def test_a_backend_that_fails_is_a_warning():
    def fail(graph):
        raise ValueError("no such instruction")

    lazy.set_backend(SimpleNamespace(compile=fail))
    with pytest.warns(UserWarning, match="no such instruction"):
        (torch.ones(3).to("lazy") * 1.75).cpu()
    check(lambda x: x * 1.75, X)


def test_an_error_while_running_is_the_users():
    def run(*inputs):
        raise ValueError("the wire is cut")

    lazy.set_backend(SimpleNamespace(compile=lambda graph: run))
    with pytest.raises(RuntimeError, match="the wire is cut"):
        (torch.ones(3).to("lazy") * 1.375).cpu()


def test_invalid_backend_capsules_are_rejected():
    with pytest.raises(ValueError, match="PyCapsule"):
        lazy.set_backend(torch.utils.dlpack.to_dlpack(torch.ones(1)))


def test_the_example_of_a_backend(capsys):
    runpy.run_path(str(EXAMPLES / "lazy_backend.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("loss ")
    assert any(line.endswith("aten::mm") for line in lines)


def test_the_header_is_there():
    assert (Path(lazy.include_path()) / "torchmdla" / "lazy_backend.h").is_file()
