"""The C++ extension: fusion pass, run function, device calls."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar, Literal, TypedDict, overload

import torch

class Counts(TypedDict):
    groups: int
    specialisations: int
    training_calls: int
    dynamic: int
    not_dynamic: dict[str, int]
    not_trained: dict[str, int]
    fallbacks: dict[str, int]
    packages: dict[str, int]
    packaged: int
    refused: dict[str, int]
    unpacked: int
    evicted: int
    over_limit: int
    speed_checks: int
    speed_check_seconds: float
    replaced: int
    compiled_calls: int  # these two are not reset
    recorded_calls: int

class LibraryCode:
    """Code that a :class:`DeviceLibrary` has loaded, with the addresses of its functions. It owns them."""

    entry: int
    packs: tuple[int, ...]
    releases: tuple[int, ...]
    workspace: int
    fault: int
    context: int
    wait: int
    forget: int

class DeviceLibrary:
    """Shared library of a vendor that loads the code of a device (``torchmdla/device.h``).

    Raises:
        DeviceLibraryError: the library cannot be opened.
    """

    name: str
    features: list[str]

    def __init__(self, path: str) -> None: ...
    def load(self, object_code: bytes, entry: str, workspace: str, fault: str, packs: Sequence[str]) -> LibraryCode:
        """Load object code.

        Raises:
            DeviceLibraryError: the library does not load it.
        """

class DeviceLibraryError(RuntimeError):
    """Error of a device's library."""

class DeviceEventRecording:
    """Recording of the events of devices (``mdla_record_event``) in all threads, while the object lives."""

    def __init__(self) -> None: ...
    def take(self) -> list[tuple[str, str, int, int]]:
        """Return stream, name, begin and end (nanoseconds of the monotonic clock) of the events since the last call."""

def add_events_to_profiler() -> None:
    """Add the events of devices to every trace of ``torch.profiler`` from now on, a row for each stream."""

def set_python_devices(
    features: Callable[[str], Set[str] | None],
    load: Callable[[str, bytes], tuple[int, Sequence[int], Sequence[int], int, int, bool, int, int, int, object]],
) -> None:
    """Set the functions by which packages find what a device's code needs, and load it."""

class ImageError(RuntimeError):
    """Error of an image that is damaged, is for another machine, or needs a symbol that this process does not have."""

class Image:
    """Linked code that is mapped in this process while the object lives (``torchmdla/devices/cpu/codegen/image.py``).

    Args:
        data: the image's bytes.
        addresses: addresses of the functions that it calls; they precede those of :func:`address_of_symbol`.

    Raises:
        ImageError: the image cannot be loaded; the message has the reason.
    """

    def __init__(self, data: bytes, addresses: Mapping[str, int] = {}) -> None: ...
    def symbol(self, name: str) -> int:
        """Return the address of a function; 0 if the image does not define it."""

    def names(self) -> list[str]:
        """Return the names of its functions, sorted."""

def address_of_symbol(name: str) -> int:
    """Return the address of a device call, or of a function of libtorch or the C library; 0 if it is not defined."""

def content_hash(tensor: torch.Tensor) -> int:
    """Return a hash of the bytes of a dense tensor, in memory order. It detects accidents, not attacks."""

def draw_mask(sizes: Sequence[int], probability: float) -> torch.Tensor:
    """Return booleans that are true with this probability, drawn from PyTorch's generator as ``bernoulli_`` does."""

