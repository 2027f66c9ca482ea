"""Images: linked code computes the right values, and data that is not a valid image is refused for every defect."""

from __future__ import annotations

import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from child_process import run_python
from in_threads import in_threads
from linked_code import FIRST, SECOND, call, image_of, object_of
from written_programs import TracedProgram, normal

import torchmdla
from torchmdla import _C
from torchmdla.devices.cpu import lowering
from torchmdla.devices.cpu.codegen import loader
from torchmdla.devices.cpu.codegen.image import AARCH64, PAGES, X86_64, Image
from torchmdla.devices.cpu.codegen.linking import link
from torchmdla.devices.cpu.codegen.object_file import is_elf, split_objects
from torchmdla.devices.cpu.codegen.relocations import NotLinkable

MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}
pytestmark = pytest.mark.skipif(platform.machine() not in MACHINES, reason="images are of x86-64 and AArch64")

PAGE = PAGES.get(MACHINES.get(platform.machine(), 0), 4096)
IMAGE = image_of(FIRST, SECOND).to_bytes() if platform.machine() in MACHINES else b""
PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


PROGRAMS = {
    "layers": TracedProgram(lambda x, w: torch.softmax(torch.mm(x, w), 1), normal(33, 48), weights=[normal(48, 48)]),
    # A region, which upstream's passes lower.
    "sorting": TracedProgram(lambda x: x.cumsum(1), normal(7, 9)),
}


# --- linking ---


@pytest.mark.parametrize("relocations", ["static", "pic"])
@pytest.mark.parametrize("model", ["small", "medium", "large"])
def test_code_of_every_model_computes(model: str, relocations: str) -> None:
    if model == "medium" and platform.machine() == "aarch64":
        pytest.skip("the architecture has no such model")
    image = _C.Image(image_of(FIRST, SECOND, model=model, relocations=relocations).to_bytes())
    assert [call(image, "entry", x) for x in (-3, 4)] == [3 + 5 + 11 + 100 + 1, 4 + 5 + 11 + 100 + 2]
    assert call(image, "by_pointer", -8) == 108
    assert image.symbol("labs") == 0
    # Each of the two files has a function of this name that is not visible in the other.
    assert image.names() == ["by_pointer", "eleven", "eleven.1", "entry", "other", "too_much"]


def test_exceptions_pass_through_code() -> None:
    image = _C.Image(IMAGE)
    executable = _C.Executable(
        entry=image.symbol("too_much"), packs=[], workspace_bytes=0, owner=image, inputs=[], outputs=[]
    )
    with pytest.raises(torch.OutOfMemoryError, match="cannot allocate"):
        executable([])


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_images(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Image] = []
    monkeypatch.setattr(lowering, "link", lambda objects: seen.append(link(objects)) or seen[-1])
    artifact = lowering.lower(PROGRAMS[program].program())
    assert artifact.is_image
    assert sorted({name for name, _ in seen[0].imports}) == list(artifact.manifest.device_calls)
    names = _C.Image(artifact.object_code).names()
    assert {artifact.manifest.entry, *(pack.symbol for pack in artifact.manifest.packs)} <= set(names)


def test_missing_symbols_are_named() -> None:
    image = image_of("declare i64 @nowhere(i64)\ndefine i64 @f(i64 %x) { %n = call i64 @nowhere(i64 %x)\n ret i64 %n }")
    with pytest.raises(_C.ImageError, match="calls nowhere, which this process does not have"):
        _C.Image(image.to_bytes())
    with_symbol = _C.Image(image.to_bytes(), {"nowhere": _C.address_of_symbol("labs")})
    assert call(with_symbol, "f", -5) == 5


def test_code_of_other_machines_is_left_alone() -> None:
    text = "define i64 @f(i64 %x) { ret i64 %x }"
    with pytest.raises(NotLinkable, match="machine 243"):
        link([object_of(text, "small", triple="riscv64-linux-gnu")])
    with pytest.raises(NotLinkable, match="machine 183"):
        link([object_of(text, "small", triple=triple) for triple in ("aarch64-linux-gnu", "x86_64-linux-gnu")])
    with pytest.raises(NotLinkable, match="another format"):
        link([b"no object code"])


