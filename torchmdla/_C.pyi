"""The C++ extension: fusion pass, run function, device calls."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypedDict

import torch

class Counts(TypedDict):
    groups: int
    specialisations: int
    training_calls: int
    dynamic: int
    not_dynamic: dict[str, int]
    fallbacks: dict[str, int]
    packages: dict[str, int]
    packaged: int
    refused: dict[str, int]
    unpacked: int
    evicted: int
    over_limit: int
    compiled_calls: int  # these two are not reset
    recorded_calls: int

class ImageError(RuntimeError):
    """An image is damaged, is for another machine, or needs what this process does not have."""

class Image:
    """Linked code in this process, as long as it lives (``torchmdla/devices/cpu/code/image.py``).

    Args:
        data: the image's bytes.
        given: addresses of what it calls, which go before what :func:`address_of_symbol` finds.

    Raises:
        ImageError: it cannot be loaded; says why.
    """

    def __init__(self, data: bytes, given: Mapping[str, int] = {}) -> None: ...
    def symbol(self, name: str) -> int:
        """The address of a function; 0 where there is none of that name."""

    def names(self) -> list[str]:
        """Those of its functions, sorted."""

def address_of_symbol(name: str) -> int:
    """The address of a device call, or of a function of libtorch or of the C library; 0 where there is none."""

def content_hash(tensor: torch.Tensor) -> int:
    """Of the bytes of a dense tensor, in the order in which they lie in memory: what finds accidents."""

class Executable:
    """Compiled code bound to the inputs and outputs of a group."""

    def __init__(
        self,
        *,
        entry: int,
        packs: Sequence[tuple[int, str, Sequence[int], int, int]],
        workspace_bytes: int,
        owner: object,
        inputs: Sequence[tuple[str, object]],
        outputs: Sequence[tuple[str, object]],
        unversioned: Sequence[int] = (),
        workspace: int = 0,
        fault: int = 0,
        times: KernelTimes | None = None,
        program_bytes: int = 0,
    ) -> None: ...
    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Of a static program, outside of groups.

        Raises:
            RuntimeError: the compiled code, or the device, reports an error.
        """

    @property
    def owner(self) -> Any:
        """What was given as such; None of one that came in a package."""

    @property
    def times(self) -> KernelTimes | None: ...

class KernelSums(TypedDict):
    """Nanoseconds, as sums over calls and least of a call."""

    calls: int
    entry: tuple[int, int]
    kernels: list[tuple[int, int]]
    symbols: list[int]  # the sizes of the latest call

class KernelTimes:
    """What the calls of an executable took while :func:`observe_kernels` asks for times."""

    def __init__(self, names: Sequence[str]) -> None: ...
    @property
    def names(self) -> list[str]: ...
    def sums(self) -> KernelSums: ...
    def reset(self) -> None: ...

class SpecialisationReport(TypedDict):
    is_dynamic: bool
    executable: Executable | None
    failure: str
    signature: list[int]
    symbols: tuple[int, list[int]] | None  # of one for any sizes: their number, and which each entry is, or -1
    left_out: list[int] | None  # of one that is divided: the numbers of nodes

class GroupReport(TypedDict):
    """A group that lives: ``inputs`` are those of its latest call, where :func:`keep_inputs` asks for them."""

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
    """Of each group that lives, or of those with these numbers."""

def group_counts() -> dict[int, tuple[int, int, int]]:
    """Calls, training calls and specialisations of each group that lives, by number."""

def structure(subgraph: torch._C.Graph, device: str, parameters: Sequence[int]) -> bytes | None:
    """By what packages know a group of TorchScript, 32 bytes; None where its subgraph holds what has no such form."""

def ungrouped() -> list[tuple[str, str, str, int]]: ...  # operator, reason, source_ranges, graphs
def source_ranges(node: Any) -> str: ...
def set_packages(on: bool) -> None:
    """Whether groups take over what packages have for them."""

def available_cpus() -> int:
    """How many CPUs the calling thread may use: of its affinity mask, within the quotas of its control groups."""

def processor_identity() -> str:
    """What tells this processor from others; empty where it is none of x86-64."""

def converts_f16(processor: str) -> bool:
    """Whether this machine, or as much of it as a level of x86-64 has, converts float16 by instructions."""

def set_processor(processor: str) -> None:
    """Of what processor packages' code is used.

    Raises:
        ValueError: there is no such, or this machine is none.
    """

