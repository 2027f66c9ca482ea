"""Generated code that checks its own loads and stores, for tests: ``TORCHMDLA_CHECK_BOUNDS=1``.

The writers of the ABI's functions know the buffers. They *mark* the address of each buffer with its size in bytes
(``support.py``). The checks are then added to the finished module in the LLVM dialect (``instrument.py``).

Each pointer that is derived from a buffer's address has a *record*: the start, the end and the name of the buffer.
Within a function, the definitions determine a pointer's record. Between functions, the record is passed beside the
pointer in the array of operands, or as an additional argument.

Each access uses the address or the mask that a support function returns (``support.py``). This is the original address
if the access is inside the buffer, and the address of spare memory otherwise. The first access outside its buffer is
recorded, and ends the call with an error.
"""

from torchmdla.devices.cpu.codegen.checks.instrument import check_bounds
from torchmdla.devices.cpu.codegen.checks.support import FAULT, Marks

__all__ = ["FAULT", "Marks", "check_bounds"]
