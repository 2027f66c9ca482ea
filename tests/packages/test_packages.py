"""Programs saved with the compiled code of their groups: readers compute eager's results and compile nothing."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import output_of, run_python
from torch import Tensor, nn

import torchmdla
from torchmdla import _C
from torchmdla.packages import info
from torchmdla.testing.compare import assert_matches
from torchmdla.testing.models import MODELS

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")

# Calls the program of a file with the inputs in another file, and compares with eager's results in that file. The cache
# is empty, and a compilation raises an error.
READ = """
    import json, sys
    import torch
    import torchmdla
    from torchmdla.compile_service import service
    from torchmdla.testing.compare import assert_matches

    def compile_program(program):
        raise SystemExit("a group is compiled that the package should have")

    service.compile_program = compile_program
    path, calls, *threads = sys.argv[1:]
    for number in map(int, threads):
        torch.set_num_threads(number)
    program = torchmdla.load(path)
    with torch.no_grad():
        for inputs, expected in torch.load(calls):
            for _ in range(2):
                assert_matches(program(*inputs), expected, layers=50)
    assert "llvmlite" not in sys.modules
    stats = torchmdla.stats()
    print(json.dumps({
        "packages": stats.packages, "packaged": stats.packaged, "refused": stats.refused, "fallbacks": stats.fallbacks,
        "compiled": [group.compiled_calls for group in stats.by_group],
    }))
"""


@pytest.fixture(autouse=True)
def packages_off_afterwards() -> Any:
    """Turn packages off after a test, so that groups of other tests in this process compile."""
    yield
    _C.set_packages(False)


def calls_of(model: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], path: Path) -> Path:
    """Write a file with ``inputs`` and eager's results for them, and return its path."""
    with torch.no_grad(), torchmdla.enabled(False):
        torch.save([(call, model(*call)) for call in inputs], path)
    return path


def read(path: Path, calls: Path, *threads: int, **environment: str) -> Any:
    arguments = (str(path), str(calls), *map(str, threads))
    output = output_of(READ, *arguments, TORCHMDLA_CACHE_DIR=str(path.parent / "empty"), **environment)
    return json.loads(output.splitlines()[-1])


def check(model: Any, inputs: Sequence[tuple[Any, ...]], tmp_path: Path, more: Sequence[Any] = (), **how: Any) -> Any:
    """Save ``model`` for ``inputs``, and let another process read it and call it with ``inputs`` and ``more``."""
    calls = calls_of(model, [*inputs, *more], tmp_path / "calls")
    torchmdla.save(model, tmp_path / "model.pt", inputs, **how)
    report = read(tmp_path / "model.pt", calls)
    assert report["packaged"] and not report["refused"] and not report["fallbacks"], report
    assert all(report["compiled"]), report
    return report


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "bert", "gpt", "lstm", "mlp", "unet"])
@pytest.mark.sampled(1)
def test_models_run_by_the_code_in_their_files(name: str, tmp_path: Path) -> None:
    spec = MODELS[name].reduced()
    check(spec.build().eval(), [spec.inputs()], tmp_path)


def test_sizes_that_vary(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 8)).eval()
    batches = [(torch.randn(batch, 24),) for batch in (2, 5, 9)]
    report = check(model, batches, tmp_path, more=[(torch.randn(batch, 24),) for batch in (3, 17, 64)])
    assert report["packaged"] == 3


