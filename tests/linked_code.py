"""Small images: LLVM IR that LLVM compiles for each code model, linked."""

from __future__ import annotations

import ctypes

from llvmlite import binding

from torchmdla import _C
from torchmdla.devices.cpu.codegen.image import Image
from torchmdla.devices.cpu.codegen.linking import link

# Constants, words that hold addresses, zero-initialised memory, and calls of external functions and of another file.
FIRST = """
@numbers = internal constant [3 x i64] [i64 5, i64 7, i64 11], align 64
@places = internal constant [2 x ptr] [ptr getelementptr ([3 x i64], ptr @numbers, i64 0, i64 2), ptr @other]
@written = internal global [2 x ptr] [ptr @numbers, ptr @labs]
@zeros = internal global [600 x i64] zeroinitializer, align 64
declare i64 @labs(i64)
declare i64 @other(i64)
declare ptr @mdla_scratch(i64)

define internal i64 @eleven() noinline { %p = load volatile ptr, ptr @places
  %n = load i64, ptr %p
  ret i64 %n }

; |x| + 5 + 11 + other(0), and how often it was called
define i64 @entry(i64 %x) {
  %absolute = call i64 @labs(i64 %x)
  %p = load volatile ptr, ptr @written
  %five = load i64, ptr %p
  %eleven = call i64 @eleven()
  %f = load volatile ptr, ptr getelementptr ([2 x ptr], ptr @places, i64 0, i64 1)
  %o = call i64 %f(i64 0)
  %before = load i64, ptr getelementptr ([600 x i64], ptr @zeros, i64 0, i64 599)
  %calls = add i64 %before, 1
  store i64 %calls, ptr getelementptr ([600 x i64], ptr @zeros, i64 0, i64 599)
  %s0 = add i64 %absolute, %five
  %s1 = add i64 %s0, %eleven
  %s2 = add i64 %s1, %o
  %s3 = add i64 %s2, %calls
  ret i64 %s3 }

define i64 @by_pointer(i64 %x) {
  %f = load volatile ptr, ptr getelementptr ([2 x ptr], ptr @written, i64 0, i64 1)
  %n = call i64 %f(i64 %x)
  %o = call i64 @other(i64 %n)
  ret i64 %o }

define i32 @too_much(ptr %buffers) {
  %p = call ptr @mdla_scratch(i64 1152921504606846976)
  store i8 1, ptr %p
  ret i32 0 }
"""
SECOND = """
@hundred = internal constant [1 x i64] [i64 100]
define internal i64 @eleven(i64 %x) noinline { %p = load volatile i64, ptr @hundred
  %n = add i64 %x, %p
  ret i64 %n }
define i64 @other(i64 %x) { %n = call i64 @eleven(i64 %x)
  ret i64 %n }
"""

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def object_of(text: str, model: str = "large", relocations: str = "static", triple: str = "") -> bytes:
    """Return the object file that LLVM emits for IR."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(triple or binding.get_process_triple())
    machine = target.create_target_machine(codemodel=model, reloc=relocations)
    return bytes(machine.emit_object(binding.parse_assembly(text)))


def image_of(*texts: str, model: str = "large", relocations: str = "static", triple: str = "") -> Image:
    """Return the image of files of IR."""
    return link([object_of(text, model, relocations, triple) for text in texts])


def call(image: _C.Image, name: str, number: int) -> int:
    """Return the result of a function of the image for a number."""
    return int(FUNCTION(image.symbol(name))(number))
