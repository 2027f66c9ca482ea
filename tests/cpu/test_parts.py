"""Modules that are compiled in parts: every process generates the same code, and it computes eager's values."""

from __future__ import annotations

import os
import sys

import networkx
import pytest
import torch
from child_process import run_python
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from written_programs import TracedProgram, normal

from torchmdla.devices.cpu.codegen import parts
from torchmdla.devices.cpu.codegen.object_file import join_objects, split_objects


def layers(x: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return results of functions of all kinds, some called twice.

    They are products with packed weights, a tile loop and a sum.
    """
    for weight in weights:
        x = torch.softmax(torch.mm(x, weight), 1)
    return x, x.sum(0)


LAYERS = TracedProgram(layers, normal(33, 48), weights=[normal(48, 48) for _ in range(3)])


@pytest.mark.parametrize("most", [1, 2, 4])
def test_parts_compute_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_PART", 1000)
    monkeypatch.setattr(parts, "_MOST_PARTS", most)
    counted: list[parts.Part] = []
    make = parts._part
    monkeypatch.setattr(parts, "_part", lambda *of: counted.append(make(*of)) or counted[-1])
    executable = LAYERS.check()
    assert len(counted) == (0 if most == 1 else most)
    assert not any(name.startswith("kernel") for name in executable.manifest.device_calls)


_KERNELS = [f"kernel_{k}" for k in range(8)]


@given(st.lists(st.tuples(st.sampled_from(_KERNELS), st.sampled_from(_KERNELS))))
def test_kernels_that_call_each_other_stay_together(calls: list[tuple[str, str]]) -> None:
    text = {symbol: " ".join(f"@{called}" for caller, called in calls if caller == symbol) for symbol in _KERNELS}
    groups = parts._groups(text, frozenset(_KERNELS))
    graph = networkx.Graph(calls)
    graph.add_nodes_from(_KERNELS)
    assert sorted(map(sorted, groups)) == sorted(map(sorted, networkx.connected_components(graph)))


@pytest.mark.parametrize("objects", [[b"one"], [b"odd", b"even", b""]])
def test_object_files_are_joined(objects: list[bytes]) -> None:
    assert split_objects(join_objects(objects)) == objects


# A module that is large enough for several parts, and the samples of a dynamic program, in one process and in two.
_SHARED = """
import torch
from dynamic_programs import Traced, program_of
from test_parts import LAYERS
from torchmdla.devices.cpu.codegen import parts
from torchmdla.devices.cpu.lowering import lower
from torchmdla.support import sharing

parts._PART = 1000
program = LAYERS.program()
alone = lower(program)
general = program_of(Traced.of(torch.nn.Linear(5, 7), [torch.ones(6, 5)]), lambda n: [torch.ones(n, 5)], [6])
general_alone = lower(general)
sharing.allow(lambda items: 2)
assert lower(program).object_code == alone.object_code
assert lower(general).object_code == general_alone.object_code
"""


def test_children_make_the_same_code() -> None:
    done = run_python(_SHARED, PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 0, done.stderr


# The parent repeats work that a child did not finish.
_SHARING = """
import os, signal
from torchmdla.support import sharing

own = os.getpid()
sharing.allow(lambda items: 3)

def work(item):
    if os.getpid() != own and item in lost:
        lost[item]()
    return item * item, os.getpid() == own

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

lost = {}
assert sharing.parallel_map(work, range(5)) == [(0, True), (1, False), (4, False), (9, True), (16, False)]
lost = {1: killed, 2: lambda: 1 / 0}
assert sharing.parallel_map(work, range(5)) == [(0, True), (1, True), (4, True), (9, True), (16, False)]

def failing(item):
    raise ValueError(item)

try:
    sharing.parallel_map(failing, range(3))
except ValueError as error:
    assert error.args == (0,)
try:
    os.waitpid(-1, 0)
    raise AssertionError("a child is left")
except ChildProcessError:
    pass
"""


def test_a_process_computes_items_of_lost_children() -> None:
    done = run_python(_SHARING)
    assert done.returncode == 0, done.stderr