class Branching(nn.Module):
    """Control flow around groups, in training and in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, turns: int) -> Tensor:
        for _ in range(turns):
            x = torch.relu(self.first(x)) if turns > 2 else torch.tanh(self.dropout(self.second(x))) + x
        return x


@pytest.mark.parametrize("freeze", [True, False])
def test_scripts_with_control_flow(freeze: bool, tmp_path: Path) -> None:
    x = torch.randn(4, 16)
    check(torch.jit.script(Branching().eval()), [(x, 1), (x, 3)], tmp_path, freeze=freeze)


def test_weights_that_are_not_constants_may_change(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval(), torch.randn(3, 32)
    torchmdla.save(model, tmp_path / "model.pt", [x], freeze=False)
    _C.set_packages(True)
    torchmdla.reset_stats()
    loaded = torchmdla.load(tmp_path / "model.pt")
    with torch.no_grad():
        assert_matches(loaded(x), model(x))
        model[0].weight.mul_(3)
        loaded.load_state_dict(model.state_dict())
        assert_matches(loaded(x), model(x))
    assert torchmdla.stats().packaged == 1


class Divided(nn.Module):
    """An operator that the device refuses, between two that it supports."""

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        x = torch.relu(x * 2 + 1)
        x = nn.functional.grid_sample(x, grid, mode="bicubic", align_corners=False)
        return torch.tanh(x * 3 - 1)


@pytest.mark.filterwarnings("ignore:torchmdla. an op")
def test_groups_that_are_divided(tmp_path: Path) -> None:
    inputs = (torch.randn(1, 2, 8, 8), torch.rand(1, 5, 5, 2) * 2 - 1)
    report = check(Divided().eval(), [inputs], tmp_path)
    assert report["packaged"] == 3


@pytest.mark.skipif("x86" not in torch.backends.quantized.supported_engines, reason="no quantised kernels for x86")
@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_packed_by_pytorch(tmp_path: Path) -> None:
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    x = torch.randn(2, 3, 16, 16)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)).eval()
    prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    quantised = torch.jit.trace(convert_fx(prepared), x)
    torchmdla.save(quantised, tmp_path / "model.pt", [x])
    calls = calls_of(quantised, [(x,)], tmp_path / "calls")
    report = read(tmp_path / "model.pt", calls)
    assert report["packaged"] == 1 and not report["fallbacks"], report


@pytest.mark.sampled(0)
def test_exported_programs(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 8)).eval(), torch.randn(4, 24)
    program = torch.export.export(model, (x,))
    calls = calls_of(model, [(x,)], tmp_path / "calls")
    torchmdla.save(program, tmp_path / "model.pt2", targets=["native", "x86-64-v2"])
    report = read(tmp_path / "model.pt2", calls)
    assert report["packages"] == {"native": 1} and report["packaged"] == 1 and not report["fallbacks"]
    assert_matches(torch.export.load(tmp_path / "model.pt2").module()(x), model(x))


@pytest.fixture(scope="module")
def for_all_levels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a package for all levels of x86-64, and its calls."""
    folder = tmp_path_factory.mktemp("levels")
    spec = MODELS["resnet18"].reduced()
    model, inputs = spec.build().eval(), spec.inputs()
    torchmdla.save(model, folder / "model.pt", [inputs], targets=LEVELS)
    return folder / "model.pt", calls_of(model, [inputs], folder / "calls")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.sampled(0)
def test_each_processor_gets_its_code(level: str, for_all_levels: tuple[Path, Path]) -> None:
    try:
        torchmdla.enable(processor=level)
    except ValueError as error:
        pytest.skip(str(error))
    finally:
        torchmdla.enable()
    report = read(*for_all_levels, TORCHMDLA_PROCESSOR=level)
    assert report["packages"] == {level: 1} and not report["fallbacks"]