class Executable:
    """Compiled code bound to the inputs and outputs of a group."""

    def __init__(
        self,
        *,
        entry: int,
        packs: Sequence[tuple[int, str, Sequence[int], int, int, int]],
        workspace_bytes: int,
        owner: object,
        inputs: Sequence[tuple[str, object]],
        outputs: Sequence[tuple[str, object]],
        unversioned: Sequence[int] = (),
        workspace: int = 0,
        fault: int = 0,
        times: KernelTimes | None = None,
        program_bytes: int = 0,
        kernel_nodes: Sequence[Sequence[int]] = (),
        competes_with_eager: bool = False,
        in_place: Sequence[tuple[int, int]] = (),
        releases: Sequence[tuple[int, int]] = (),
        context: int = 0,
        wait: int = 0,
        forget: int = 0,
    ) -> None: ...
    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Call the code of a static program outside of groups.

        Raises:
            RuntimeError: the compiled code, or the device, reports an error.
        """

    @property
    def owner(self) -> Any:
        """Return the owner that the executable was made with; None if it came from a package."""

    @property
    def times(self) -> KernelTimes | None: ...

class KernelSums(TypedDict):
    """Nanoseconds: the sum over all calls, and the least of one call."""

    calls: int
    entry: tuple[int, int]
    kernels: list[tuple[int, int]]
    symbols: list[int]  # the sizes of the latest call

class KernelTimes:
    """Times of the calls of an executable, recorded while :func:`observe_kernels` requests them."""

    def __init__(self, names: Sequence[str]) -> None: ...
    @property
    def names(self) -> list[str]: ...
    def sums(self) -> KernelSums: ...
    def reset(self) -> None: ...

# The terms of a polynomial in a program's symbols, :attr:`torchmdla.compiler.sizes.Size.terms`.
_Terms = Sequence[tuple[Sequence[int], int]]

class SplitProgram:
    """Program whose parts run on several devices, in one entry.

    Args:
        parts: for each part its device; the addresses of its entry, workspace function, fault, context and wait; its
            workspace bytes, its arguments and results, the number of results, its packs, its first kernel, whether it
            counts as a kernel, its transfers and their bytes. An argument or result is the number of a buffer of the
            program or, after True, of a slot.
        slots: bytes of the slots for intermediates.
        symbols: number of symbols.
    """

    entry: ClassVar[int]  # address of the entry of all such programs
    fault: ClassVar[int]
    def __init__(
        self,
        parts: Sequence[
            tuple[
                str,
                int,
                int,
                int,
                int,
                int,
                int,
                Sequence[tuple[bool, int]],
                int,
                Sequence[int],
                int,
                bool,
                int,
                _Terms,
            ]
        ],
        slots: Sequence[_Terms],
        symbols: int,
    ) -> None: ...
    @property
    def address(self) -> int: ...

def device_counts() -> dict[str, tuple[int, int, int]]:
    """Return the runs of parts, the transfers and their bytes, by device, since the start of the process."""

# What runs after a comparison with PyTorch's operators, the seconds of compiled code and of the operators, and the
# numbers of the nodes that a division leaves out.
SpeedFields = tuple[Literal["compiled", "divided", "eager"], float, float, Sequence[int]]

class SpeedReport(TypedDict):
    """Result of a comparison with PyTorch's operators."""

    threads: int
    compiled_seconds: float
    eager_seconds: float
    choice: Literal["compiled", "divided", "eager"]
    left_out: list[int]  # if divided: the numbers of the excluded nodes

class SpecialisationReport(TypedDict):
    is_dynamic: bool
    executable: Executable | None
    failure: str
    signature: list[int]
    symbols: tuple[int, list[int]] | None  # if dynamic: the number of symbols, and each entry's symbol or -1
    left_out: list[int] | None  # if divided: the numbers of the excluded nodes
    speed: list[SpeedReport]

class GroupReport(TypedDict):
    """State of a live group. ``inputs`` are those of its latest call if :func:`keep_inputs` is on."""

    number: int
    name: str
    device: str
    subgraph: Any
    parameters: list[int]  # the indices of inputs that are weights
    compiled_calls: int
    recorded_calls: int
    training_calls: int
    fallbacks: dict[str, int]
    not_dynamic: dict[str, int]
    specialisations: list[SpecialisationReport]
    inputs: list[Any]

def groups(numbers: Set[int] | None = None) -> list[GroupReport]:
    """Return the report of each live group, or of those with these numbers."""

def group_counts() -> dict[int, tuple[int, int, int]]:
    """Return the calls, training calls and specialisations of each live group, by number."""

def structure(subgraph: torch._C.Graph, device: str, parameters: Sequence[int]) -> bytes | None:
    """Return the 32 bytes that identify a group of TorchScript in packages; None if its subgraph has no such form."""

def ungrouped() -> list[tuple[str, str, str, int]]: ...  # operator, reason, source_ranges, graphs
def source_ranges(node: Any) -> str: ...
def set_packages(on: bool) -> None:
    """Set whether groups use the code that packages have for them."""

def set_lone_groups(on: bool) -> None:
    """Set whether a single cheap operator is a group, too."""

def available_cpus() -> int:
    """Return how many CPUs the calling thread may use, by its affinity mask and the quotas of its control groups."""

def kernel_threads() -> int:
    """Return how many threads share the kernels that the calling thread runs: PyTorch's, limited to the quota."""

def processor_identity() -> str:
    """Return text that identifies this processor; empty if it is not an x86-64 processor."""

def host_features() -> set[str]:
    """Return LLVM's names of this processor's features that the system lets programs use."""

def converts_f16(processor: str) -> bool:
    """Return whether this machine, limited to a level of x86-64, has instructions that convert float16."""

def set_processor(processor: str) -> None:
    """Set the processor level whose code of packages is used.

    Raises:
        ValueError: the level is unknown, or this machine does not have it.
    """

class ProgramLifetime:
    """Lifetime of a program that is not a module of TorchScript."""

def take_package(path: str, program: ProgramLifetime) -> bool:
    """Make the package of a file known to groups while ``program`` lives. Return whether the file has one.

    Raises:
        RuntimeError: the file is not an archive of PyTorch.
    """

