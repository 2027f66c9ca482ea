"""The functions of the executable's ABI, as MLIR text: the entry, packs, and how large the workspace is.

``module.py`` puts the module together. ``function.py`` writes a function step by step: calls (``calls.py``) of kernels,
of which the module holds equal ones once (``kernel_functions.py``), and scalar code (``scalar_code.py``). What steps
refer to, buffers, scalars and sizes, is in the function's frame (``frame.py``, ``workspace.py``).
"""

from torchmdla.devices.cpu.code.entry.abi import ENTRY, KERNEL_TYPE
from torchmdla.devices.cpu.code.entry.attributes import function_attributes
from torchmdla.devices.cpu.code.entry.module import Code, declaration, write_module

__all__ = ["ENTRY", "KERNEL_TYPE", "Code", "declaration", "function_attributes", "write_module"]
