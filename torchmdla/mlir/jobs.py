"""Jobs of the child process on the text of a module. Nothing here imports torch, except the aten dialect."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from torchmdla.compiler import constants
from torchmdla.compiler.mlir import convert_errors, located_text, run
from torchmdla.compiler.program import Program, Target
from torchmdla.devices.levels.legalise import PIPELINES
from torchmdla.errors import CompileError
from torchmdla.mlir.context import first_error, new_context

# If the importer typed every value, inference of shapes and dtypes is not needed.
_TYPED = "torch-function-to-torch-backend-pipeline{shape-dtype-refine=0}"
_INFER_TYPES = "torch-function-to-torch-backend-pipeline"


def lower(text: str, output: str, is_typed: bool) -> str:
    """Lower a module in the Torch dialect with upstream's passes.

    Raises:
        CompileError: the passes do not support an op; the message names it and its location.
    """
    with new_context(), ir.Location.unknown():
        with convert_errors("the program is not valid"):
            module = ir.Module.parse(text)
        hidden = constants.hide(module) if output == "linalg" and is_typed else []
        with convert_errors(f"no lowering to {output} for this op and these types"):
            run(module, _TYPED if is_typed else _INFER_TYPES)
            run(module, PIPELINES[output])
        constants.restore(module, hidden)
        return located_text(module)


def generate(program: str) -> str:
    """Return the code that the cpu device generates for a program (JSON), in the LLVM dialect.

    Raises:
        CompileError: the device does not support the program.
    """
    from torchmdla.devices.cpu.lowering import generated_module

    with new_context(), ir.Location.unknown():
        return located_text(generated_module(Program.from_json(program)))


def loops(program: str) -> str:
    """Return a program (JSON) as the cpu device's loop program, before any of the device's passes.

    Raises:
        CompileError: the device does not support the program.
    """
    from torchmdla.devices.cpu.lowering import loop_program_text

    return loop_program_text(Program.from_json(program))


def optimise_loops(
    text: str, passes: Sequence[str], print_after: Sequence[str], stop_after: str, target: Sequence[str]
) -> str:
    """Run passes of the cpu device on a loop program and return the result.

    Args:
        text: text of the loop program.
        passes: names of the passes; an empty list selects all.
        print_after: passes after which the program is printed on standard error; ``*`` means after each pass.
        stop_after: the last pass to run, unless it is empty.
        target: the fields of the :class:`~torchmdla.compiler.program.Target`.

    Raises:
        CompileError: the text is not a loop program, a pass does not exist, or a pass fails.
    """
    from torchmdla.devices.cpu.ir.printer import program_text
    from torchmdla.devices.cpu.lowering import run_passes
    from torchmdla.devices.cpu.passes.pipeline import find_passes

    find_passes([*(name for name in print_after if name != "*"), *filter(None, [stop_after])])
    for name, steps in run_passes(text, passes, Target(*target)):
        if name in print_after or "*" in print_after:
            print(f"// -----// after {name} //----- //\n{program_text(steps)}", file=sys.stderr)
        if name == stop_after:
            break
    return program_text(steps)


def optimise(text: str, file: str, pipeline: str, flags: Sequence[str], print_after_all: bool, locations: bool) -> str:
    """Run a pass pipeline on a module and return the result.

    Args:
        text: text of the module.
        file: origin of the text, for messages.
        pipeline: pipeline as ``builtin.module(…)``, or only the part in the parentheses; may be empty.
        flags: further passes, ``NAME`` or ``NAME=OPTIONS``; passes for functions run on each function.
        print_after_all: whether MLIR prints the module after every pass, on standard error.
        locations: whether the result has locations.

    Raises:
        CompileError: the module or the pipeline is not valid, or a pass fails.
    """
    passes = pipeline.strip()
    if passes.startswith("builtin.module("):
        passes = passes.removeprefix("builtin.module(").removesuffix(")")
    context = new_context()
    uses_aten = any(map(_ATEN.search, (passes, text, *flags)))
    if uses_aten:
        from torchmdla import aten

        aten.register(context)
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise CompileError(f"{file} holds no valid module{first_error(error)}") from None

        def parsed(passes: str) -> Any:
            whole = f"builtin.module({passes})"
            return aten.pipeline(whole, context) if uses_aten else PassManager.parse(whole)

        with _as_compile_error("not a pass pipeline"):
            parsed(passes)
        chosen = [passes, *(_pass_of(flag, parsed) for flag in flags)]
        with _as_compile_error("not a pass pipeline"):
            manager = parsed(",".join(filter(None, chosen)))
        if print_after_all:
            manager.enable_ir_printing()
        with _as_compile_error("a pass failed"):
            manager.run(module.operation)
        return str(module.operation.get_asm(enable_debug_info=locations))


def _pass_of(flag: str, parsed: Callable[[str], object]) -> str:
    """Return the pipeline element of a flag: a pass on the module, or on its functions.

    Raises:
        CompileError: the pass does not exist.
    """
    name, _, options = flag.partition("=")
    written = f"{name}{{{options}}}" if options else name
    for passes in (written, f"func.func({written})"):
        try:
            parsed(passes)
        except (ir.MLIRError, ValueError):
            continue
        return passes
    raise CompileError(f"--{flag}: unknown option, and unknown pass")


# A pass or an op of the aten dialect; ops of the Torch dialect are called torch.aten.….
_ATEN = re.compile(r"(?<![\w.])aten[-.]\w")


@contextmanager
def _as_compile_error(reason: str) -> Iterator[None]:
    try:
        yield
    except (ir.MLIRError, ValueError) as error:  # Pipelines and the aten dialect raise ValueError.
        raise CompileError(reason, diagnostic=str(error)) from None


JOBS: Mapping[str, Callable[..., str]] = {
    "lower": lower,
    "generate": generate,
    "loops": loops,
    "opt": optimise,
    "opt-loops": optimise_loops,
}
