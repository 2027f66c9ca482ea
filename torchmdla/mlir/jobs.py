"""What the child process does with the text of a module. Nothing here imports torch, but the aten dialect."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from torchmdla.compiler import constants
from torchmdla.compiler.mlir import explained, run
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError
from torchmdla.mlir.context import first_of, new_context

# Where the importer has typed every value, inference of shapes and dtypes has nothing to find.
_TYPED = "torch-function-to-torch-backend-pipeline{shape-dtype-refine=0}"
_TO_BE_TYPED = "torch-function-to-torch-backend-pipeline"

_PIPELINES: Mapping[str, str] = {
    "linalg": "torch-backend-to-linalg-on-tensors-backend-pipeline",
    "tosa": "torch-backend-to-tosa-backend-pipeline",
    "stablehlo": "torch-backend-to-stablehlo-backend-pipeline",
}


def lower(text: str, output: str, is_typed: bool) -> str:
    """A module in the Torch dialect, lowered by upstream's passes.

    Raises:
        CompileError: they do not take an op; names it and its place.
    """
    with new_context(), ir.Location.unknown():
        with explained("the program is not valid"):
            module = ir.Module.parse(text)
        hidden = constants.hide(module) if output == "linalg" and is_typed else []
        with explained(f"no lowering to {output} for this op and these types"):
            run(module, _TYPED if is_typed else _TO_BE_TYPED)
            run(module, _PIPELINES[output])
        constants.restore(module, hidden)
        return _printed(module)


def generate(program: str) -> str:
    """What the cpu device makes of a program (JSON), in the LLVM dialect.

    Raises:
        CompileError: the device does not take the program.
    """
    from torchmdla.devices.cpu.lowering import generated_module

    with new_context(), ir.Location.unknown():
        return _printed(generated_module(Program.from_json(program)))


def loops(program: str) -> str:
    """A program (JSON) as the cpu device's loop program, before any of the device's passes.

    Raises:
        CompileError: the device does not take the program.
    """
    from torchmdla.devices.cpu.lowering import loop_program_text

    return loop_program_text(Program.from_json(program))


def optimise_loops(text: str, passes: Sequence[str], print_after: Sequence[str], stop_after: str) -> str:
    """A loop program of the cpu device after passes of the device's.

    Args:
        passes: their names; all where there are none.
        print_after: passes after which it is printed on standard error; ``*``: after each.
        stop_after: the last pass to run, unless it is empty.

    Raises:
        CompileError: the text is no loop program, there is no such pass, or one fails.
    """
    from torchmdla.devices import get
    from torchmdla.devices.cpu.lowering import optimised
    from torchmdla.devices.cpu.passes.pipeline import named
    from torchmdla.devices.cpu.printer import program_text

    named([*(name for name in print_after if name != "*"), *filter(None, [stop_after])])
    for name, steps in optimised(text, passes, get("cpu").target()):
        if name in print_after or "*" in print_after:
            print(f"// -----// after {name} //----- //\n{program_text(steps)}", file=sys.stderr)
        if name == stop_after:
            break
    return program_text(steps)


def optimise(text: str, file: str, pipeline: str, flags: Sequence[str], print_after_all: bool, locations: bool) -> str:
    """A module after a pass pipeline.

    Args:
        text: of the module. ``file`` is where it comes from, for messages.
        pipeline: as ``builtin.module(…)``, or only what stands in the parentheses; may be empty.
        flags: further passes, ``NAME`` or ``NAME=OPTIONS``; those for functions run on each.
        print_after_all: MLIR prints the module after every pass, on standard error.
        locations: keep locations in the text.

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
            raise CompileError(f"{file} holds no valid module{first_of(error)}") from None

        def parsed(passes: str) -> Any:
            whole = f"builtin.module({passes})"
            return aten.pipeline(whole, context) if uses_aten else PassManager.parse(whole)

        with _told("not a pass pipeline"):
            parsed(passes)
        chosen = [passes, *(_pass_of(flag, parsed) for flag in flags)]
        with _told("not a pass pipeline"):
            manager = parsed(",".join(filter(None, chosen)))
        if print_after_all:
            manager.enable_ir_printing()
        with _told("a pass failed"):
            manager.run(module.operation)
        return str(module.operation.get_asm(enable_debug_info=locations))


def _pass_of(flag: str, parsed: Callable[[str], object]) -> str:
    """A flag as a pass on the module, or on its functions.

    Raises:
        CompileError: there is no such pass.
    """
    name, _, options = flag.partition("=")
    written = f"{name}{{{options}}}" if options else name
    for passes in (written, f"func.func({written})"):
        try:
            parsed(passes)
        except (ir.MLIRError, ValueError):
            continue
        return passes
    raise CompileError(f"--{flag}: there is no such option, and no such pass")


# A pass or an op of the aten dialect; ops of the Torch dialect are called torch.aten.….
_ATEN = re.compile(r"(?<![\w.])aten[-.]\w")


@contextmanager
def _told(reason: str) -> Iterator[None]:
    try:
        yield
    except (ir.MLIRError, ValueError) as error:  # ValueError: of pipelines, and of the aten dialect
        raise CompileError(reason, diagnostic=str(error)) from None


JOBS: Mapping[str, Callable[..., str]] = {
    "lower": lower,
    "generate": generate,
    "loops": loops,
    "opt": optimise,
    "opt-loops": optimise_loops,
}


def _printed(module: ir.Module) -> str:
    return str(module.operation.get_asm(enable_debug_info=True))
