"""Foreign devices: how compiler processes import them, and when their artifacts are used again."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from child_process import output_of

DEVICE = textwrap.dedent("""
    import dataclasses, os
    from torchmdla.devices.cpu import CpuDevice

    class Device(CpuDevice):
        name = "foreign"

        def target(self):
            return dataclasses.replace(super().target(), device=self.name)

        def lower(self, program):
            print("lowered in", os.getpid(), file=open(os.environ["LOG"], "a"))
            # Another program than the one asked for, so that values tell which code ran.
            other = dataclasses.replace(program, mlir=program.mlir.replace("torch.aten.sin", "torch.aten.FUNCTION"))
            made = super().lower(other)
            return dataclasses.replace(made, manifest=dataclasses.replace(made.manifest, program=program.key))
""")

RUN = textwrap.dedent("""
    import os, torch, torchmdla, warnings
    torchmdla.devices.register(Device())
    torchmdla.enable(device="foreign")
    x = torch.rand(4, 4)
    with torch.no_grad(), warnings.catch_warnings(record=True) as seen:
        compiled = torchmdla.compile(lambda x: (x.sin() * 2).softmax(1), x)
    for warning in seen:
        print(warning.message)
    ran = [op for op in ("sin", "cos", "exp") if torch.allclose(compiled(x), (getattr(x, op)() * 2).softmax(1))]
    stats = torchmdla.stats()
    lowered_here = open(os.environ["LOG"]).read().endswith(f" {os.getpid()}\\n")
    print(*ran, stats.specialisations, stats.cache_hits, stats.fallbacks, lowered_here)
""")


def run_with_device(folder: Path, definition: str) -> str:
    """Return the output of a process that defines the device with ``definition``.

    The output has warnings, the op that ran in place of ``sin``, and the numbers of specialisations and cache hits. It
    also has the fallbacks, and whether the last compile was in the process itself.
    """
    (folder / "log").touch()
    places = {"PYTHONPATH": folder, "TORCHMDLA_CACHE_DIR": folder / "cache", "LOG": folder / "log"}
    return output_of(definition + RUN, **{name: str(place) for name, place in places.items()}).strip()


@pytest.mark.parametrize("module", ["foreign_device", "foreign_package.parts.device"])
@pytest.mark.sampled(0)
def test_an_edited_device_compiles_anew(tmp_path: Path, module: str) -> None:
    path = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for function, hits in (("cos", 0), ("cos", 1), ("exp", 0)):
        path.write_text(DEVICE.replace("FUNCTION", function))
        assert run_with_device(tmp_path, f"from {module} import Device\n") == f"{function} 1 {hits} {{}} False"


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param(DEVICE, id="script"),
        pytest.param(
            f"def make():\n{textwrap.indent(DEVICE, '    ')}\n    return Device\nDevice = make()\n", id="function"
        ),
    ],
)
@pytest.mark.sampled(0)
def test_unimportable_devices_compile_in_the_calling_process(tmp_path: Path, definition: str) -> None:
    for function in ("cos", "exp"):
        assert run_with_device(tmp_path, definition.replace("FUNCTION", function)) == f"{function} 1 0 {{}} True"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param("import torch\n", "ModuleNotFoundError", id="torch"),
        pytest.param("Device.__init__ = lambda self, number: None\n", "TypeError", id="argument"),
    ],
)
@pytest.mark.sampled(0)
def test_a_device_that_another_process_cannot_instantiate_is_reported(tmp_path: Path, change: str, why: str) -> None:
    (tmp_path / "foreign_device.py").write_text(DEVICE + change)
    definition = "from foreign_device import Device as Made\nDevice = lambda: Made.__new__(Made)\n"
    output = run_with_device(tmp_path, definition)
    assert f"cannot make device 'foreign' from foreign_device.Device: {why}" in output
    assert "TORCHMDLA_COMPILE_IN_PROCESS=1" in output


@pytest.mark.sampled(0)
def test_a_device_is_found_in_a_folder_that_the_program_adds_after_its_first_compile(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    folder.mkdir()
    (folder / "foreign_device.py").write_text(DEVICE.replace("FUNCTION", "cos"))
    begin = f"""
        import sys, torch, torchmdla
        torchmdla.compile(lambda x: (x.tan() * 2).softmax(1), torch.rand(4, 4))(torch.rand(4, 4))
        torchmdla.reset_stats()
        sys.path.append({str(folder)!r})
        from foreign_device import Device
    """
    assert run_with_device(tmp_path, textwrap.dedent(begin)) == "cos 1 0 {} False"
