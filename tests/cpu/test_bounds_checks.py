"""Bounds checks: with ``TORCHMDLA_CHECK_BOUNDS=1``, code detects its loads and stores outside their buffers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from dynamic_programs import Dynamic, Function
from executing import FailedCallError, Loaded
from graphs import warmed_up
from torch import Tensor, nn
from written_programs import TracedProgram

import torchmdla
from torchmdla import devices
from torchmdla.compile_service import service
from torchmdla.compiler.program import Program
from torchmdla.devices.cpu import lowering
from torchmdla.devices.cpu.codegen.entry import frame
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, OutlinedRegion, RepeatLoop, TileLoop
from torchmdla.devices.cpu.schedule.plan import Plan
from torchmdla.devices.cpu.target.machine import CHECK_BOUNDS
from torchmdla.testing.compare import assert_matches

# A change of a program's steps after all passes that prove them correct.
Damage = Callable[[LoopProgram], None]

# Guard elements around a result, and their value.
GUARD = 64
GUARDED = 7


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMDLA_CHECK_BOUNDS", "1")


def damage_plans(damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = lowering.plan_schedules

    def damaged(steps: LoopProgram, *rest: Any) -> Plan:
        damage(steps)
        return plan(steps, *rest)

    monkeypatch.setattr(lowering, "plan_schedules", damaged)


def call_damaged(
    name: str, module: nn.Module, inputs: Sequence[Tensor], damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, bool]:
    """Return the error of a call of the damaged program, and whether the memory around the result is unchanged."""
    damage_plans(damage, monkeypatch)
    subject = TracedProgram(module, *inputs)
    # Loaded code is cached by its program. The option makes each damage a separate program.
    program = subject.program(devices.get("cpu").target(), (("damage", name),))
    loaded = Loaded(devices.get("cpu").lower(program))
    (result,) = program.results
    dtype = getattr(torch, result.dtype)
    memory = torch.full((GUARD + torch.Size(result.shape).numel() + GUARD,), GUARDED, dtype=dtype)
    with pytest.raises(FailedCallError) as raised:
        loaded.call(subject.values, [memory[GUARD:-GUARD].view(result.shape)], ())
    untouched = torch.cat([memory[:GUARD], memory[-GUARD:]]) == GUARDED
    return str(raised.value), bool(untouched.all())


def shifted(access: Access, distance: int) -> Access:
    """Return the access, ``distance`` elements further along the last dimension."""
    *others, last = access.indices
    return replace(access, indices=(*others, replace(last, constant=last.constant + distance)))


def nests(steps: LoopProgram) -> Iterator[LoopNest]:
    for step in steps.steps:
        if isinstance(step, LoopNest):
            yield step
        elif isinstance(step, TileLoop):
            yield from step.members
        elif isinstance(step, RepeatLoop):
            yield from (part for part in step.steps if isinstance(part, LoopNest))


def read_behind(distance: int) -> Damage:
    def damage(steps: LoopProgram) -> None:
        nest = next(n for n in nests(steps) if n.inputs and n.inputs[0].buffer.kind == "input")
        nest.replace_load(nest.inputs[0], shifted(nest.inputs[0], distance))

    return damage


def write_behind(distance: int) -> Damage:
    def damage(steps: LoopProgram) -> None:
        (nest,) = (n for n in nests(steps) if n.writes[0].kind == "result")
        if nest.epilogue is None:
            nest.outputs = tuple(shifted(a, distance) for a in nest.outputs)
        else:
            nest.epilogue = replace(nest.epilogue, outputs=tuple(shifted(a, distance) for a in nest.epilogue.outputs))

    return damage


def write_local_behind(steps: LoopProgram) -> None:
    nest = next(n for n in nests(steps) if n.writes[0].kind == "local")
    nest.outputs = tuple(shifted(a, a.buffer.count) for a in nest.outputs)


def repeat_longer(steps: LoopProgram) -> None:
    (number,) = (k for k, step in enumerate(steps.steps) if isinstance(step, RepeatLoop))
    steps.steps[number] = replace(steps.steps[number], count=steps.steps[number].count + 1)


def pack_behind(steps: LoopProgram) -> None:
    nest = next(s for packing in steps.packings for s in packing.steps if isinstance(s, LoopNest))
    nest.replace_load(nest.inputs[0], shifted(nest.inputs[0], 1))


def region_of_less(steps: LoopProgram) -> None:
    (number,) = (k for k, step in enumerate(steps.steps) if isinstance(step, OutlinedRegion))
    region = steps.steps[number]
    less = Buffer("temporary", region.inputs[0].element, (1,))
    steps.steps[number] = replace(region, inputs=(less, *region.inputs[1:]))


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1)


_GENERATOR = torch.Generator().manual_seed(0)


def floats(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=_GENERATOR)


def recurrence(x: Tensor, weight: Tensor) -> Tensor:
    state = torch.zeros(4, 8)
    for step in range(12):
        # The state is scaled down so that rounding errors do not grow.
        state = torch.tanh(x[step] + state @ weight / 8)
    return state


BROKEN = {
    "load": (
        Function(torch.relu),
        [floats(1)],
        read_behind(1),
        r"kernel_0 reads 4 bytes at offset 4 of input 0 .*has 4 bytes",
    ),
    "load in front": (Function(torch.relu), [floats(1)], read_behind(-1), r"reads 4 bytes at offset -4 of input 0"),
    "store": (Function(torch.relu), [floats(1)], write_behind(1), r"kernel_0 writes 4 bytes at offset 4 of result 1"),
    "vector load": (Function(torch.relu), [floats(256)], read_behind(1), r"reads \d+ bytes at offset \d+ of input 0"),
    "vector store": (
        Function(torch.relu),
        [floats(256)],
        write_behind(1),
        r"writes \d+ bytes at offset \d+ of result 1",
    ),
    "vector store in front": (
        Function(torch.relu),
        [floats(256)],
        write_behind(-1),
        r"writes \d+ bytes at offset -4 of",
    ),
    "masked load": (Function(torch.relu), [floats(251)], read_behind(1), r"reads \d+ bytes at offset \d+ of input 0"),
    "masked store": (Function(torch.relu), [floats(3)], write_behind(1), r"writes 4 bytes at offset 12 of result 1"),
    "gather": (Function(lambda x: x[:, 1] * 2), [floats(64, 3)], read_behind(2), r"reads 4 bytes at offset 768 of in"),
    "product": (Function(torch.mm), [floats(33, 40), floats(40, 70)], read_behind(3), r"reads \d+ bytes .* input 0"),
    "chain": (Function(softmax), [floats(40, 300)], write_behind(1), r"writes \d+ bytes .* of result 1"),
    "local of a chain": (Function(softmax), [floats(40, 300)], write_local_behind, r"writes \d+ bytes .* of local"),
    "repeated": (
        Function(recurrence, floats(8, 8)),
        [floats(12, 4, 8)],
        repeat_longer,
        r"writes 32 bytes .* of temporary",
    ),
    "pack": (nn.Conv2d(16, 32, 3), [floats(1, 16, 20, 20)], pack_behind, r"reads \d+ bytes .* of parameter 0"),
    "region": (Function(lambda x: torch.sort(x)[0]), [floats(50)], region_of_less, r"region_\d+ .* of temporary"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_access_outside_ends_the_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs, damage, message = BROKEN[name]
    error, untouched = call_damaged(name, module, inputs, damage, monkeypatch)
    assert re.search(message, error), error
    assert error.startswith("internal error: ")
    assert untouched


def test_a_buffer_outside_of_the_workspace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = frame.plan_workspace
    monkeypatch.setattr(frame, "plan_workspace", lambda steps: (plan(steps)[0], 64))
    module = Function(lambda x: torch.cumsum(x * 2, 0) * torch.sort(x)[0])
    error, untouched = call_damaged("workspace", module, [floats(50)], lambda steps: None, monkeypatch)
    assert re.search(r"mdla_forward lays out \d+ bytes at offset \d+ of the workspace, which has \d+ bytes", error)
    assert untouched


RIGHT = {
    "matmul": (Function(torch.mm), [floats(33, 40), floats(40, 70)]),
    "convolution": (nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()), [floats(2, 3, 21, 17)]),
    "attention": (Function(nn.functional.scaled_dot_product_attention), [floats(2, 4, 19, 8)] * 3),
    "gather": (Function(lambda x, i: torch.gather(x, 1, i) + x[:, 1:2]), [floats(7, 9), torch.randint(0, 9, (7, 5))]),
    "embedding": (
        Function(lambda i, w: nn.functional.embedding(i, w) * 2, floats(20, 12)),
        [torch.randint(0, 20, (3, 5))],
    ),
    "sorted": (Function(lambda x: torch.sort(x)[0].cumsum(0)), [floats(50)]),
    "recurrence": (Function(recurrence, floats(8, 8)), [floats(12, 4, 8)]),
    "softmax": (Function(softmax), [floats(40, 301)]),
    "flipped": (Function(lambda x: torch.flip(x, [1]).mT * 2), [floats(19, 33)]),
    "booleans": (Function(lambda x: (x > 0) & (x < 1)), [floats(67)]),
    "scattered booleans": (
        Function(lambda x, i: (~x).scatter(0, i, x[:2])),
        [torch.zeros(9, dtype=torch.bool), torch.tensor([1, 4])],
    ),
    "empty": (Function(lambda x: torch.cat([x * 2, x[:0]])), [floats(3, 4)]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_right(name: str) -> None:
    module, inputs = RIGHT[name]
    module = module.eval()
    with torch.no_grad():
        expected = module(*inputs)
        traced = torch.jit.trace(module, inputs, check_trace=False)
        for _ in range(3):
            assert_matches(traced(*inputs), expected)
    statistics = torchmdla.stats()
    assert statistics.specialisations
    assert not statistics.fallbacks


def test_a_dynamic_program_is_right() -> None:
    dynamic = Dynamic.of(Function(softmax), lambda n, m: [floats(n, m)], (30, 40))
    for values in ((2, 2), (7, 3), (33, 65), (30, 40)):
        result, expected = dynamic(values, [floats(*values)])
        assert_matches(result, expected)


def program_of(function: Callable[..., Tensor], *inputs: Tensor) -> Program:
    return TracedProgram(function, *inputs).program(devices.get("cpu").target())


def test_code_of_one_kind_is_never_taken_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check keys and faults. A worker compiles the programs, and it does not read the environment variable."""
    checked = program_of(torch.relu, floats(19))
    monkeypatch.setenv("TORCHMDLA_CHECK_BOUNDS", "0")
    plain = program_of(torch.relu, floats(19))
    assert plain.mlir == checked.mlir
    assert plain.key != checked.key
    outcomes = [service.compile_program(program) for program in (checked, plain)]
    assert [bool(outcome.artifact.manifest.fault) for outcome in outcomes] == [True, False]


def test_code_without_checks_has_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMDLA_CHECK_BOUNDS", "")
    assert CHECK_BOUNDS not in devices.get("cpu").target().features
    code = lowering.lower(program_of(softmax, floats(8, 300))).object_code
    assert b"mdla_mark" not in code
    assert b"mdla_outside" not in code


def test_a_user_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    damage_plans(read_behind(1), monkeypatch)
    monkeypatch.setenv("TORCHMDLA_COMPILE_IN_PROCESS", "1")
    service.reset()
    torchmdla.enable(strict=True)
    x = floats(1237)
    try:
        traced = torch.jit.trace(Function(softmax), x, check_trace=False)
        with torch.no_grad(), pytest.raises(torchmdla.DeviceError, match=r"internal error: .* reads .* of input 0"):
            warmed_up(traced, x)
    finally:
        service.reset()