# Programs that an image does not support, by a part of the error message.
REFUSED = {
    "defined twice": ("define i64 @f(i64 %x) { ret i64 %x }",) * 2,
    "section .tdata": ("@t = thread_local global i64 1\ndefine i64 @f() { %n = load i64, ptr @t\n ret i64 %n }",),
    "section .ctors": (
        "@llvm.global_ctors = appending global [1 x {i32, ptr, ptr}] [{i32, ptr, ptr} {i32 1, ptr @f, ptr null}]\n"
        "define void @f() { ret void }",
    ),
    "beside labs": ("@labs = external global i8\n@p = global ptr getelementptr (i8, ptr @labs, i64 8)",),
    "symbol f ": ("@f = ifunc i64 (), ptr @g\ndefine ptr @g() { ret ptr null }",),
    "name 'a b'": ('define void @"a b"() { ret void }',),
    "alignment of 8192": ("@wide = global i64 1, align 8192",),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_unlinkable_objects_are_refused(reason: str) -> None:
    with pytest.raises(NotLinkable, match=reason):
        image_of(*REFUSED[reason], model="small")


def test_unlinkable_objects_are_linked_by_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(objects: object) -> Image:
        raise NotLinkable("for a test")

    monkeypatch.setattr(lowering, "link", refuse)
    artifact = lowering.lower(PROGRAMS["layers"].program())
    assert all(map(is_elf, split_objects(artifact.object_code)))
    loaded = loader._load(artifact)
    assert loaded.entry and loaded.packs


# --- loading ---


def test_an_image_alone_needs_no_llvm(tmp_path: Path) -> None:
    file = tmp_path / "artifact"
    file.write_bytes(lowering.lower(PROGRAMS["layers"].program()).to_bytes())
    done = run_python(
        """
        import sys
        from pathlib import Path
        from torchmdla.compiler.artifact import Artifact
        from torchmdla.devices.cpu.codegen.loader import load
        assert load(Artifact.from_bytes(Path(sys.argv[1]).read_bytes())).entry
        assert not {"llvmlite", "torch_mlir"} & sys.modules.keys()
        """,
        str(file),
        TORCHMDLA_ENABLE="0",
    )
    assert done.returncode == 0, done.stderr


def test_an_image_that_cannot_be_loaded_is_a_compile_error() -> None:
    artifact = lowering.lower(PROGRAMS["layers"].program())
    with pytest.raises(torchmdla.CompileError, match=r"cannot be loaded[^$]*cut short"):
        loader._load(replace(artifact, object_code=artifact.object_code[:-1]))
    other = replace(artifact, manifest=replace(artifact.manifest, entry="elsewhere"))
    with pytest.raises(torchmdla.CompileError, match="no function elsewhere"):
        loader._load(other)


# Damages an image file in many variants. Each variant is refused by an ImageError or loaded. The program prints the
# reasons.
DAMAGED = """
import random, struct, sys
from pathlib import Path
from torchmdla import _C

image = Path(sys.argv[1]).read_bytes()
random.seed(int(sys.argv[3]))
segments = [struct.unpack_from("<IIII", image, 16 + 16 * k) for k in range(3)]
tables = struct.unpack_from("<I", image, 64)[0]
unwinding, unwinding_bytes = struct.unpack_from("<II", image, 96)
constants = segments[1]
begin = constants[0] + unwinding - constants[2]
places = [*range(104), *range(tables, len(image)), *range(begin, begin + unwinding_bytes)]

def flipped():
    for _ in range(600):
        changed = bytearray(image)
        for place in random.sample(places, random.choice((1, 1, 2))):
            changed[place] ^= 1 << random.randrange(8)
        yield changed
    for place in places[16:104]:
        for value in (0, 0x7F, 0x80, 0xFF):
            changed = bytearray(image)
            changed[place] = value
            yield changed

def cut():
    ends = {*range(0, len(image), 31), *range(200), *range(len(image) - 200, len(image))}
    for end in sorted(ends):
        yield image[:end]
    yield image + b"x"

for data in {"flipped": flipped, "cut": cut}[sys.argv[2]]():
    try:
        _C.Image(bytes(data))
        print("loaded")
    except _C.ImageError as error:
        print(error)
"""


@pytest.mark.parametrize("how", ["flipped", "cut"])
@pytest.mark.sampled(1)
def test_a_damaged_image_is_refused(how: str, tmp_path: Path) -> None:
    file = tmp_path / "image"
    file.write_bytes(IMAGE)
    done = run_python(DAMAGED, str(file), how, "1")
    assert done.returncode == 0, done.stderr
    reasons = done.stdout.splitlines()
    assert len(reasons) > 400
    if how == "cut":
        assert "loaded" not in reasons
        return
    for reason in (
        "version [0-9]+ of the format",
        "for another machine",
        "it is not an image",
        "has the wrong place",
        "is cut short",
        "not a multiple of the page size",
        "segments overlap",
        "a word is not aligned",
        "a word is in none of constants and data",
        "a symbol is outside of the code",
        "symbols are not sorted",
        "its unwind table is not in the constants",
        "of its unwind table",
        "which this process does not have",
    ):
        assert any(re.search(reason, text) for text in reasons), reason


def mappings() -> list[tuple[int, int, str]]:
    """Return begin, end and permissions of the mapped memory ranges."""
    lines = (line.split()[:2] for line in Path("/proc/self/maps").read_text().splitlines())
    return [(*(int(end, 16) for end in span.split("-")), modes) for span, modes in lines]  # type: ignore[misc]


def modes_of(address: int) -> str | None:
    return next((modes for begin, end, modes in mappings() if begin <= address < end), None)


def test_nothing_is_writable_and_executable() -> None:
    linked_image = image_of(FIRST, SECOND)
    before = [span for *span, modes in mappings() if "w" in modes and "x" in modes]  # of other components
    image = _C.Image(linked_image.to_bytes())
    function = next(candidate for candidate in linked_image.functions if candidate.name == "entry")
    start = image.symbol("entry") - function.address
    expected = {linked_image.code: "r-xp", linked_image.constants: "r--p", linked_image.data: "rw-p"}
    for segment, modes in expected.items():
        assert segment.address % PAGE == 0
        assert {modes_of(start + segment.address), modes_of(start + segment.address + segment.size - 1)} == {modes}
    assert [span for *span, modes in mappings() if "w" in modes and "x" in modes] == before


def executable_bytes() -> int:
    return sum(end - begin for begin, end, modes in mappings() if "x" in modes)


def test_memory_goes_with_the_image() -> None:
    before = executable_bytes()
    images = [_C.Image(IMAGE) for _ in range(50)]
    assert executable_bytes() >= before + 50 * mmap.PAGESIZE
    place = images[0].symbol("entry")
    del images
    assert executable_bytes() == before
    assert modes_of(place) != "r-xp"


def test_threads_load_at_one_time() -> None:
    sums: list[int] = []

    def load(_: int) -> None:
        sums.extend(call(_C.Image(IMAGE), "entry", 1) for _ in range(50))

    assert not in_threads(8, load)
    assert sums == [1 + 5 + 11 + 100 + 1] * 400


# --- names ---

# Calls a function of an image, at which gdb stops. One image is deleted by then, and two images are loaded.
CALLS = """
import sys
from in_threads import in_threads
from linked_code import FIRST, SECOND, call, image_of
from torchmdla import _C

data = image_of(FIRST, SECOND).to_bytes()
first, gone, second = [_C.Image(data) for _ in range(3)]
del gone
call(first, "by_pointer", -8)
"""


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
@pytest.mark.sampled(0)
def test_gdb_knows_functions() -> None:
    commands = ["set breakpoint pending on", "break by_pointer", "run", "info symbol $pc", "info address too_much"]
    options = [argument for command in commands for argument in ("-ex", command)]
    done = subprocess.run(
        ["gdb", "-q", "-nx", "-batch", *options, "--args", sys.executable, "-c", CALLS],
        env={**os.environ, **PATHS},
        capture_output=True,
        text=True,
    )
    if "ptrace" in done.stderr:
        pytest.skip("processes cannot be traced here")
    assert re.search(r"Breakpoint 1(\.\d)?, 0x\w+ in by_pointer \(\)", done.stdout), done.stdout + done.stderr
    assert re.search(r"^by_pointer (\+ \d+ )?in section .text", done.stdout, re.M), done.stdout
    assert re.search(r"^Symbol \"too_much\" is at", done.stdout, re.M), done.stdout


# Prints the process numbers of this process and of a child, and the address of a function in each.
LOADS = """
import os
from in_threads import in_threads
from linked_code import FIRST, SECOND, image_of
from torchmdla import _C

data = image_of(FIRST, SECOND).to_bytes()
image = _C.Image(data)
print(os.getpid(), hex(image.symbol("entry")), flush=True)
if os.fork() == 0:
    own = _C.Image(data)
    print(os.getpid(), hex(image.symbol("entry")), hex(own.symbol("entry")), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("is_asked_for", [True, False])
@pytest.mark.sampled(1)
def test_perf_map_lists_functions(is_asked_for: bool) -> None:
    done = run_python(LOADS, TORCHMDLA_PERF_MAP=str(int(is_asked_for)), **PATHS)
    assert done.returncode == 0, done.stderr
    for process, *addresses in map(str.split, done.stdout.splitlines()):
        file = Path(f"/tmp/perf-{process}.map")
        assert file.exists() == is_asked_for
        if is_asked_for:
            assert file.stat().st_mode & 0o777 == 0o600
            lines = file.read_text().splitlines()
            assert [f"0x{line.split()[0]}" for line in lines if line.endswith(" entry")] == addresses
            file.unlink()
