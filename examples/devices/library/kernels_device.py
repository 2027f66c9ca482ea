"""Device whose code a shared library loads: groups become C, and a library of thirty lines loads the result.

Files with compiled code therefore run in C++ programs, and without PyTorch. The device also compiles for other
processors.
"""

from __future__ import annotations

import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torchmdla.compiler.artifact import Artifact, Manifest, Pack
from torchmdla.compiler.mlir import forward_of, new_context
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import CrossCompilation, Device, LibraryLoading, LoadedCode, OpSupport
from torchmdla.errors import CompileError

ELEMENTWISE = {
    "torch.aten.relu": "x > 0 ? x : 0",
    "torch.aten.add.Tensor": "x + {alpha} * y",
    "torch.aten.mul.Tensor": "x * y",
}
HEAD = """#include <stdint.h>
#include <time.h>
int32_t (*mdla_are_events_recorded)(void);
void (*mdla_record_event)(const char *stream, const char *name, int64_t begin, int64_t end);
static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000l + time.tv_nsec;
}
"""
PACK = """int32_t {name}(void *const *buffers) {{
  float *to = buffers[1];
  const float *from = buffers[2];
  for (int i = 0; i < {rows}; ++i)
    for (int j = 0; j < {columns}; ++j) to[j * {rows} + i] = from[i * {columns} + j];
  return 0;
}}
"""
ENTRY = """int32_t entry(void *const *buffers) {{
  char *const workspace = buffers[0];
  const int64_t begin = mdla_are_events_recorded() ? now() : 0;
{body}
  if (begin) mdla_record_event("kernels 0", "entry", begin, now());
  return 0;
}}
"""


class KernelsDevice(Device, CrossCompilation, LibraryLoading):
    name = "kernels"
    dtypes = frozenset({"float32"})
    ops: Mapping[str, OpSupport] = {
        "aten::linear": OpSupport("compute"),
        "aten::relu": OpSupport("cheap"),
        "aten::add.Tensor": OpSupport("cheap"),
        "aten::mul.Tensor": OpSupport("cheap"),
    }

    def target(self) -> Target:
        has_avx2 = platform.machine() == "x86_64" and "avx2" in Path("/proc/cpuinfo").read_text().split()
        return Target(self.name, cpu="avx2" if has_avx2 else "baseline")

    def target_for(self, processor: str) -> Target:
        if processor == "native":
            return self.target()
        if processor not in ("baseline", "avx2"):
            raise ValueError(f"unknown processor {processor!r} (choose from native, baseline, avx2)")
        return Target(self.name, cpu=processor)

    def features(self, target: Target) -> tuple[str, ...]:
        """Return names that the library's features have, too (``mdla_open_device``)."""
        machine = "x86-64" if platform.machine() == "x86_64" else "other"
        return (machine, "avx2") if target.cpu == "avx2" else (machine,)

    @property
    def library(self) -> str:
        return str(build_library())

    def load(self, artifact: Artifact) -> LoadedCode:
        return self.load_by_library(artifact)

    def lower(self, program: Program) -> Artifact:
        from torch_mlir import ir

        if program.symbols:
            raise CompileError("sizes that vary are not supported")
        with new_context():
            block = forward_of(ir.Module.parse(program.mlir)).regions[0].blocks[0]
            source, packs, workspace = _generate(program, block)
        flags = ["-mavx2"] if program.target.cpu == "avx2" else []
        entry = source[source.index("int32_t entry") :]
        manifest = Manifest(
            program.key,
            "entry",
            program.arguments,
            program.results,
            workspace_bytes=workspace,
            packs=packs,
            parameters=tuple(
                number
                for number, argument in enumerate(program.arguments)
                if argument.role == "parameter" and f"buffers[{3 + number}]" in entry
            ),
        )
        return Artifact(_compile(source, *flags), manifest)