class ProgramLifetime:
    """Of a program that is no module of TorchScript: lives as long."""

def take_package(path: str, program: ProgramLifetime) -> bool:
    """Makes the package of a file known to groups, as long as ``program`` lives; whether the file has one.

    Raises:
        RuntimeError: the file is no archive of PyTorch's.
    """

def check_signature(key_paths: Sequence[str], record: bytes, label: str, name: str, content: bytes) -> None:
    """Returns if the owner of one of the keys made the signature ``record`` of ``content``, as content of the kind
    ``label``; ``name`` is what messages call that.

    Raises:
        ValueError: nobody of them did; the signature is damaged; or a key cannot be read or trusted.
    """

def take_loaded_package(path: str, module: Any) -> None:
    """Make the package of the file that a module was loaded from known to its groups."""

def load_with_package(path: str, device: torch.device | None) -> Any:
    """The ``torch._C.ScriptModule`` of a file, whose package is known to groups as long as the program lives."""

def set_demanded_keys(paths: Sequence[str] | None) -> None:
    """Of which keys a package must be signed by one; None where none need be.

    Raises:
        ValueError: a file cannot be read, is no public key, or may have been written by another user.
    """

def prepare(module: Any) -> None:
    """Has PyTorch optimise ``forward`` of a ``torch._C.ScriptModule``, and its groups take over what packages have."""

def keep_inputs(on: bool) -> None: ...
def observe_kernels(times: bool, ranges: bool) -> None: ...

class Group:
    """A group of an FX graph: call it with its inputs. Runs without the GIL where there is compiled code.

    Args:
        subgraph: has ``run(*inputs)``, which returns a sequence of results, and ``run_and_record(*inputs)``, which
            returns the results and the record, both by eager operators, and ``divide(left_out, parameters)``, which
            returns a callable that does what ``run`` does in groups of its own, without the nodes of these numbers, or
            None.
        name: what PyTorch's profiles and FX's code call it.
        device: the device's name.
        parameters: the indices of inputs that are weights.
        num_inputs: how many inputs there are.
        strict, background, max_specialisations: otherwise than the settings, unless None.
        varying: the sizes and integers that are known to vary from call to call: an input's index, and the dimension
            or 0. They are symbols of the first program already.
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
    ) -> None: ...
    def __call__(self, *inputs: Any) -> tuple[Any, ...]: ...
    @property
    def __name__(self) -> str: ...
    @property
    def subgraph(self) -> Any: ...
    @property
    def parameters(self) -> list[int]: ...

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
    warn: Callable[[Any, bool], None],
    make_meta: Callable[[torch.dtype, tuple[int, ...], tuple[int, ...]], object],
    error_type: type[Exception],
    tell_fault: Callable[[str, str, bool], None],
) -> None: ...
def add_device(
    device: str, ops: Sequence[tuple[str, str, str, dict[str, object]]], dtypes: Sequence[torch.dtype]
) -> None: ...
def use_device(device: str) -> None: ...
def set_enabled(on: bool) -> None: ...
def is_enabled() -> bool: ...
def set_strict(on: bool) -> None: ...
def set_background(on: bool) -> None: ...
def set_dynamic(on: bool) -> None: ...
def set_submit(submit: Callable[[Callable[[], None]], object]) -> None: ...
def is_strict() -> bool: ...
def set_max_specialisations(most: int) -> None: ...
def refresh(tensors: Sequence[torch.Tensor] | None) -> None: ...
def drop_dead() -> None:
    """What was packed of tensors that are no more, and packages whose programs are no more."""

def optimised_without_device() -> int: ...
def pass_stages() -> list[str]: ...
def values_visited() -> int: ...
def fail_pass_stage(stage: str) -> None:
    """Let a stage of the pass that forms groups fail, for tests; an empty name stands for none."""

def statistics() -> Counts: ...
def reset_statistics() -> None: ...
def enter_alone() -> bool: ...
def leave_alone() -> None: ...
def memory_use() -> dict[str, int]: ...  # bytes that are "packed", of "workspace" and of "code"
def set_memory_limit(limit: int | None, keep_seconds: float = 60.0) -> None:
    """None: what TORCHMDLA_MEMORY says."""

def memory_limit() -> int: ...

class LazyComputation:
    """What lazy tensors were lowered to."""

    @property
    def graph(self) -> Any: ...
    @property
    def aliases(self) -> list[tuple[int, int]]:
        """Outputs and the parameters that they are the new values of."""
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
