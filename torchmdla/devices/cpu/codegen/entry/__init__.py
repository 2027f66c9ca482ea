"""Functions of the executable's ABI, as MLIR text: the entry, packs, and the size of the workspace.

``module.py`` assembles the module. ``function.py`` writes a function step by step: calls of kernels and scalar code.
The module contains equal kernels only once (``kernel_functions.py``). The function's frame holds its text, and the
buffers, scalars and sizes that steps refer to (``frame.py``).
"""

from torchmdla.devices.cpu.codegen.entry.abi import ENTRY, KERNEL_TYPE
from torchmdla.devices.cpu.codegen.entry.module import Code, declaration, function_attributes, write_module

__all__ = ["ENTRY", "KERNEL_TYPE", "Code", "declaration", "function_attributes", "write_module"]