@pytest.fixture(scope="module")
def for_several_threads(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a package for several numbers of threads, and its calls."""
    folder = tmp_path_factory.mktemp("threads")
    model, x = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).eval(), torch.randn(40, 64)
    targets = ["native-threads16", "native-threads4", "native"]
    torchmdla.save(model, folder / "model.pt", [x], targets=targets, pack_weights=True)
    return folder / "model.pt", calls_of(model, [(x,)], folder / "calls")


@pytest.mark.parametrize(
    ("threads", "target"), [(1, "native"), (3, "native"), (7, "native-threads4"), (16, "native-threads16")]
)
def test_each_number_of_threads_gets_its_code(
    threads: int, target: str, for_several_threads: tuple[Path, Path]
) -> None:
    report = read(*for_several_threads, threads)
    assert report["packages"] == {target: 1} and not report["fallbacks"]
    assert report["packaged"] == 1


def test_a_package_for_more_threads_runs(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).eval(), torch.randn(40, 64)
    torchmdla.save(model, tmp_path / "model.pt", [x], targets=["native-threads32", "native-threads8"])
    report = read(tmp_path / "model.pt", calls_of(model, [(x,)], tmp_path / "calls"), 2)
    assert report["packages"] == {"native-threads8": 1} and not report["fallbacks"]


def test_a_package_for_other_processors_is_refused_and_the_program_runs(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh()).eval(), torch.randn(2, 16)
    torchmdla.save(model, tmp_path / "model.pt", [x], targets=["x86-64-v3"])
    code = f"""
        import torch, torchmdla
        program = torchmdla.load({str(tmp_path / "model.pt")!r})
        print(torchmdla.stats().packages, list(torchmdla.stats().refused)[0])
        print(program(torch.ones(2, 16)).shape)
    """
    run = run_python(code, TORCHMDLA_PROCESSOR="x86-64-v2")
    assert "no code for this processor, but for x86-64-v3" in run.stdout, run.stderr
    assert "torch.Size([2, 16])" in run.stdout


def test_targets_of_another_architecture(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).eval(), torch.randn(40, 64)
    targets = ["armv8-a", "x86-64-v2"]
    described = torchmdla.save(model, tmp_path / "model.pt", [x], targets=targets, pack_weights=True)
    assert described.targets[0].features == ("fp-armv8", "neon")
    assert all(target.weights for target in described.targets)
    report = read(tmp_path / "model.pt", calls_of(model, [(x,)], tmp_path / "calls"))
    assert report["packages"] == {"x86-64-v2": 1} and not report["fallbacks"]


def test_pytorch_alone_takes_the_file_as_any_other(for_all_levels: tuple[Path, Path]) -> None:
    path, calls = for_all_levels
    code = f"""
        import sys
        import torch
        files = {{"torchmdla/index": ""}}
        program = torch.jit.load({str(path)!r}, _extra_files=files)
        for inputs, expected in torch.load({str(calls)!r}):
            torch.testing.assert_close(program(*inputs), expected, rtol=1e-4, atol=1e-4)
        assert "torchmdla" not in sys.modules and len(files["torchmdla/index"]) > 100
        print("done")
    """
    assert run_python(code).stdout == "done\n"
    # Viewers of models read an archive whose parts are intact.
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {name.partition("/")[2] for name in archive.namelist()} >= {"data.pkl", "constants.pkl", "version"}


def test_other_sizes_than_the_package_has_are_compiled(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(12, 12), nn.Sigmoid()).eval()
    torchmdla.save(model, tmp_path / "model.pt", [torch.randn(2, 12)])
    _C.set_packages(True)
    loaded, x = torchmdla.load(tmp_path / "model.pt"), torch.randn(7, 12)
    torchmdla.reset_stats()
    with torch.no_grad():
        for _ in range(3):
            assert_matches(loaded(x), model(x))
    stats = torchmdla.stats()
    assert stats.specialisations == 1 and not stats.fallbacks


def test_info_lists_the_contents_of_a_package(for_all_levels: tuple[Path, Path], tmp_path: Path) -> None:
    description = info(for_all_levels[0])
    assert description is not None
    assert [target.name for target in description.targets] == list(LEVELS)
    assert "float32[1, 3, 64, 64]" in description.targets[0].groups[0]
    assert "avx2" in description.targets[1].features and "avx2" not in description.targets[0].features
    torch.jit.save(torch.jit.script(Branching()), str(tmp_path / "plain.pt"))
    assert info(tmp_path / "plain.pt") is None


def test_further_extra_files_are_kept(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(2, 4)
    torchmdla.save(model, tmp_path / "model.pt", [x], extra={"labels.txt": b"cat\ndog"})
    files = {"labels.txt": ""}
    torch.jit.load(tmp_path / "model.pt", _extra_files=files)
    assert files["labels.txt"] == b"cat\ndog"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"inputs": []}, "needs the inputs of a call"),
        ({"targets": ["x86-64-v5"]}, "unknown processor 'x86-64-v5'"),
        ({"extra": {"torchmdla/index": b""}}, "are the package's own"),
    ],
)
def test_unsaveable_programs_raise_an_error(how: dict[str, Any], message: str, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    with pytest.raises(ValueError, match=message):
        torchmdla.save(nn.Linear(4, 4).eval(), tmp_path / "model.pt", **{"inputs": [x], **how})
    assert not list(tmp_path.iterdir())


def test_a_program_without_groups_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no group of the program is compiled"):
        torchmdla.save(torch.jit.script(lambda_free), tmp_path / "model.pt", [torch.randn(3, 3)])


def lambda_free(x: Tensor) -> Tensor:
    return torch.linalg.inv(x)


def test_saving_leaves_the_switches_as_they_were(tmp_path: Path) -> None:
    torchmdla.enable(background=True)
    torchmdla.disable()
    torchmdla.save(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), tmp_path / "model.pt", [torch.randn(2, 4)])
    assert not torchmdla.is_enabled()


def test_files_in_memory_run_without_their_package(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(2, 4)
    torchmdla.save(model, tmp_path / "model.pt", [x])
    loaded = torch.jit.load(io.BytesIO((tmp_path / "model.pt").read_bytes()))
    with torch.no_grad():
        assert_matches(loaded(x), model(x))


def test_explain_reports_packaged_code(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24)).eval(), torch.randn(6, 24)
    torchmdla.save(model, tmp_path / "model.pt", [x])
    _C.set_packages(True)
    report = torchmdla.explain(torchmdla.load(tmp_path / "model.pt"), x)
    (group,) = report.groups
    (specialisation,) = group.specialisations
    assert specialisation.origin == "package" and group.ops["aten::tanh"] == 1
    assert any("tanh" in kernel.ops and kernel.seconds for kernel in specialisation.kernels)
    assert "from a package" in str(report)


# Prints the packed weights of one process: bytes in its own memory, and kilobytes mapped from the file.
HELD = """
    import re, sys
    import torch, torchmdla
    program = torchmdla.load(sys.argv[1])
    torch.manual_seed(0)
    print(program(torch.ones(64, 256)).sum().item())
    maps = open("/proc/self/smaps").read().split("VmFlags:")
    mapped = sum(int(re.search(r"Rss: +(\\d+)", one)[1]) for one in maps if "model.pt" in one)
    print(torchmdla._C.memory_use()["packed"], mapped, list(torchmdla.stats().refused))
"""


def wide() -> nn.Module:
    """Return a module with more weights than fit beside each other by chance."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256), nn.Tanh(), nn.Linear(256, 8)).eval()


def test_packed_weights_are_mapped_from_the_file(tmp_path: Path) -> None:
    x = torch.randn(64, 256)
    check(wide(), [(x,)], tmp_path, pack_weights=True)
    _, packed, mapped, refused = run_python(HELD, str(tmp_path / "model.pt")).stdout.split(maxsplit=3)
    (target,) = getattr(info(tmp_path / "model.pt"), "targets", ())
    assert packed == "0" and refused.strip() == "[]"
    assert target.weights >= 256 * 1024 * 4 and int(mapped) * 1024 >= target.weights


def test_packed_weights_of_other_weights_are_not_used(tmp_path: Path) -> None:
    """Read the package of one program in the file of another, as after fine-tuning."""
    torchmdla.save(wide(), tmp_path / "first.pt", [torch.randn(64, 256)], pack_weights=True)
    reader = torch._C.PyTorchFileReader(str(tmp_path / "first.pt"))
    names = [name for name in reader.get_all_records() if name.startswith("extra/torchmdla/")]
    records = {name.removeprefix("extra/"): reader.get_record(name) for name in names}
    other = wide()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.01)
    frozen = torch.jit.freeze(torch.jit.trace(other, torch.randn(64, 256)))
    torch.jit.save(frozen, str(tmp_path / "model.pt"), _extra_files=records)
    calls = calls_of(other, [(torch.randn(64, 256),)], tmp_path / "calls")
    report = read(tmp_path / "model.pt", calls)
    assert report["packaged"] == 1 and all(report["compiled"])


