"""Training in several processes: it results in eager's losses, however a model is wrapped and compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import rank_programs
import training_cases
from child_process import run_python, run_script
from ranks import Ranks
from training_cases import Case

CASES = [
    Case("compile(DDP)", "convolutions", "SGD", evaluates=True),
    Case("compile(DDP)", "encoder", "AdamW", accumulates=True),
    Case("compile(DDP), buckets", "wide", "SGD", accumulates=True),
    Case("compile(DDP), static graph", "encoder", "SGD"),
    Case("compile(DDP), unused parameters", "branches", "AdamW"),
    Case("compile(DDP), gradients in buckets", "dense", "SGD", restores=True),
    Case("compile(DDP), recomputed", "encoder", "SGD"),
    Case("DDP(compile)", "convolutions", "AdamW", restores=True, evaluates=True),
    Case("DDP(compile)", "encoder", "SGD", accumulates=True),
    Case("DDP(compile), static graph", "dense", "AdamW"),
    Case("DDP(compile), unused parameters", "branches", "SGD"),
    Case("compile(FSDP)", "dense", "SGD", restores=True, evaluates=True),
    Case("compile(FSDP)", "convolutions", "AdamW", evaluates=True),
    Case("compile(FSDP), not resharded", "encoder", "AdamW", evaluates=True),
    Case("compile(FSDP), replicated", "encoder", "SGD", restores=True),
    Case("compile(FSDP), bfloat16", "dense", "SGD", precision="bfloat16"),
    Case("compile(FSDP), bfloat16", "encoder", "AdamW", precision="bfloat16"),
    Case("FSDP(compile)", "encoder", "AdamW", accumulates=True, evaluates=True),
    Case("FSDP(compile), frozen", "encoder", "SGD", restores=True, evaluates=True),
]

# Two processes train all cases, and four processes train every other case.
RUNS = [*((2, case) for case in CASES), *((4, case) for case in CASES[::2])]


def name_of(case: Case) -> str:
    ways = [way for way in ("accumulates", "evaluates", "restores") if getattr(case, way)]
    return ", ".join([case.wrapping, case.model, case.optimiser, *ways])


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, Ranks]]:
    """Yield pools of processes by their size."""
    by_size = {size: Ranks(size) for size in (2, 4)}
    yield by_size
    for pool in by_size.values():
        pool.stop()


@pytest.fixture
def ranks(request: pytest.FixtureRequest, pools: dict[int, Ranks]) -> Ranks:
    """Return two processes, or the number in the test's parameter. Pools of other sizes are stopped to save memory."""
    size = getattr(request, "param", 2)
    for pool in pools.values():
        if pool.size != size:
            pool.stop()
    return pools[size]


@pytest.mark.sampled(0)
def test_buffers_of_rank_0_are_everybodys(ranks: Ranks) -> None:
    """DDP writes the buffers of rank 0 to those of the other ranks, without a new version."""
    for activity in ranks.call(rank_programs.follow_buffers_of_rank_0):
        assert activity.compiled_calls >= rank_programs.WRITES
        assert not activity.fallbacks


@pytest.mark.sampled(0)
def test_gathered_weights_are_never_old(ranks: Ranks) -> None:
    """FSDP gathers the weights without a new version, often at the same address."""
    for activity in ranks.call(rank_programs.follow_gathered_weights):
        assert activity.compiled_calls >= rank_programs.WRITES - 1
        assert not activity.fallbacks


@pytest.mark.sampled(0)
def test_weights_that_fsdp_frees_are_not_packed(ranks: Ranks) -> None:
    for weights in ranks.call(rank_programs.weights_of_sharded_groups):
        assert weights == [[], []]


@pytest.mark.sampled(0)
def test_an_error_in_one_rank_is_pytorchs(ranks: Ranks) -> None:
    *others, last = ranks.call(rank_programs.train_past_errors)
    assert not any(others)
    assert last == ["IndexError: index out of range in self"] * 2


@pytest.mark.parametrize(
    ("ranks", "case"), RUNS, ids=[f"{size} processes, {name_of(case)}" for size, case in RUNS], indirect=["ranks"]
)
@pytest.mark.sampled(0)
def test_training_gives_eagers_losses(ranks: Ranks, case: Case) -> None:
    for activity in ranks.call(training_cases.train_both, case):
        assert activity.specialisations > 0
        assert activity.compiled_calls >= training_cases.STEPS
        assert not activity.fallbacks
        if case.wrapping == "compile(DDP), buckets":
            assert activity.captured == 1 < activity.graphs


@pytest.mark.sampled(0)
def test_forks_of_a_process_that_has_compiled(tmp_path: Path) -> None:
    program = """
        import sys, torch
        from torch import multiprocessing
        sys.path.insert(0, sys.argv[1])
        import rank_programs
        from training_cases import Case, activity
        torch.set_num_threads(1)
        compiled = torch.compile(lambda x: torch.tanh(x) * 2 + 1, backend="torchmdla")
        for _ in range(2): compiled(torch.randn(7))
        assert activity().compiled_calls == 1
        case = Case("compile(DDP)", "convolutions", "SGD", evaluates=True)
        multiprocessing.start_processes(
            rank_programs.train_forked, (2, sys.argv[2], case), nprocs=2, start_method="fork"
        )
        print("trained")
    """
    done = run_python(program, str(Path(training_cases.__file__).parent), (tmp_path / "store").as_uri())
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("trained\n")


ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "distributed_training.py")


LAUNCHES = {
    "DDP, by itself": [EXAMPLE],
    "FSDP, by torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLE, "--sharded"],
}


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.sampled(0)
def test_the_example(launch: str) -> None:
    done = run_script(*LAUNCHES[launch], "--steps", "10", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert "groups were compiled in each of 2 processes, none fell back" in done.stdout


@pytest.mark.sampled(0)
def test_the_example_rejects_wrong_arguments() -> None:
    refused = run_script(EXAMPLE, "--steps", "0", PYTHONPATH=str(ROOT))
    assert refused.returncode == 2
    assert "[--sharded]" in refused.stderr
    assert "--processes and --steps are at least 1" in refused.stderr
