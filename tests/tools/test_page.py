"""Tests of the page of a report: its file, and its behaviour in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.__main__ import main
from torchmdla.compiler.artifact import KernelCall
from torchmdla.compiler.program import Program
from torchmdla.report import page as pages
from torchmdla.report.explanation import Explanation
from torchmdla.report.page.stages import Stage, stages_of
from torchmdla.testing.baseline import Changes
from torchmdla.testing.checking import Outcome
from torchmdla.testing.reporting import write_page
from torchmdla.testing.runner import check_outcome
from torchmdla.testing.score import score_of

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
STAGES = ["Torch dialect", "linalg", "loop program", "kernel", "LLVM IR", "optimised LLVM IR", "assembly"]

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_layout = pytest.mark.skipif(not pages._VENDOR.exists(), reason="built without npm: no library for graphs")


class Detector(nn.Module):
    """Module with a group, an operator that the device does not support, and a single operator without a group."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.scores = nn.Conv2d(32, 4, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.sigmoid(self.scores(self.features(image)))
        places = torch.nonzero(scores > 0.6)
        return torch.softmax(scores * 2 - 1, 1), places.float() / 64


@pytest.fixture(scope="module")
def report() -> Explanation:
    torch.manual_seed(0)
    with torch.no_grad():
        return torchmdla.explain(torch.jit.script(Detector().eval()), torch.randn(1, 3, 64, 64))