def take_package_records(records: Mapping[str, bytes], name: str, program: ProgramLifetime) -> bool:
    """Make the package of these records known to groups while ``program`` lives. Return whether it is a package.

    ``name`` is the program's name in warnings. The caller decides whether to trust the bytes.
    """

def check_signature(key_paths: Sequence[str], record: bytes, label: str, name: str, content: bytes) -> None:
    """Check that the owner of one of the keys made the signature ``record`` of ``content``.

    ``label`` is the kind of the content, and ``name`` its name in messages.

    Raises:
        ValueError: no key verifies it; the signature is damaged; or a key cannot be read or trusted.
    """

def take_loaded_package(path: str, module: Any) -> None:
    """Make the package of the file that a module was loaded from known to its groups."""

def load_with_package(path: str, device: torch.device | None) -> Any:
    """Return the ``torch._C.ScriptModule`` of a file. Groups know its package while the program lives."""

def set_demanded_keys(paths: Sequence[str] | None) -> None:
    """Set the keys of which one must have signed a package; None requires no signature.

    Raises:
        ValueError: a file cannot be read, is not a public key, or may have been written by another user.
    """

def are_signatures_required() -> bool:
    """Return whether compiled code that a program loads needs a signature, also if the keys cannot be read."""

def return_freed_memory() -> None:
    """Return memory that was freed to the system."""

class MappedWeights:
    """A file that is mapped for weights."""

    def drop_unwritten_pages(self) -> None:
        """Drop the pages that were not written from memory; no other thread may write to the weights meanwhile."""

def map_weights(module: Any, path: str) -> MappedWeights:
    """Use the mapped file as the memory of the weights of a ``torch._C.ScriptModule`` that was loaded just now.

    Raises:
        RuntimeError: the file cannot be mapped.
    """

def map_constants(module: Any, descriptor: int) -> MappedWeights:
    """Replace the constants of a ``torch._C.ScriptModule`` by copies in an empty file, which is mapped.

    Raises:
        RuntimeError: the file cannot be written or mapped.
    """

def prepare(module: Any) -> None:
    """Let PyTorch optimise ``forward`` of a ``torch._C.ScriptModule``, and its groups load their code of packages."""

def keep_inputs(on: bool) -> None: ...
def observe_kernels(times: bool, ranges: bool) -> None: ...

class Group:
    """A group of an FX graph: call it with its inputs. Runs without the GIL where there is compiled code.

    Args:
        subgraph: an object with three methods. ``run(*inputs)`` returns a sequence of results.
            ``run_and_record(*inputs)`` returns the results and the record. Both run eager operators.
            ``divide(left_out, parameters)`` returns a callable that computes the same as ``run`` in new groups without
            the nodes of these numbers, or None. Optionally ``time_nodes(*inputs)`` returns the seconds of each node.
        name: its name in PyTorch's profiles and in FX's code.
        device: the device's name.
        parameters: the indices of inputs that are weights.
        num_inputs: how many inputs there are.
        strict: overrides the setting unless None.
        background: overrides the setting unless None.
        max_specialisations: overrides the setting unless None.
        varying: the sizes and integers that are known to vary from call to call: an input's index, and the dimension
            or 0. They are symbols of the first program.
        written: pairs of an output and an input. The output is written to the input, and the call returns None for it.
    """

    def __init__(
        self,
        subgraph: object,
        name: str,
        device: str,
        parameters: Sequence[int],
        num_inputs: int,
        strict: bool | None = None,
        background: bool | None = None,
        max_specialisations: int | None = None,
        varying: Sequence[tuple[int, int]] | None = None,
        written: Sequence[tuple[int, int]] | None = None,
    ) -> None: ...
    @overload
    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...
    @overload
    def __call__(self, *, inputs: list[Any]) -> tuple[Any, ...]:
        """Call the group with a list of inputs, which it empties. It frees each after its last use."""

    @property
    def __name__(self) -> str: ...
    @property
    def subgraph(self) -> Any: ...
    @property
    def parameters(self) -> list[int]: ...

class ScriptRegion:
    """A part of a program of TorchScript: call it with its inputs. PyTorch's interpreter runs it, with groups.

    Args:
        graph: the graph. An attribute ``source`` of a node, ``file:line``, is its place in the user's program.
        name: its name in errors.
        parameters: the indices of inputs that are weights.

    A call returns the result, or a tuple of results.
    """

    def bind(self, *inputs: Any) -> object:
        """Return the last inputs, for calls that pass them as one argument, the last."""

    def __init__(self, graph: torch._C.Graph, name: str, parameters: Sequence[int]) -> None: ...
    def __call__(self, *inputs: Any) -> Any: ...
    @property
    def graph(self) -> torch._C.Graph: ...

