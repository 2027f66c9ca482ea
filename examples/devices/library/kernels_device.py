"""Device whose code a shared library loads: groups become C, and a library of thirty lines loads the result.

Files with compiled code therefore run in C++ programs, and without PyTorch. The device also compiles for other
processors, reports its kernels, and measures the order of a product's loops (``tuner.py``).
"""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torchmdla.compiler.artifact import Artifact, KernelCall, Manifest, Pack
from torchmdla.compiler.mlir import forward_of, new_context, nodes_of
from torchmdla.compiler.program import Program, Target
from torchmdla.compiler.records import OPTION, Record, TunedKernel
from torchmdla.devices import CrossCompilation, Device, LibraryLoading, LoadedCode, OpSupport, Tuning
from torchmdla.devices.capabilities import Progress
from torchmdla.errors import CompileError

ELEMENTWISE = {
    "torch.aten.relu": "x > 0 ? x : 0",
    "torch.aten.add.Tensor": "x + {alpha} * y",
    "torch.aten.mul.Tensor": "x * y",
}
HEAD = """#include <stdint.h>
#include <time.h>
void (*mdla_begin_kernel)(int64_t kernel);
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


# Loops of a product of matrices, from which the tuner chooses. Sums have the same order in all of them.
PRODUCTS = {
    "columns": """
  for (int i = 0; i < {rows}; ++i)
    for (int j = 0; j < {columns}; ++j) {{
      float sum = 0;
      for (int k = 0; k < {depth}; ++k) sum += x[i * {depth} + k] * y[k * {columns} + j];
      z[i * {columns} + j] = sum;
    }}""",
    "rows": """
  for (int i = 0; i < {rows}; ++i) {{
    for (int j = 0; j < {columns}; ++j) z[i * {columns} + j] = 0;
    for (int k = 0; k < {depth}; ++k)
      for (int j = 0; j < {columns}; ++j) z[i * {columns} + j] += x[i * {depth} + k] * y[k * {columns} + j];
  }}""",
}


def product_source(kernel: str, order: str) -> str:
    """Return the C function of a product such as ``"mm_2x8x16"``: rows, depth and columns."""
    rows, depth, columns = map(int, kernel.removeprefix("mm_").split("x"))
    loops = PRODUCTS[order].format(rows=rows, depth=depth, columns=columns)
    return f"static void {kernel}(const float *restrict x, const float *restrict y, float *restrict z) {{{loops}\n}}"


class KernelsDevice(Device, CrossCompilation, LibraryLoading, Tuning):
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

    @property
    def machine(self) -> str:
        return f"{platform.node()} {self.target().cpu}"

    def tune(
        self,
        program: Program,
        places: Sequence[float],
        seconds: float,
        known: Mapping[str, Record],
        skip: Sequence[str] = (),
        progress: Progress = lambda kernel, tried, gain: None,
    ) -> Iterator[TunedKernel]:
        from tuner import tune_products

        kernels = self.lower(program).manifest.kernels
        return tune_products(kernels, flags_of(program), places, seconds, known, skip, progress)

    def lower(self, program: Program) -> Artifact:
        from torch_mlir import ir

        if program.symbols:
            raise CompileError("sizes that vary are not supported")
        with new_context():
            code = _Code(program, forward_of(ir.Module.parse(program.mlir)).regions[0].blocks[0])
        manifest = Manifest(
            program.key,
            "entry",
            program.arguments,
            program.results,
            workspace_bytes=code.workspace,
            packs=tuple(code.packs),
            parameters=tuple(
                number
                for number, argument in enumerate(program.arguments)
                if argument.role == "parameter" and f"buffers[{3 + number}]" in code.entry
            ),
            kernels=tuple(code.kernels),
        )
        return Artifact(compile_source("\n".join([HEAD, *code.functions, code.entry]), *flags_of(program)), manifest)


class _Code:
    """C of a program.

    Attributes:
        functions: the packs and the products.
        entry: the entry.
        packs: the packs, which transpose parameters.
        kernels: the kernels that the entry runs.
        workspace: the bytes of workspace that the entry needs.
    """

    def __init__(self, program: Program, block: Any) -> None:
        self.functions: dict[str, None] = {}
        self.packs: list[Pack] = []
        self.kernels: list[KernelCall] = []
        self.workspace = 0
        self._program, self._arguments = program, list(block.arguments)
        self._orders = json.loads(dict(program.options).get(OPTION, "{}"))
        self._places = {value: f"((float *)buffers[{3 + number}])" for number, value in enumerate(self._arguments)}
        self._constants: dict[Any, Any] = {}
        *operations, end = block.operations
        for number, value in enumerate(end.operands):
            self._places[value] = f"((float *)buffers[{3 + len(self._arguments) + number}])"
        statements = [self._statement(operation) for operation in operations]
        self.entry = ENTRY.format(body="\n".join(filter(None, statements)))

    def _statement(self, operation: Any) -> str:
        """Return the statement of an operation; empty if the entry does not compute it.

        Raises:
            CompileError: the device does not have a kernel; the group is then compiled around the operation.
        """
        if operation.name.startswith("torch.constant."):
            self._constants[operation.results[0]] = operation.attributes["value"].value
            return ""
        if operation.name in ("torch.aten.t", "torch.aten.transpose.int") and self._pack(operation):
            return ""
        result = operation.results[0]
        if result not in self._places:
            self._places[result] = f"((float *)(workspace + {self.workspace}))"
            self.workspace += -(-4 * _count(result) // 64) * 64
        return self._product(operation) if operation.name == "torch.aten.mm" else self._elementwise(operation)

    def _pack(self, operation: Any) -> bool:
        """Add the pack of a transposed parameter, and return whether the operand is one."""
        operand = operation.operands[0]
        if operand not in self._arguments:
            return False
        number = self._arguments.index(operand)
        if self._program.arguments[number].role != "parameter":
            return False
        (rows, columns), name = _shape(operand), f"pack_{len(self.packs)}"
        self.functions[PACK.format(name=name, rows=rows, columns=columns)] = None
        self._places[operation.results[0]] = f"(((float *const *)buffers[1])[{len(self.packs)}])"
        self.packs.append(Pack(name, f"transpose {rows}x{columns}", (number,), 4 * rows * columns))
        return True

    def _product(self, operation: Any) -> str:
        (rows, depth), (_, columns) = map(_shape, operation.operands)
        kernel = f"mm_{rows}x{depth}x{columns}"
        order = self._orders.get(kernel, {}).get("order")
        self.functions[product_source(kernel, order if order in PRODUCTS else next(iter(PRODUCTS)))] = None
        begin = self._begin(operation, kernel, f"{rows}x{columns} reduce {depth}", 2 * rows * depth * columns)
        operands = ", ".join(self._places[value] for value in (*operation.operands, operation.results[0]))
        return f"{begin}  {kernel}({operands});"

    def _elementwise(self, operation: Any) -> str:
        result, operands = operation.results[0], list(operation.operands)
        tensors = [operand for operand in operands if operand in self._places]
        inner = [_shape(result)[-len(_shape(tensor)) :] == _shape(tensor) for tensor in tensors]
        if operation.name not in ELEMENTWISE or not all(inner):
            raise CompileError(f"no kernel computes {operation.name}", diagnostic=str(operation.location))
        alpha = next((self._constants[operand] for operand in operands if operand in self._constants), 1)
        reads = " ".join(
            f"const float {name} = {self._places[tensor]}[i % {_count(tensor)}];"
            for name, tensor in zip("xy", tensors, strict=False)
        )
        count, expression = _count(result), ELEMENTWISE[operation.name].format(alpha=float(alpha))
        begin = self._begin(operation, operation.name.removeprefix("torch.aten."), str(count), count)
        return f"{begin}  for (int i = 0; i < {count}; ++i) {{ {reads} {self._places[result]}[i] = {expression}; }}"

    def _begin(self, operation: Any, kernel: str, loops: str, flops: int) -> str:
        """Add a kernel to the manifest, and return the statement that reports its begin."""
        touched = [value for value in (*operation.operands, operation.results[0]) if value in self._places]
        size, nodes = 4 * sum(map(_count, touched)), tuple(sorted(nodes_of(operation)))
        self.kernels.append(KernelCall(kernel, loops, flops, size, nodes))
        return f"  mdla_begin_kernel({len(self.kernels) - 1});\n"


def _shape(value: Any) -> list[int]:
    """Return the sizes of a type such as ``!torch.vtensor<[2,8],f32>``."""
    sizes = re.search(r"\[([0-9,]*)\]", str(value.type))
    if sizes is None:
        raise CompileError(f"the kernels compute tensors, not {value.type}")
    return [int(size) for size in sizes[1].split(",") if size]


def _count(value: Any) -> int:
    return math.prod(_shape(value))


def flags_of(program: Program) -> list[str]:
    return ["-mavx2"] if program.target.cpu == "avx2" else []


def compile_source(source: str, *flags: str) -> bytes:
    """Return the shared object of a C source."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernels.so"
        command = ["cc", "-O3", "-shared", "-fPIC", "-x", "c", "-", *flags, "-o", str(output)]
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
