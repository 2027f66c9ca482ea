"""The limit on memory.

The least recently used specialisations lose their packed weights, or are evicted. They are created again when they are
called.
"""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from child_process import run_python
from forking import in_child
from in_threads import in_threads
from torch import Tensor, nn

import torchmdla
from torchmdla import _C
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.usefixtures("without_gradients")

# The size in bytes of the packed weights of `wide`, and about that of the code of a small group.
WEIGHTS = 512 * 512 * 4
CODE = 12 << 10

# The input of most programs.
X = torch.randn(4, 512)


@pytest.fixture(autouse=True)
def no_limit_afterwards() -> Iterator[None]:
    yield
    _C.set_memory_limit(0)


def held() -> int:
    """Return the bytes that the limit counts."""
    memory = torchmdla.stats().memory
    return memory.packed + memory.code


def limit(more: float, keep_seconds: float = 0.0, unit: int = WEIGHTS) -> int:
    """Evict everything, and set a limit with room for ``more`` units beside the rest. Return the limit.

    A unit is the size of the packed weights of :func:`wide`, or of the code of a group.
    """
    gc.collect()
    _C.set_memory_limit(1, 0.0)
    most = max(held() + int(more * unit), 1)
    _C.set_memory_limit(most, keep_seconds)
    torchmdla.reset_stats()
    return most


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU()).eval()