def test_damaged_packed_weights_are_packed_anew(tmp_path: Path) -> None:
    torchmdla.save(wide(), tmp_path / "model.pt", [torch.randn(64, 256)], pack_weights=True)
    whole = run_python(HELD, str(tmp_path / "model.pt")).stdout.split("\n")[0]
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        (record,) = (entry for entry in archive.infolist() if "/weights/" in entry.filename)
    data = bytearray((tmp_path / "model.pt").read_bytes())
    data[record.header_offset + record.file_size // 2] ^= 0x10
    (tmp_path / "model.pt").write_bytes(data)
    value, rest = run_python(HELD, str(tmp_path / "model.pt")).stdout.strip().split("\n")
    assert value == whole and "packed anew" in rest


@pytest.mark.sampled(0)
def test_processes_share_packed_weights(tmp_path: Path) -> None:
    """Several processes together hold one copy."""
    torchmdla.save(wide(), tmp_path / "model.pt", [torch.randn(64, 256)], pack_weights=True)
    code = """
        import re, sys
        import torch, torchmdla
        program = torchmdla.load(sys.argv[1])
        program(torch.ones(64, 256))
        print("ready", flush=True)
        sys.stdin.readline()
        maps = open("/proc/self/smaps").read().split("VmFlags:")
        print(sum(int(re.search(r"Pss: +(\\d+)", one)[1]) for one in maps if "model.pt" in one), flush=True)
        sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "model.pt")]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    shares = []
    for step in range(2):
        for process in processes:
            assert process.stdin and process.stdout
            line = process.stdout.readline()
            shares += [int(line)] if step else []
        for process in processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
    for process in processes:
        process.communicate()
    (target,) = getattr(info(tmp_path / "model.pt"), "targets", ())
    assert sum(shares) * 1024 < 1.25 * target.weights