@pytest.fixture(scope="module")
def file(report: Explanation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    report.save(path)
    return path


def stages(report: Explanation) -> tuple[list[Stage], tuple[KernelCall, ...]]:
    ((program, kernels),) = report.programs.values()
    return stages_of(Program.from_bytes(program), kernels), kernels


# --- the report ---------------------------------------------------------------------------------------------------


def test_the_graph_has_operators_groups_and_their_edges(report: Explanation) -> None:
    (group,) = report.groups
    names = [operator.op for operator in report.graph.operators]
    assert names == [group.name, "aten::nonzero", "aten::to.dtype", "aten::div.Scalar"]
    assert [operator.inputs for operator in report.graph.operators] == [((-1, 0),), ((0, 0),), ((1, 0),), ((2, 0),)]
    assert all(operator.seconds > 0 for operator in report.graph.operators)
    inner = [operator.op for operator in group.graph.operators]
    assert inner[:3] == ["aten::conv2d", "aten::batch_norm", "aten::relu"]
    # Weights are left out.
    assert group.graph.operators[0].inputs == ((-1, 0),)
    assert group.graph.operators[1].inputs == ((0, 0),)
    (specialisation,) = group.specialisations
    kernels = specialisation.kernels
    (compared,) = [kernel for kernel in kernels if kernel.ops == ("gt",)]
    assert [inner[number] for number in compared.operators] == ["aten::gt.Scalar"]
    assert all(-1 <= earlier < number for number, kernel in enumerate(kernels) for earlier in kernel.after)
    assert any(-1 in kernel.after for kernel in kernels)
    assert sum(kernel.is_result for kernel in kernels) == 2


class Branches(nn.Module):
    def forward(self, x: Tensor, many: bool) -> Tensor:
        if many:
            x = torch.sort(x)[0] * 2 + 1
        for _ in range(3):
            x = torch.cumsum(x, 0)
        return torch.sigmoid(x @ x.t()).relu()


def traced_by_dynamo(x: Tensor) -> Tensor:
    y = torch.relu(x @ x) + 1
    print(end="")
    return torch.softmax(y, 1) * 2


VARIANTS: dict[str, tuple[Any, bool]] = {
    "branches and loops": (lambda x: (torch.jit.script(Branches()), x, True), False),
    "exported": (lambda x: (torch.export.export(Detector().eval().features, (x[None, :3],)),), False),
    "with Python between": (lambda x: (torch.compile(traced_by_dynamo, backend="torchmdla"), x), True),
}


@pytest.mark.parametrize("way", VARIANTS)
@pytest.mark.usefixtures("without_gradients")
def test_other_graphs(way: str) -> None:
    make, is_sequence = VARIANTS[way]
    x = torch.randn(3, 8, 8) if way == "exported" else torch.randn(8, 8)
    report = torchmdla.explain(*make(x))
    graph = report.graph
    assert graph.is_sequence == is_sequence
    assert {group.name for group in report.groups if group.seconds} <= {operator.group for operator in graph.operators}
    for number, operator in enumerate(graph.operators):
        assert all(-1 <= producer < len(graph.operators) and producer != number for producer, _ in operator.inputs)


def test_the_timeline_and_the_memory(report: Explanation) -> None:
    kinds = {entry.kind for entry in report.timeline}
    assert {"explain", "specialise", "import", "compile", "load", "run", "record", "pack", "operator"} <= kinds
    explained = {entry.name: entry for entry in report.timeline if entry.kind == "explain"}
    first = explained["first calls"]
    for entry in report.timeline:
        assert entry.start >= 0 and entry.seconds >= 0
        if entry.kind in ("record", "pack", "specialise"):
            assert first.start <= entry.start <= entry.start + entry.seconds <= first.start + first.seconds + 1e-3
    assert [entry.seconds for entry in report.memory] == sorted(entry.seconds for entry in report.memory)
    last = report.memory[-1]
    assert last.packed > 0 and last.workspace > 0
    assert last.resident > last.packed + last.workspace or not last.resident


def test_page_only_fields_are_left_out_of_the_data(report: Explanation) -> None:
    assert report.programs
    plain = json.loads(report.to_json())
    assert "programs" not in plain
    assert plain["graph"]["operators"][1]["op"] == "aten::nonzero"


# --- stages -------------------------------------------------------------------------------------------------------


def parts_of(stage: Stage, number: int) -> str:
    lines = stage.text.splitlines()
    return "\n".join(line for first, behind in stage.lines[number] for line in lines[first:behind])


# By stage: text that the part of the conv2d and sigmoid kernel contains, and text that it does not contain.
PARTS = {
    "Torch dialect": ("torch.aten.sigmoid", "torch.aten.gt"),
    "linalg": ("math.exp", "math.rsqrt"),
    "loop program": ("math.exp", "arith.cmpf"),
    "kernel": ("llvm.func internal @{symbol}(", "@mdla_forward("),
    "LLVM IR": ("void @{symbol}(", "@mdla_forward("),
}


def test_the_lines_of_a_kernel(report: Explanation) -> None:
    all_stages, kernels = stages(report)
    assert [stage.name for stage in all_stages] == STAGES
    names = [kernel.ops for kernel in report.groups[0].specialisations[0].kernels]
    number = names.index(("conv2d", "sigmoid"))
    for stage in all_stages[:-2]:
        assert "loc(" not in stage.text
        within, outside = (text.format(symbol=kernels[number].symbol) for text in PARTS[stage.name])
        part = parts_of(stage, number)
        assert within in part and outside not in part
        assert outside in stage.text or stage.name == "kernel"
    optimised = all_stages[-2]
    assert f"void @{kernels[number].symbol}(" in parts_of(optimised, number)
    # The text has neither headings nor the symbols that LLVM's linker adds.
    assert "***" not in optimised.text and "lljit" not in optimised.text
    if shutil.which("objdump") or shutil.which("llvm-objdump"):
        # A kernel that was inlined into the entry has no code of its own.
        assert f"<{kernels[number].symbol}>:" in parts_of(all_stages[-1], number)
        assert "mdla_forward" in all_stages[-1].text


def test_a_kernel_that_runs_tile_by_tile_is_shown_with_those_that_it_calls(report: Explanation) -> None:
    all_stages, kernels = stages(report)
    names = [kernel.ops for kernel in report.groups[0].specialisations[0].kernels]
    number = names.index(("mul", "sub", "softmax"))
    part = parts_of(all_stages[3], number)
    assert part.count("llvm.func internal") > 2
    assert f"@{kernels[number].symbol}(" in part


def test_a_program_for_any_sizes_has_stages() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.Softmax(1)).eval())
    with torch.no_grad():
        for rows in (3, 5, 7, 9):
            report = torchmdla.explain(model, torch.randn(rows, 6))
    (dynamic,) = [specialisation for specialisation in report.groups[0].specialisations if specialisation.is_dynamic]
    program, kernels = report.programs[dynamic.key]
    all_stages = stages_of(Program.from_bytes(program), kernels)
    assert [stage.name for stage in all_stages] == STAGES
    for stage in all_stages[:-2]:
        assert all(stage.lines), stage.name


