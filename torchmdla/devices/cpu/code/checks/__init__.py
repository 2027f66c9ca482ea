"""Generated code that checks its own loads and stores, for tests: ``TORCHMDLA_CHECK_BOUNDS=1``.

What writes the functions of the ABI knows buffers: it *marks* their addresses with how many bytes they have
(``marks.py``). Everything else is done to the finished module in the LLVM dialect (``instrument.py``), whatever it was
made from. A *record* of a buffer (where it begins and ends, its name) goes with every pointer that is made of its
address: in a function by the definitions, from a function to another beside the pointer in the array of operands, or as
one more argument. An access is given the address, or the mask, that a function of the module's own returns for it
(``support.py``): its own where it lies inside of the record, else one of memory that nobody needs. The first access
outside is remembered, and ends the call with an error.
"""

from torchmdla.devices.cpu.code.checks.instrument import check_bounds
from torchmdla.devices.cpu.code.checks.marks import Marks
from torchmdla.devices.cpu.code.checks.support import FAULT

__all__ = ["FAULT", "Marks", "check_bounds"]
