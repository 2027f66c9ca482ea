"""Code of kernels by llvmlite: PTX for a card, or a shared library that emulates one (``emulator.c``)."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from llvmlite import binding

from cuda_device.functions import library
from torchmdla.compiler.llvm_text import older_text
from torchmdla.errors import CompileError

# Tensor cores for bfloat16, and memory in the order of streams, begin with this architecture. A driver compiles the
# code for the card.
ARCHITECTURE = "sm_80"

_KERNEL = re.compile(r"^define ptx_kernel void @(?P<name>\w+)\((?P<parameters>.*)\)", re.MULTILINE)
# A bool is one byte, which is true unless it is 0.
_LOADED_BOOL = re.compile(r"%(\d+) = load i1, (ptr .*)")
_WMMA = re.compile(r"^declare (?P<result>.*) @emulated\.(?P<name>wmma\.\S*)\((?P<parameters>.*)\)$", re.MULTILINE)
_DECLARED = re.compile(r"^declare (.*)@llvm\.nvvm\.(.*\)).*$", re.MULTILINE)


def to_ptx(text: str) -> bytes:
    """Return the PTX of kernels, from LLVM IR.

    Raises:
        CompileError: LLVM does not have code for an operation.
    """
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("nvptx64-nvidia-cuda")
    machine = target.create_target_machine(cpu=ARCHITECTURE, opt=3)
    return str(machine.emit_assembly(_optimised(_completed(text), machine))).encode()


def to_library(text: str) -> bytes:
    """Return a shared library for this processor with kernels, from LLVM IR.

    The library calls the emulator for all that a thread of a card reads of other threads. ``NAME.launch`` gets the
    addresses of the parameters of a kernel, as ``cuLaunchKernel`` does.

    Raises:
        CompileError: LLVM does not have code for an operation, or the linker is not installed.
    """
    wrappers = [_wrapper(match["name"], match["parameters"]) for match in _KERNEL.finditer(text)]
    text = _DECLARED.sub(r"declare \1@llvm.nvvm.\2", _completed(text)) + "".join(wrappers)
    text = text.replace("@llvm.nvvm.", "@emulated.").replace("ptx_kernel ", "")
    text += "\ndeclare void @emulated.wmma(ptr, ptr, ptr)\n"
    text = _WMMA.sub(_emulated_wmma, re.sub(r"range\(i32 \d+, \d+\) ", "", text))
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=2, reloc="pic"
    )
    linker = shutil.which("cc")
    if linker is None:
        raise CompileError("the emulated cuda device needs a C compiler: install gcc")
    with tempfile.TemporaryDirectory() as folder:
        kernels, linked = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        kernels.write_bytes(machine.emit_object(_optimised(text, machine)))
        done = subprocess.run([linker, "-shared", "-o", linked, kernels, "-lm"], capture_output=True, text=True)
        if done.returncode != 0:
            raise CompileError("the kernels are not linked", diagnostic=done.stderr)
        library_ = linked.read_bytes()
        return len(library_).to_bytes(8, "little") + library_


def _completed(text: str) -> str:
    """Return kernels that read bools as bytes, and whose buffers do not overlap."""
    text = _LOADED_BOOL.sub(r"%byte\1 = load i8, \2\n  %\1 = icmp ne i8 %byte\1, 0", text)
    return _KERNEL.sub(lambda match: match[0].replace("ptr ", "ptr noalias "), text)


def _optimised(text: str, machine: Any) -> Any:
    """Return a module of LLVM with kernels and the functions that they call, optimised."""
    try:
        module = binding.parse_assembly(older_text(text))
        functions = older_text(library()).replace("define ", "define linkonce_odr ")
        module.link_in(binding.parse_assembly(functions))
    except RuntimeError as error:
        raise CompileError("LLVM does not read the kernels", diagnostic=str(error)) from None
    missing = [function.name for function in module.functions if function.is_declaration and "__nv" in function.name]
    if missing:
        raise CompileError(f"the cuda device has no code for {', '.join(missing)}")
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return module


def _wrapper(name: str, parameters: str) -> str:
    """Return the functions by which the emulator launches a kernel, and counts its parameters."""
    types = re.findall(r"(\w+) %\d+", parameters)
    loads = "".join(
        f"  %a{k} = getelementptr ptr, ptr %p, i64 {k}\n"
        f"  %b{k} = load ptr, ptr %a{k}\n"
        f"  %v{k} = load {kind}, ptr %b{k}\n"
        for k, kind in enumerate(types)
    )
    values = ", ".join(f"{kind} %v{k}" for k, kind in enumerate(types))
    count = f"\n@{name}.parameters = constant i32 {len(types)}\n"
    return f"{count}define void @{name}.launch(ptr %p) {{\n{loads}  call void @{name}({values})\n  ret void\n}}\n"


def _emulated_wmma(match: re.Match[str]) -> str:
    """Return the definition of an instruction of tensor cores: the emulator gets its name and the places of values."""
    name, result = match["name"], match["result"]
    types = [re.match(r"<.*?>|\w+", parameter)[0] for parameter in match["parameters"].split(", ")]  # type: ignore[index]
    parameters = ", ".join(f"{kind} %{k}" for k, kind in enumerate(types))
    places = "".join(
        f"  %p{k} = alloca {kind}\n  store {kind} %{k}, ptr %p{k}\n"
        f"  %q{k} = getelementptr ptr, ptr %places, i64 {k}\n  store ptr %p{k}, ptr %q{k}\n"
        for k, kind in enumerate(types)
    )
    memory, end = (
        ("[1 x i8]", "ret void")
        if result == "void"
        else (result, f"%v = load {result}, ptr %result\n  ret {result} %v")
    )
    return (
        f'@"{name}" = private constant [{len(name) + 1} x i8] c"{name}\\00"\n'
        f"define {result} @emulated.{name}({parameters}) {{\n"
        f"  %result = alloca {memory}\n  %places = alloca [{len(types)} x ptr]\n{places}"
        f'  call void @emulated.wmma(ptr @"{name}", ptr %result, ptr %places)\n  {end}\n}}\n'
    )
