"""Object code for architectures that the LLVM of MLIR's bindings does not have, by llvmlite's LLVM."""

from __future__ import annotations

from torchmdla.compiler.llvm_text import older_text
from torchmdla.compiler.program import Target
from torchmdla.errors import CompileError

# How LLVM's passes and its generator of instructions optimise, as for this machine's code.
_LEVEL = 3


def foreign_object(text: str, target: Target) -> bytes:
    """Return the object code of a module as LLVM IR.

    Raises:
        CompileError: LLVM rejects the module.
    """
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(target.triple).create_target_machine(
        opt=_LEVEL, reloc="pic", codemodel="small"
    )
    try:
        module = binding.parse_assembly(older_text(text))
    except RuntimeError as error:
        raise CompileError(f"LLVM does not read the code for {target.triple}", diagnostic=str(error)) from None
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    options = binding.create_pipeline_tuning_options(speed_level=_LEVEL)
    options.loop_unrolling = False  # Schedules specify how far loops are unrolled.
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))