def _generate(program: Program, block: Any) -> tuple[str, tuple[Pack, ...], int]:
    """Return the C source, the packs, and the bytes of workspace."""
    *operations, end = block.operations
    places = {value: f"((float *)buffers[{3 + number}])" for number, value in enumerate(block.arguments)}
    arguments, packs, constants = list(block.arguments), [], {}
    for number, value in enumerate(end.operands):
        places[value] = f"((float *)buffers[{3 + len(arguments) + number}])"
    source, body, workspace = [HEAD], [], 0
    for operation in operations:
        if operation.name.startswith("torch.constant."):
            constants[operation.results[0]] = operation.attributes["value"].value
            continue
        result, operands = operation.results[0], list(operation.operands)
        if operation.name in ("torch.aten.t", "torch.aten.transpose.int") and operands[0] in arguments:
            number = arguments.index(operands[0])
            if program.arguments[number].role == "parameter":
                rows, columns = _shape(operands[0])
                name = f"pack_{len(packs)}"
                source.append(PACK.format(name=name, rows=rows, columns=columns))
                packs.append(Pack(name, f"transpose {rows}x{columns}", (number,), 4 * rows * columns))
                places[result] = f"(((float *const *)buffers[1])[{len(packs) - 1}])"
                continue
        if result not in places:
            places[result] = f"((float *)(workspace + {workspace}))"
            workspace += -(-4 * _count(result) // 64) * 64
        body.append(_statement(operation, places, constants))
    return "\n".join([*source, ENTRY.format(body="\n".join(body))]), tuple(packs), workspace


def _statement(operation: Any, places: Mapping[Any, str], constants: Mapping[Any, Any]) -> str:
    """Return the loops of an operation.

    Raises:
        CompileError: the device does not have them; the group is then compiled around the operation.
    """
    result, operands = operation.results[0], list(operation.operands)
    if operation.name == "torch.aten.mm":
        (rows, depth), (_, columns) = map(_shape, operands)
        left, right = (places[operand] for operand in operands)
        return (
            f"  for (int i = 0; i < {rows}; ++i)\n    for (int j = 0; j < {columns}; ++j) {{\n      float sum = 0;\n"
            f"      for (int k = 0; k < {depth}; ++k) sum += {left}[i * {depth} + k] * {right}[k * {columns} + j];\n"
            f"      {places[result]}[i * {columns} + j] = sum;\n    }}"
        )
    tensors = [operand for operand in operands if operand in places]
    inner = [_shape(result)[-len(_shape(tensor)) :] == _shape(tensor) for tensor in tensors]
    if operation.name not in ELEMENTWISE or not all(inner):
        raise CompileError(f"no kernel computes {operation.name}", diagnostic=str(operation.location))
    alpha = next((constants[operand] for operand in operands if operand in constants), 1)
    reads = (
        f"const float {name} = {places[tensor]}[i % {_count(tensor)}];"
        for name, tensor in zip("xy", tensors, strict=False)
    )
    expression = ELEMENTWISE[operation.name].format(alpha=float(alpha))
    return f"  for (int i = 0; i < {_count(result)}; ++i) {{ {' '.join(reads)} {places[result]}[i] = {expression}; }}"


def _shape(value: Any) -> list[int]:
    """Return the sizes of a type such as ``!torch.vtensor<[2,8],f32>``."""
    sizes = re.search(r"\[([0-9,]*)\]", str(value.type))
    if sizes is None:
        raise CompileError(f"the kernels compute tensors, not {value.type}")
    return [int(size) for size in sizes[1].split(",") if size]


def _count(value: Any) -> int:
    count = 1
    for size in _shape(value):
        count *= size
    return count


def _compile(source: str, *flags: str) -> bytes:
    """Return the shared object of a C source."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernels.so"
        command = ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", *flags, "-o", str(output)]
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError("the C compiler fails", diagnostic=done.stderr)
        return output.read_bytes()


@cache
def build_library() -> Path:
    """Compile the library that loads the device's code, and return its path. A vendor's wheel contains it."""
    import torchmdla

    source = Path(__file__).with_name("loader.c")
    folder = Path(tempfile.mkdtemp(prefix="kernels-"))
    library = folder / "libkernels.so"
    include = Path(torchmdla.__file__).parent / "include"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)], check=True)
    return library
