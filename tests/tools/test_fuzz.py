"""Tests of a few random programs of each kind against eager. ``make fuzz`` runs more of them."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from child_process import run_python
from fuzz import families, hunt, registry, rewriting, soak
from fuzz import vocabulary as words
from fuzz.__main__ import main
from fuzz.cases import job, job_of
from fuzz.drawing import KINDS, draw, draw_frontend
from fuzz.hunt import FAULTS, Hunt, Options
from fuzz.shrinking import shrunk
from fuzz.sources import INSTALLED
from fuzz.text import Input, Text, module_of, program_of

from torchmdla.testing.checking import check
from torchmdla.testing.frontends import Variant
from torchmdla.testing.op_samples import SAMPLES
from torchmdla.testing.runner import CheckedOutcome, run

HERE = Path(__file__).parents[1]

# These seeds take about a minute.
SEEDS = range(12)

DRAWN = [f"{kind}/{draw_frontend(seed)}/{seed}" for kind in KINDS for seed in SEEDS]


def outcomes(jobs: list[Any]) -> dict[str, Any]:
    """Return the outcomes of the jobs by program name. Programs run in separate processes."""
    return {
        event.outcome.program: event.outcome for event in run(jobs, timeout=600) if isinstance(event, CheckedOutcome)
    }


@pytest.mark.sampled(0)
def test_programs_drawn_at_random() -> None:
    by_name = outcomes([job(name, name.split("/")[1], "cpu") for name in DRAWN])
    assert len(by_name) > len(DRAWN) // 2  # the others do not apply to their frontend
    assert not {name: (outcome.status, outcome.detail) for name, outcome in by_name.items() if outcome.status in FAULTS}


@pytest.mark.sampled(0)
def test_control_flow_drawn_at_random() -> None:
    assert re.search(r"\bright 5\d$", _control_flow("--count", "60"))


FOUND = {
    690: "PyTorch moves a dropout behind a draw of a later branch where its nodes join a differentiable graph",
    7414: "a branch that is left out has the only use of a draw",
    807: "a differentiable graph saves a result that is written to and that no gradient comes for",
    7244: "a differentiable graph saves an input that is written to and that no gradient comes for",
    7308: "a differentiable graph saves a result of another one that a loop writes to",
    7374: "a differentiable graph saves a part of a result that is written to",
}


@pytest.mark.parametrize("seed", FOUND)
@pytest.mark.sampled(1)
def test_control_flow_found_once(seed: int) -> None:
    assert _control_flow("--count", "1", "--seed", str(seed)).endswith("right 1\n")


def _control_flow(*arguments: str) -> str:
    code = "import sys; from fuzz.control_flow import main; sys.exit(main())"
    process = run_python(code, *arguments, PYTHONPATH=str(HERE))
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.parametrize("path", sorted((HERE / "fuzz" / "found").glob("*.py")), ids=lambda path: path.stem)
def test_found_once(path: Path) -> None:
    (outcome,) = outcomes([job_of(path)]).values()
    assert outcome.status not in FAULTS, outcome.detail


# --- drawing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_a_program(kind: str) -> None:
    first, again, other = (str(draw(kind, seed, "torchscript:script")) for seed in (5, 5, 6))
    assert first == again != other


@pytest.mark.parametrize("kind", KINDS)
def test_programs_run_at_many_sizes(kind: str) -> None:
    for seed in range(3):
        text = draw(kind, seed, "torchscript:trace")
        program = program_of(module_of(str(text)), "test.drawn")
        assert text.body
        assert len(program.series) == KINDS[kind].calls
        assert len({n for n, _ in text.sizes}) > 3 or KINDS[kind].is_trained


def test_every_operator_may_be_drawn() -> None:
    assert len(registry.NAMES) > 0.9 * len(SAMPLES)
    random = Random(0)
    drawn = {registry.call(random, lambda *_: "x").partition("(")[0].rpartition(".")[2] for _ in range(8000)}
    assert drawn == {name.rpartition("::")[2].partition(".")[0] for name in registry.NAMES}


class Tensors(families.Source):
    """Source of operands with two tensors and parameters."""

    def __init__(self, seed: int) -> None:
        self.random, self.values = Random(seed), {"a": torch.ones(2, 4, 6), "b": torch.ones(4, 6)}

    def number(self, least: int, most: int) -> int:
        return self.random.randint(least, most)

    def operands(self) -> list[families.Operand]:
        floats = {name: value for name, value in self.values.items() if value.dtype == torch.float32}
        return [families.Operand(name, tuple(map(str, value.shape))) for name, value in floats.items()]

    def parameter(self, kind: str, *sizes: str) -> str:
        name = f"p{len(self.values)}"
        self.values[name] = torch.ones([int(size) for size in sizes]).to(torch.int8 if "int" in kind else torch.float32)
        return name


@pytest.mark.parametrize("name", [*families.FAMILIES, *families.CHEAP])
def test_eager_accepts_drawn_programs(name: str) -> None:
    taken = 0
    for seed in range(40):
        source = Tensors(seed)
        text = {**families.FAMILIES, **families.CHEAP}[name](source)
        with contextlib.suppress(RuntimeError, ValueError):
            taken += isinstance(eval(text, {"torch": torch}, source.values), torch.Tensor)
    assert taken >= 20


def test_templates_are_python() -> None:
    names = dict.fromkeys("fgtqijnkdscvabuzpwy", "x") | {"condition": "x"}
    values = (*words.INTEGERS, *words.SCALARS, *words.OF_SIZES, *words.OF_NUMBERS, *words.CHECKED, *words.TRAINED)
    for template in (*values, *words.VIEWS, *words.WRITES, *words.CONTROL):
        ast.parse(template.format(**names))


def test_rewritten_programs_compute_the_same() -> None:
    changed = 0
    for seed in range(8):
        text = draw("rewrites", seed, "torchscript:script")
        changed += text.rewritten != text.body
        module = module_of(str(text))
        unchanged = Variant(lambda subject, inputs, methods: {"forward": subject}, lambda *_: True)
        outcome = check(program_of(module, "test.rewritten"), "test:frontend", unchanged)
        assert outcome is not None and outcome.status in ("ok", "no reference"), (outcome.detail, str(text))
    assert changed > 4


def test_elementwise_programs_are_split_and_batched() -> None:
    text = Text("", (Input("x1", "normal(n, 4)"),), ("v1 = torch.tanh(x1)",), ("v1",), ((5, 7),))
    tensors = {"x1": torch.ones(5, 4)}
    seen = {rewriting.rewritten(text, Random(seed), tensors).rewritten for seed in range(60)}
    assert any("torch.tanh((x1[:" in statement for (statement,) in seen)
    assert any("torch.tanh((torch.stack" in statement for (statement,) in seen)
    assert any("torch.tanh((x1.transpose" in statement for (statement,) in seen)


@pytest.mark.skipif("nnsmith" not in INSTALLED, reason="NNSmith is not installed")
def test_graphs_of_nnsmith() -> None:
    names = [
        f"nnsmith/{way}/{seed}" for seed, way in enumerate(("torchscript:script", "dynamo:compile", "acap:device"))
    ]
    by_name = outcomes([job(name, name.split("/")[1], "cpu") for name in names])
    assert {outcome.status for outcome in by_name.values()} <= {"ok", "fallback"}, by_name


# --- findings and their reduction -----------------------------------------------------------------------------------


def shrunk_while(text: Text, fails: Callable[[Text], bool]) -> Text:
    """Return the smallest program that still fails."""
    steps = shrunk(text)
    candidate = next(steps)
    while True:
        try:
            candidate = steps.send(fails(candidate))
        except StopIteration as done:
            small: Text = done.value
            return small


def test_failures_are_shrunk() -> None:
    text = draw("graphs", 1, "torchscript:script")
    wanted = next(line for line in text.body if "aten" in line)
    small = shrunk_while(text, lambda text: wanted in text.body and any(n > 20 for n, _ in text.sizes))
    assert wanted in small.body and len(small.body) < len(text.body) and len(small.sizes) == len(small.results) == 1


def options(folder: Path, **changes: Any) -> Options:
    """Return the options of a hunt over a few programs. Its findings go to ``folder``."""
    defaults = {"kinds": ["sizes"], "ways": ["dispatch:capture"], "seed": 0, "count": 2, "seconds": None}
    rest = {"device": "cpu", "options": "", "processes": 1, "timeout": 300.0, "folder": folder}
    return Options(**{**defaults, **rest, **changes})


@pytest.mark.sampled(0)
def test_a_finding_becomes_a_file_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Treat correct results as faults, so that the hunt has findings.
    monkeypatch.setattr(hunt, "FAULTS", frozenset({"ok", "fallback", "pytorch", "not captured"}))
    hunted = Hunt(options(tmp_path / "found"), tmp_path, lambda line: None)
    assert list(hunted.run())[-1] == 1
    assert sum(hunted.counts.values()) == 2 and hunted.findings
    for path in hunted.findings:
        assert path.read_text(encoding="utf-8").startswith('"""Drawn as sizes/dispatch:capture/')
        assert main(["--replay", str(path)]) == 1
    assert not list(tmp_path.glob("candidate*"))


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--show", "graphs/torchscript:trace/3"]) == 0
    assert capsys.readouterr().out.rstrip() == str(draw("graphs", 3, "torchscript:trace")).rstrip()
    for wrong in (["--kind", "none"], ["--frontend", "none"], ["--device", "none"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)


# --- soak -----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(0)
def test_soak_for_a_few_steps() -> None:
    work = soak.Soak(seed=1)
    for _ in range(8):
        work.step()
    assert not work.wrong
    assert sum(work.done.values()) == 8


@pytest.mark.sampled(0)
def test_soak_of_serving_for_a_few_steps(tmp_path: Path) -> None:
    done = run_python(
        f"""
        import os, sys, warnings
        from pathlib import Path

        sys.path.insert(0, {str(Path(soak.__file__).parents[1])!r})
        warnings.simplefilter("ignore")
        folder = Path({str(tmp_path)!r})
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        os.environ["TORCHMDLA_CACHE_DIR"] = str(folder / "cache")
        from fuzz.serving import Serving, set_up

        set_up(folder)
        work = Serving(1, folder)
        for _ in range(6):
            work.step()
        print(work.wrong, sum(work.done.values()))
        """
    )
    assert done.stdout == "[] 6\n", done.stderr


def test_growth_is_seen() -> None:
    flat = [dict.fromkeys(soak.LIMITS, 100.0) for _ in range(40)]
    assert all(soak.is_flat(flat, name) for name in soak.LIMITS)
    growing = [dict.fromkeys(soak.LIMITS, 100.0 + 20 * step) for step in range(40)]
    assert not any(soak.is_flat(growing, name) for name in soak.LIMITS)
    assert soak.drawn_line([0, 1, 2]) == "▁▄█"


def test_samples_are_taken() -> None:
    sample = soak.sample()
    assert set(sample) == set(soak.LIMITS)
    assert sample["memory, MiB"] > 50 and sample["threads"] >= 1 and sample["mappings"] > 50