# --- the file -----------------------------------------------------------------------------------------------------


@needs_layout
def test_the_file_holds_all_and_asks_for_nothing(file: Path) -> None:
    text = file.read_text()
    assert re.findall(r'(?:src|href)="', text) == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy and policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert "Permission is hereby granted" in text
    assert len(text) < 1 << 20


def test_without_the_layout_library(report: Explanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_VENDOR", tmp_path / "vendor")
    with pytest.raises(RuntimeError, match="install npm and build it again"):
        report.save(tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@needs_layout
def test_a_file_that_cannot_be_written(report: Explanation, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        report.save(tmp_path / "nowhere" / "report.html")


@needs_layout
def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.pt"
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()), model)
    saved = tmp_path / "report.html"
    assert main(["explain", str(model), "--input", "2x4", "--save", str(saved)]) == 0
    assert "<title>model.pt - torchmdla</title>" in saved.read_text()
    assert main(["explain", str(model), "--input", "2x4", "--save", str(tmp_path / "no" / "report.html")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/no/report.html: No such file or directory")


# --- the page in a browser ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        # Containers do not allow the browser's sandbox. The page is trusted.
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """Yield a function that opens a file without a network.

    The test fails if the page makes other requests, or logs errors or warnings.
    """
    context = browser.new_context(viewport={"width": 1366, "height": 768}, offline=True, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(300_000)  # a busy machine is slow
    wrong: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))

    def open_file(path: Path) -> Any:
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_file
    assert wrong == []
    assert {url for url in requests if not url.startswith("file:")} == set()
    context.close()


def focused(page: Any) -> str:
    name = "(one => one.getAttribute('aria-label') ?? one.textContent)(document.activeElement)"
    label: str = page.evaluate(name)
    return label


def screenshot(page: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
    assert (SCREENSHOTS / f"{name}.png").stat().st_size > 10_000


@needs_layout
def test_it_opens_and_unfolds(opened: Any, file: Path) -> None:
    page = opened(file)
    assert page.locator("#summary").text_content().startswith("1 group, ")
    group = page.locator(".node.group")
    assert group.get_attribute("aria-expanded") == "false"
    assert page.locator(".node.operator").count() == 3
    group.click()
    assert page.locator(".node.frame").get_attribute("aria-expanded") == "true"
    assert page.locator(".node.kernel").count() == 6
    page.get_by_role("button", name="operators", exact=True).click()
    assert page.locator(".node.kernel").count() == 0
    assert page.locator(".node.operator").count() == 3 + 9
    screenshot(page, "unfolded")
    page.get_by_role("button", name="Fold all").click()
    assert page.locator(".node.operator").count() == 3


@needs_layout
def test_a_kernel_is_found_and_opened(opened: Any, file: Path) -> None:
    page = opened(file)
    page.keyboard.press("/")
    page.keyboard.type("sigmoid conv")
    assert page.locator("#kernels li:visible").count() == 1
    page.get_by_label("Search kernels").fill("softmax")
    assert page.locator("#kernels li:visible").count() == 1  # not all kernels of its group
    page.get_by_label("Search kernels").fill("sigmoid conv")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_role("heading", name="conv2d + sigmoid").is_visible()
    assert "torch.sigmoid" in dialog.locator(".source mark").text_content()
    shown = [name for name in STAGES if name != "LLVM IR"]
    assert dialog.locator(".pane h3").all_text_contents() == shown
    page.wait_for_selector(".pane mark")
    loops = dialog.get_by_label("loop program", exact=True)
    assert "math.exp" in loops.locator("mark").text_content()
    assert "arith.cmpf" in loops.text_content() and "arith.cmpf" not in loops.locator("mark").text_content()
    screenshot(page, "kernel")
    dialog.get_by_role("button", name="linalg", exact=True).click()
    assert "linalg" not in dialog.locator(".pane h3").all_text_contents()
    pane = dialog.locator(".pane", has_text="loop program")
    pane.get_by_role("button", name="only the kernel").click()
    assert "arith.cmpf" not in loops.text_content()
    dialog.get_by_role("button", name="Only assembly").click()
    assert dialog.locator(".pane h3").all_text_contents() == ["assembly"]
    assert focused(page) == "All stages"
    page.keyboard.press("]")
    assert dialog.locator(".pane h3").all_text_contents() == ["assembly"]
    dialog.get_by_role("button", name="All stages").click()
    assert dialog.locator(".pane h3").all_text_contents() == [name for name in shown if name != "linalg"]
    dialog.get_by_role("button", name="LLVM IR", exact=True).click()
    assert "LLVM IR" in dialog.locator(".pane h3").all_text_contents()
    assert not dialog.get_by_role("heading", name="conv2d + sigmoid").is_visible()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0


@needs_layout
def test_light_and_dark(opened: Any, file: Path) -> None:
    page = opened(file)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    toggle = page.get_by_role("button", name="Dark")
    toggle.click()
    assert toggle.get_attribute("aria-pressed") == "true"
    dark = page.evaluate(background)
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 200 < 600 < sum(map(int, re.findall(r"\d+", light)[:3]))
    screenshot(page, "dark")
    page.reload()
    assert page.evaluate(background) == dark  # the browser stores the choice


@needs_layout
def test_by_keyboard(opened: Any, file: Path) -> None:
    page = opened(file)
    reached = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(focused(page))
    wanted = ["Graph", "Keys ?", "Dark", "kernels", "Fold all", "Larger", "Search kernels"]
    assert list(dict.fromkeys(label for label in reached if label in wanted)) == wanted
    page.locator(".node[tabindex='0']").focus()
    assert focused(page).startswith("mdla_conv2d")
    page.keyboard.press("ArrowDown")
    assert focused(page).startswith("nonzero")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert page.locator(".node.kernel").count() == 6
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.classList.contains('kernel')")
    page.keyboard.press("Enter")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0
    page.locator(".node.kernel").first.focus()
    page.keyboard.press("Escape")
    assert page.locator(".node.kernel").count() == 0
    assert focused(page).startswith("mdla_conv2d")
    page.locator("#tab-graph").focus()
    for name in ("roofline", "timeline", "tables"):
        page.keyboard.press("ArrowRight")
        assert page.locator(f"#{name}").is_visible()
        assert not page.locator("#graph").is_visible()
        screenshot(page, name)
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()


@needs_layout
def test_the_other_views(opened: Any, file: Path, report: Explanation) -> None:
    page = opened(file)
    page.locator("#tab-roofline").click()
    kernels = report.groups[0].specialisations[0].kernels
    assert page.locator(".point").count() == sum(kernel.flops > 0 for kernel in kernels)
    page.locator(".point").first.focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    page.locator("#tab-timeline").click()
    page.get_by_role("button", name="first calls").click()
    assert page.locator("#timeline rect.kind.record").count() == 1
    assert "pack weights" in page.locator(".kinds").text_content()
    assert page.locator("#timeline path.memory").count() == 3
    page.get_by_role("button", name="a profiled call").click()
    assert page.locator("#timeline rect.kind.operator").count() > 0
    page.locator("#tab-tables").click()
    assert page.get_by_role("cell", name="aten::nonzero: device 'cpu' has no such operator").is_visible()


@needs_layout
def test_every_control_has_a_name(opened: Any, file: Path) -> None:
    page = opened(file)
    for name in ("roofline", "timeline", "tables", "graph"):
        page.locator(f"#tab-{name}").click()
    page.locator(".node.group").click()
    nameless = """[...document.querySelectorAll("button, input, [role=button], [role=tab], svg[role], dialog")].filter(
        (one) => !(one.getAttribute("aria-label") || one.getAttribute("aria-labelledby") || one.textContent.trim())
    ).map((one) => one.outerHTML)"""
    assert [element for element in page.evaluate(nameless) if 'id="kernel"' not in element] == []


@needs_layout
def test_names_are_no_html(opened: Any, report: Explanation, tmp_path: Path) -> None:
    bad = "</script><script>console.error('run')</script><img src=x onerror=console.error('run')>"
    (group,) = report.groups
    (specialisation,) = group.specialisations
    kernels = tuple(replace(kernel, ops=(bad,), source=f"{bad}:3") for kernel in specialisation.kernels)
    changed = replace(
        report,
        model=bad,
        groups=(replace(group, specialisations=(replace(specialisation, kernels=kernels),)),),
        reasons=tuple(replace(reason, reason=bad, sources=(bad,)) for reason in report.reasons),
    )
    changed.save(tmp_path / "bad.html")
    page = opened(tmp_path / "bad.html")
    assert page.locator("#model").text_content() == bad
    page.locator(".row").first.click()
    page.keyboard.press("Escape")
    for name in ("roofline", "timeline", "tables"):
        page.locator(f"#tab-{name}").click()
    assert page.locator("img").count() == 0


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.unique(x)


@needs_layout
def test_where_nothing_is_compiled(opened: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        torchmdla.explain(torch.jit.script(Sorted()), torch.randn(5)).save(tmp_path / "none.html")
    page = opened(tmp_path / "none.html")
    assert page.locator("#found").text_content() == "0 kernels, 0.0 % of the time"
    for name in ("roofline", "timeline", "tables"):
        page.locator(f"#tab-{name}").click()


def test_the_page_of_a_score(opened: Any, tmp_path: Path) -> None:
    bad = "<img src=x onerror=console.error('run')>"
    relu, alone = {"aten::relu": ""}, {"aten::relu": "it is alone"}
    outcomes = [
        Outcome("samples.relu.float32:0", "torchscript:trace", "ok", compiled_calls=2, operators=relu),
        Outcome("samples.relu.float16:0", "torchscript:trace", "ok", operators=alone),
        Outcome("elementwise.relu", "dynamo:compile", "wrong", bad, compiled_calls=2, operators=relu),
    ]
    score, changes = score_of("npu", ["acme::conv"], outcomes), Changes(["elementwise.relu: wrong"], [])
    write_page([check_outcome(outcome) for outcome in outcomes], score, changes, tmp_path / "score.html")
    page = opened(tmp_path / "score.html")
    assert page.get_by_role("heading", level=1).text_content() == str(score)
    assert page.get_by_role("cell", name="elementwise.relu: wrong", exact=True).is_visible()
    assert page.get_by_role("status").text_content() == "3 programs"
    page.get_by_label("Search programs").fill("float16 alone")
    assert page.get_by_role("status").text_content() == "1 program"
    assert page.get_by_role("cell", name="samples.relu.float16:0", exact=True).is_visible()
    assert not page.get_by_role("cell", name="elementwise.relu", exact=True).is_visible()
    assert page.locator("img").count() == 0
    page.get_by_role("button", name="Dark").click()
    screenshot(page, "score")


def test_the_folder_of_screenshots_is_ignored_by_git() -> None:
    assert "build/" in (ROOT / ".gitignore").read_text().splitlines()
    assert os.path.commonpath([SCREENSHOTS, ROOT / "build"]) == str(ROOT / "build")