def traced(module: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    program: Callable[[Tensor], Tensor] = torch.jit.freeze(torch.jit.trace(module, (x,)))
    return program


Program = tuple[Callable[[Tensor], Tensor], nn.Module]


def programs(count: int, x: Tensor = X) -> list[Program]:
    modules = [wide() for _ in range(count)]
    return [(traced(module, x), module) for module in modules]


def call(*called: Program, x: Tensor = X, times: int = 3) -> None:
    """Call programs until they are compiled and their weights are packed, and check their values."""
    for run, module in called:
        for _ in range(times):
            assert_matches(run(x), module(x))


class Elementwise(nn.Module):
    """A module without weights to pack."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(torch.tanh(x) * 2 + 1)


def elementwise() -> Program:
    module = Elementwise().eval()
    return traced(module, torch.randn(8)), module


def grow() -> None:
    """Compile a small program. The order of use is only known relative to compilations in between."""
    call(elementwise(), x=torch.randn(8))


def specialisations_created_by(function: Callable[[], object]) -> int:
    """Return how many specialisations were created while ``function`` ran."""
    before = torchmdla.stats().specialisations
    function()
    return torchmdla.stats().specialisations - before


def evicted() -> int:
    return torchmdla.stats().memory.evicted


def unpacked() -> int:
    return torchmdla.stats().memory.unpacked


def is_packed(program: Program) -> bool:
    """Return whether a call finds the weights packed."""
    before = torchmdla.stats().memory.packed
    _C.set_memory_limit(0, 0.0)
    call(program, times=1)
    return torchmdla.stats().memory.packed == before


# --- evictions --------------------------------------------------------------------------------------------------------


def test_there_is_no_limit_by_default() -> None:
    assert torchmdla.stats().memory.limit == 0
    call(*programs(3))
    assert evicted() == unpacked() == torchmdla.stats().memory.over_limit == 0
    assert torchmdla.stats().memory.packed >= 3 * WEIGHTS


def test_weights_of_many_sizes_stay_within_the_limit() -> None:
    torchmdla.enable(dynamic=False)
    most = limit(2.5)
    module = wide()
    program = traced(module, torch.randn(2, 512)), module
    for size in [*range(2, 12), *range(2, 12)]:
        call(program, x=torch.randn(size, 512))
        assert held() <= most
    stats = torchmdla.stats()
    assert stats.memory.unpacked > 0 and stats.memory.over_limit == 0
    # Weights are packed again where the code still exists.
    assert not stats.fallbacks and stats.specialisations == 10 and stats.memory.evicted == 0


def test_code_for_many_sizes_stays_within_the_limit() -> None:
    torchmdla.enable(dynamic=False, max_specialisations=8)
    program = elementwise()
    most = limit(4, unit=CODE)
    for size in [*range(2, 14), *range(2, 14)]:
        call(program, x=torch.randn(size))
        assert held() <= most
    stats = torchmdla.stats()
    # There are more than max_specialisations in total, but never at the same time.
    assert not stats.fallbacks and stats.specialisations == 24
    assert stats.memory.evicted >= 24 - 8 and stats.memory.over_limit == 0


def test_the_least_recently_used_goes_first() -> None:
    first, second, third = programs(3)
    limit(2.5)
    call(first, second)
    grow()
    call(first, third)
    assert unpacked() == 1
    assert is_packed(first) and not is_packed(second)


def test_use_counts_though_nothing_grows() -> None:
    """A program that is called repeatedly is in use, even if memory grew last a long time ago."""
    first, second, third = programs(3)
    limit(2.5)
    call(first, second)
    grow()
    call(second)
    for _ in range(2):
        call(first, times=1)
    grow()
    call(first, times=1)
    call(third)
    assert is_packed(first) and not is_packed(second)


def test_code_goes_where_no_weights_are_left() -> None:
    pair = programs(2)
    limit(3.0)
    call(*pair)
    most = limit(0.0)
    assert torchmdla.stats().memory.packed == 0 and held() <= most
    for program in pair:
        assert specialisations_created_by(lambda program=program: call(program)) == 1
    assert torchmdla.stats().compiled == 0 and torchmdla.stats().memory_hits == 2


def test_a_lower_limit_counts_at_once() -> None:
    pair = programs(2)
    limit(3.0)
    call(*pair)
    assert unpacked() == 0
    most = limit(0.5)
    assert held() <= most
    call(*pair)


def test_dynamic_specialisations_come_back_as_such() -> None:
    module = wide()
    program = traced(module, torch.randn(2, 512)), module
    limit(16.0)
    for size in (3, 5, 7):
        call(program, x=torch.randn(size, 512))
    assert torchmdla.stats().dynamic == 1
    limit(16.0)
    call(program, x=torch.randn(9, 512))
    stats = torchmdla.stats()
    assert (stats.specialisations, stats.dynamic) == (1, 1)
    assert specialisations_created_by(lambda: call(program, x=torch.randn(11, 512))) == 0


def test_sizes_that_were_taken_out_count_towards_a_pattern() -> None:
    program = elementwise()
    limit(0.5, unit=CODE)
    for size in (3, 5, 7):
        call(program, x=torch.randn(size))
    assert torchmdla.stats().dynamic == 1 and evicted() >= 2


def test_eviction_frees_python_objects() -> None:
    (program,) = programs(1)
    limit(2.0)
    call(program)
    owners = [
        weakref.ref(specialisation["executable"].owner)
        for group in _C.groups()
        for specialisation in group["specialisations"]
        if specialisation["executable"] is not None
    ]
    assert any(owner() is not None for owner in owners)
    limit(2.0)
    assert all(owner() is None for owner in owners)


# --- more than fits at the same time ----------------------------------------------------------------------------------


def test_programs_in_turn_that_do_not_fit_are_not_made_in_each_call() -> None:
    three = programs(3)
    limit(2.5, keep_seconds=3600.0)
    call(*three)

    def rounds() -> None:
        for _ in range(5):
            for program in three:
                call(program, times=2)

    # Each program loses its weights once, and then keeps them.
    rounds()
    assert 1 <= unpacked() <= 3 and evicted() == 0
    before = unpacked()
    rounds()
    memory = torchmdla.stats().memory
    assert memory.unpacked == before and memory.over_limit >= 1 and held() > memory.limit


def test_code_in_turn_that_does_not_fit_is_not_made_in_each_call() -> None:
    torchmdla.enable(dynamic=False)
    program = elementwise()
    limit(2.5, keep_seconds=3600.0, unit=CODE)

    def rounds() -> None:
        for _ in range(5):
            for size in range(2, 8):
                call(program, x=torch.randn(size), times=1)

    assert specialisations_created_by(rounds) <= 2 * 6
    assert specialisations_created_by(rounds) == 0
    assert torchmdla.stats().memory.over_limit >= 1


def test_a_program_over_the_limit_runs() -> None:
    (program,) = programs(1)
    limit(0.5)
    call(program)
    assert specialisations_created_by(lambda: call(program)) == 0
    assert torchmdla.stats().memory.over_limit >= 1 and evicted() == unpacked() == 0


# --- evictions during use ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0.0, 1.5], ids=["code and weights", "weights"])
@pytest.mark.sampled(1)
def test_threads_run_programs_that_others_evict(more: float) -> None:
    torchmdla.enable(dynamic=False, max_specialisations=1000)
    torch.set_num_threads(1)
    four = programs(4)
    inputs = [torch.randn(size, 512) for size in (2, 3, 4)]
    expected = [[module(x) for x in inputs] for _, module in four]
    call(*four)
    limit(more)

    def work(number: int) -> None:
        with torch.no_grad():
            for step in range(60):
                which, size = (number + step) % 4, (number * 5 + step) % 3
                assert_matches(four[which][0](inputs[size]), expected[which][size])

    raised = in_threads(8, work)
    assert not raised, raised
    assert unpacked() + evicted() > 8


def test_backward_comes_after_it_was_taken_out() -> None:
    module = wide()
    x = torch.randn(4, 512, requires_grad=True)
    program = torch.jit.trace(module, (x,))
    limit(8.0)
    with torch.enable_grad():
        for _ in range(8):
            result = program(x)
    assert result.grad_fn.name() == "GroupBackward"
    limit(0.0)
    assert torchmdla.stats().memory.packed == 0
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(result.sum(), x)
        (expected,) = torch.autograd.grad(module(x).sum(), x)
    assert_matches(gradient, expected)


def test_groups_of_fx_graphs() -> None:
    modules = [wide() for _ in range(3)]
    three = [(torchmdla.compile(module, X, frontend="export"), module) for module in modules]
    most = limit(1.5)
    for _ in range(2):
        for program in three:
            call(program)
            assert held() <= most
    assert unpacked() >= 4


def test_a_forked_child_evicts_programs_of_its_parent() -> None:
    torch.set_num_threads(1)
    first, second = programs(2)
    limit(2.5)
    call(first, second)

    def child() -> bool:
        most = limit(1.5)
        call(first, second)
        return held() <= most and unpacked() == 1

    before = held()
    assert in_child(child) == 0
    assert held() == before and evicted() == unpacked() == 0
    assert is_packed(first)


def test_packages_are_read_again(tmp_path: Path) -> None:
    modules = [wide() for _ in range(2)]
    for number, module in enumerate(modules):
        torchmdla.save(module, tmp_path / f"{number}.pt", [X])
    pair = [(torchmdla.load(tmp_path / f"{number}.pt"), module) for number, module in enumerate(modules)]
    for more, packaged in ((1.5, 2), (0.0, 4)):
        limit(more)
        for _ in range(2):
            for program in pair:
                call(program)
        stats = torchmdla.stats()
        assert stats.packaged == packaged and stats.compiled == stats.memory_hits == 0
        assert stats.memory.unpacked == 3 and not stats.fallbacks


# --- settings and reports ---------------------------------------------------------------------------------------------


def test_the_limit_is_set() -> None:
    torchmdla.enable(memory_limit=1 << 30)
    assert torchmdla.stats().memory.limit == 1 << 30
    torchmdla.enable()
    assert torchmdla.stats().memory.limit == 0
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        torchmdla.enable(memory_limit=-1)


LIMIT = "import torchmdla; print(torchmdla.stats().memory.limit)"


@pytest.mark.parametrize(
    ("text", "limit"), [("4G", 4 << 30), ("512 MiB", 512 << 20), ("1234", 1234), ("0", 0), ("", 0), ("1tb", 1 << 40)]
)
@pytest.mark.sampled(1)
def test_the_environment_sets_the_limit(text: str, limit: int) -> None:
    assert run_python(LIMIT, TORCHMDLA_MEMORY=text).stdout.split() == [str(limit)]


@pytest.mark.parametrize("text", ["much", "-1", "4X", "4GG", "99999999999T"])
@pytest.mark.sampled(1)
def test_an_invalid_limit_is_reported(text: str) -> None:
    run = run_python(LIMIT, TORCHMDLA_MEMORY=text)
    assert run.stdout == "0\n"
    assert run.stderr.count(f"TORCHMDLA_MEMORY is not a size in bytes (1234, 512M, 4G, 1GiB): '{text}'") == 1


def test_statistics_report_held_memory() -> None:
    (program,) = programs(1)
    call(program)
    memory = torchmdla.stats().memory
    assert memory.packed >= WEIGHTS and memory.code > 4096 and memory.workspace >= 0
    assert "of packed weights" in str(torchmdla.stats()) and "at most" not in str(torchmdla.stats())
    limit(8.0)
    call(program)
    text = " ".join(str(torchmdla.stats()).split())
    assert "at most; 0 specialisations lost packed weights, 0 specialisations taken out; 0 times more was" in text


def test_a_program_is_explained_whose_code_was_taken_out() -> None:
    first, second = programs(2)
    limit(1.5)
    call(first, second)
    (group,) = torchmdla.explain(first[0], X).groups
    assert [specialisation.is_dynamic for specialisation in group.specialisations] == [False]


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="the system has no huge pages")
def test_large_results_are_in_huge_pages() -> None:
    """A step with a result of more than 32 MiB takes four times as long if its pages are small."""
    program = torch.compile(lambda x: x * 2 + 1, backend="torchmdla")
    program(torch.ones(3, 1 << 22))  # PyTorch's operators, to record
    result = program(torch.ones(3, 1 << 22))
    middle, is_inside, flags = result.data_ptr() + result.nbytes // 2, False, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            start, end = (int(address, 16) for address in line.split()[0].split("-"))
            is_inside = start <= middle < end
        elif is_inside and line.startswith("VmFlags:"):
            flags = line
    assert " hg" in flags
    assert_matches(result, torch.full_like(result, 3.0))