def make_custom_object(class_name: str, state: Any) -> Any:
    """Return an object of one of PyTorch's C++ classes (``__torch__.torch.classes.…``) from its state."""

def set_compiler(
    compile: Callable[[Any, dict[str, Any], list[int], str], Executable],
    compile_dynamic: Callable[
        [
            Any,
            dict[str, Any],
            list[int],
            str,
            tuple[int, ...],
            list[tuple[tuple[int, ...], dict[str, Any]]],
        ],
        tuple[Executable, Callable[[dict[str, Any], tuple[int, ...]], bool]],
    ],
    compile_training: Callable[[Any, list[Any], list[int], str, list[bool], list[list[int] | None]], Any],
    warn: Callable[[Any, bool], None],
    make_meta: Callable[[torch.dtype, tuple[int, ...], tuple[int, ...]], object],
    error_type: type[Exception],
    tell_fault: Callable[[str, str, bool], None],
    find_speed: Callable[[Executable, str, int, int], SpeedFields | None],
    store_speed: Callable[[Executable, str, int, int, str, SpeedFields], None],
) -> None: ...
def add_device(
    device: str,
    ops: Sequence[tuple[str, str, str, dict[str, object]]],
    dtypes: Sequence[torch.dtype],
    is_asynchronous: bool = False,
) -> None: ...
def use_device(device: str) -> None: ...
def set_enabled(on: bool) -> None: ...
def is_enabled() -> bool: ...
def set_strict(on: bool) -> None: ...
def set_background(on: bool) -> None: ...
def is_background() -> bool: ...
def set_dynamic(on: bool) -> None: ...
def set_submit(submit: Callable[[Callable[[], None]], object]) -> None: ...
def is_strict() -> bool: ...
def set_max_specialisations(most: int) -> None: ...
def refresh(tensors: Sequence[torch.Tensor] | None) -> None: ...
def drop_dead() -> None:
    """Free the packs of tensors that are gone, and the packages of programs that are gone."""

def optimised_without_device() -> int: ...
def pass_stages() -> list[str]: ...
def values_visited() -> int: ...
def fail_pass_stage(stage: str) -> None:
    """Let a stage of the pass that forms groups fail, for tests; an empty name lets all succeed."""

def statistics() -> Counts: ...
def reset_statistics() -> None: ...
def enter_alone() -> bool: ...
def leave_alone() -> None: ...
def memory_use() -> dict[str, int]: ...  # bytes that are "packed", of "workspace" and of "code"
def set_memory_limit(limit: int | None, keep_seconds: float = 60.0) -> None:
    """Set the limit in bytes; None takes it from TORCHMDLA_MEMORY."""

def memory_limit() -> int: ...
def set_check_speed(on: bool | None, budget: float = 5.0) -> None:
    """Set whether groups are compared with PyTorch's operators; None takes it from TORCHMDLA_CHECK_SPEED.

    ``budget`` is the number of seconds that a process may spend on it at its start.
    """

def is_check_speed_on() -> bool: ...
def slow_down_kernels(op: str, seconds: float) -> None:
    """Delay each kernel that computes the operator ``op`` (``"tanh"``), for tests; an empty name delays none."""

class LazyComputation:
    """Computation that lazy tensors were lowered to."""

    @property
    def graph(self) -> Any: ...
    @property
    def aliases(self) -> list[tuple[int, int]]:
        """Return pairs of an output and the parameter that takes its value."""
    @property
    def in_mark_step(self) -> bool: ...

def lazy_initialise(device: str) -> None: ...
def lazy_register_foreign_operators() -> None: ...
def lazy_set_backend(backend: object) -> None: ...
def lazy_set_text_writer(writer: Callable[[LazyComputation], str]) -> None: ...
def lazy_set_verbose(on: bool) -> None: ...
def lazy_latest_computation() -> LazyComputation | None: ...
def lazy_pending_computation(tensors: Sequence[torch.Tensor]) -> LazyComputation: ...
def lazy_statistics() -> dict[str, int]: ...
def lazy_reset_statistics() -> None: ...

class acap:  # noqa: N801  (a submodule)
    """The acap device."""

    @staticmethod
    def initialize(device: str) -> None: ...
    @staticmethod
    def mark_step() -> None: ...
    @staticmethod
    def pending_nodes() -> int: ...
    @staticmethod
    def set_most_pending_nodes(most: int) -> None: ...
    @staticmethod
    def set_data(parameter: torch.Tensor, data: torch.Tensor) -> None: ...
    @staticmethod
    def is_pending(tensor: torch.Tensor) -> bool: ...
    @staticmethod
    def pending_graph(tensors: Sequence[torch.Tensor], argument_per_use: bool) -> Any: ...
