"""The functions that users call."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchmdla import _C, devices
from torchmdla.capture import kept_versions, refusals, specialise, torchscript, ungrouped
from torchmdla.compile_service import service
from torchmdla.devices import OpSupport
from torchmdla.report import progress

# The profiling executor looks at the types in its first run and optimises in its second; a differentiable graph
# profiles once more inside. One further call compiles what that leaves.
WARM_UP_CALLS = 4

# Objects that no walk from a module to its tensors enters, and the length of such a walk.
_WITHOUT_TENSORS = (str, bytes, int, float, type, ModuleType)
_MOST_OBJECTS = 100_000

_device: devices.Device | None = None
_background = False


def enable(
    enabled: bool = True,
    *,
    device: str = "cpu",
    strict: bool = False,
    background: bool = False,
    dynamic: bool = True,
    max_specialisations: int = 32,
    memory_limit: int | None = None,
    **options: Any,
) -> None:
    """Turns torchmdla on or off, from the next call of any TorchScript program on.

    Off, groups that exist already run in PyTorch's interpreter. Before it is first turned on (``TORCHMDLA_ENABLE=0``),
    PyTorch optimises programs by itself, and those that ran stay without groups, of which a warning tells:
    :func:`compile`, :func:`graph_for` and :func:`explain` have them optimised anew.

    Args:
        enabled: on or off.
        device: name of a registered device. Groups formed so far stay with theirs.
        strict: raise :class:`torchmdla.CompileError` where a group cannot be compiled, and
            :class:`torchmdla.DeviceError` where the device fails, instead of falling back.
        background: compile on threads of their own; a group falls back until its code is there, so that no call waits
            for the compiler.
        dynamic: compile a group for any sizes when a third input comes that differs from earlier ones in sizes alone.
            Off, each size is another specialisation.
        max_specialisations: input types (sizes, dtypes, integer values) a group is compiled for; calls with further
            ones fall back.
        memory_limit: bytes that the code of all groups and the weights that it packed may take before the least
            recently used specialisations are taken out, which are made again when they are called (``Memory`` in
            docs/serving.md); 0 for no limit. By default what ``TORCHMDLA_MEMORY`` says (``4G``), or none.
        **options: the device's own, for groups compiled from then on (:meth:`torchmdla.devices.Device.configure`); what
            is not given has its default. The cpu device has ``processor``: ``"native"``, or ``"x86-64-v2"`` to
            ``"x86-64-v4"`` for code that uses no more than all processors of that level have; and
            ``algorithms``: ``"fast"``, ``"winograd"`` for products of matrices by plain sums, none by Strassen's
            algorithm, or ``"direct"`` for convolutions by plain sums, too, none by Winograd's algorithm; and
            ``tuned=False`` for the cost model's choices alone, whatever was measured on this machine.

    Raises:
        TypeError: ``enabled`` is no bool, or the device has no such option.
        ValueError: no such device, a wrong value of an option, or ``max_specialisations`` or ``memory_limit`` is
        negative.
    """
    global _background
    if not isinstance(enabled, bool):
        raise TypeError(f"enable takes True or False, and a device by name: enable(device={enabled!r})")
    if max_specialisations < 0:
        raise ValueError(f"max_specialisations must not be negative, got {max_specialisations}")
    if memory_limit is not None and memory_limit < 0:
        raise ValueError(f"memory_limit must not be negative, got {memory_limit}")
    if enabled:
        chosen = devices.get(device)
        chosen.configure(**options)
        _use(chosen)
        _C.set_strict(strict)
        _background = background
        _C.set_background(background)
        _C.set_dynamic(dynamic)
        _C.set_max_specialisations(max_specialisations)
        _C.set_memory_limit(memory_limit)
    _C.set_enabled(enabled)


def disable() -> None:
    """The same as ``enable(False)``."""
    _C.set_enabled(False)


def is_enabled() -> bool:
    """Whether groups run compiled."""
    return _C.is_enabled()


class enabled:  # noqa: N801  (a context manager that reads like a function)
    """``with torchmdla.enabled(False):`` turns torchmdla on or off for a block, for all threads."""

    def __init__(self, enabled: bool = True) -> None:
        self._wanted = enabled
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_C.is_enabled())
        if self._wanted and _device is None:
            _use(devices.get("cpu"))
        _C.set_enabled(self._wanted)

    def __exit__(self, *exception: object) -> None:
        _C.set_enabled(self._before.pop())


def compile(
    module: Any,
    *example_inputs: Any,
    frontend: Literal["torchscript", "export"] | None = None,
    example_keywords: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    tune: bool | float = False,
    road: Literal["torchscript", "export"] | None = None,
) -> Any:
    """Makes ``module`` ready to run compiled: the first call after it compiles nothing.

    The frontend ``"torchscript"`` traces a plain module or function with the example inputs; script it first where it
    chooses by the data, which a trace would fix. A module in eval mode is frozen. Then the calls that PyTorch's
    profiling executor needs are made, without gradients. A program that PyTorch optimised before torchmdla was switched
    on, without any group, is optimised anew.

    Freezing copies: of a TorchScript module in eval mode another one is returned, which has the weights as constants.
    The old one stays as it is; its groups take the weights as inputs, so that they are other programs, which are
    compiled, or found in the cache, when it is called.

    The frontend ``"export"`` goes through ``torch.export`` and needs no TorchScript. What comes out has the module's
    own parameters and buffers, takes keyword arguments and nested inputs, and refuses inputs of other sizes than the
    examples' where ``dynamic_shapes`` does not let them vary. It computes no gradients faster than eager does.

    On a terminal a progress bar shows when compiling takes longer than a second.

    Args:
        module: ``nn.Module``, function, anything that ``torch.jit`` made, or a ``torch.export.ExportedProgram``.
        example_inputs: positional arguments of one call. An exported program has its own where none are given.
        frontend: by default ``"export"`` for an exported program and ``"torchscript"`` for everything else, whose
            programs run without Python between groups.
        example_keywords: keyword arguments of that call; on the frontend ``"export"`` only.
        dynamic_shapes: the sizes that may vary, as in ``torch.export.export``, for a plain module on that frontend.
        tune: measure schedules of the kernels that take most of the time, for two minutes or so many seconds, and use
            the fastest. They are kept on disk for this machine, and used by whatever is compiled here from then on;
            what was measured before is not measured again. Without, the cost model decides on what nobody measured.
        road: deprecated, the name of ``frontend`` before.

    Returns:
        A ``ScriptModule``, a ``ScriptFunction`` for a function, or an ``nn.Module`` on the frontend ``"export"``.

    Raises:
        TypeError: ``module`` is none of these, or there are no example inputs, or the frontend does not take an
        argument. ValueError: no such frontend. CompileError: in strict mode, a group cannot be compiled, or the device
        does not take an operator.
    """
    if road is not None:
        warnings.warn("torchmdla.compile takes frontend= in place of road=", DeprecationWarning, stacklevel=2)
        frontend = frontend or road
    service.prestart()
    exported = is_exported(module)
    frontend = frontend or ("export" if exported else "torchscript")
    if frontend not in ("torchscript", "export"):
        raise ValueError(f"no frontend {frontend!r}; there are 'torchscript' and 'export'")
    if frontend == "torchscript" and (exported or example_keywords or dynamic_shapes):
        raise TypeError("exported programs, keyword arguments and dynamic shapes need frontend='export'")
    keywords = example_keywords or {}
    if frontend == "export":

        def compiled(anew: bool = False) -> Any:
            return _compile_exported(module, example_inputs, keywords, dynamic_shapes)
    else:
        made = as_torchscript(module, example_inputs)

        def compiled(anew: bool = False) -> Any:
            return _compile_scripted(_frozen(made), example_inputs, anew)

    found = compiled()
    if not tune:
        return found
    inputs = example_inputs
    if exported and not inputs:
        inputs, keywords = module.example_inputs
    _tune(lambda: found(*inputs, **keywords), tune)
    return compiled(anew=True)


def _tune(call: Callable[[], Any], seconds: bool | float) -> None:
    from torchmdla import tuning

    try:
        problem = tuning.tune(call, tuning.SECONDS if seconds is True else float(seconds)).problem
    except ValueError as error:
        warnings.warn(f"torchmdla: {error}", RuntimeWarning, stacklevel=3)
    else:
        if problem:
            warnings.warn(f"torchmdla: what was measured is not kept: {problem}", RuntimeWarning, stacklevel=3)


def _compile_scripted(scripted: Any, inputs: tuple[Any, ...], anew: bool) -> Any:
    """A TorchScript program after the calls that optimise it; ``anew``: also where it is optimised."""
    if is_enabled():
        torchscript.optimise_anew(scripted, whatever=anew)
    before = ungrouped.counts()
    with torch.no_grad(), progress.compiling(_C.statistics):
        refusals.call_until_whole(lambda: scripted(*inputs), WARM_UP_CALLS)
    if _C.is_strict():
        ungrouped.refuse(ungrouped.counts() - before)
    return scripted


def _compile_exported(
    module: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any], dynamic_shapes: Any
) -> torch.nn.Module:
    from torch.export import ExportedProgram

    from torchmdla.capture import export

    with progress.compiling(_C.statistics):
        if isinstance(module, ExportedProgram):
            if dynamic_shapes is not None:
                raise TypeError("an exported program has its dynamic shapes from its export")
            return export.compile_program(module, inputs, keywords)
        if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"frontend='export' takes an exported program or a plain module, got {type(module).__name__}"
            )
        if not inputs and not keywords:
            raise TypeError("compile needs example inputs to export a plain module")
        return export.compile_module(module, inputs, keywords, dynamic_shapes)


def refresh(module: torch.nn.Module | None = None) -> None:
    """Has the next call of any program with these weights take them as they are, whatever frontend and device it runs
    on.

    Compiled code uses packed copies of weights. What PyTorch knows of is noticed at once: an in-place operation, an
    optimiser's step, ``load_state_dict``, another tensor. A write behind its back (through ``.data``, ``numpy()`` or a
    pointer) is noticed within some calls; after this function by the next one.

    Args:
        module: whose parameters, buffers and other tensors were written to; None for all weights. All it is, too, where
            a module's weights are not to be found: in the graph of a frozen one, on a lazy device, sharded.

    Raises:
        TypeError: ``module`` is neither a module nor None.
    """
    if not isinstance(module, torch.nn.Module | None):
        raise TypeError(f"refresh takes a module, or None for all weights, got {type(module).__name__}")
    _C.refresh(None if module is None else _tensors_in_memory(module))


def _tensors_in_memory(module: torch.nn.Module) -> list[torch.Tensor] | None:
    """The tensors that ``module`` holds, or None if there may be others that it computes with."""
    if not hasattr(module, "training"):  # frozen
        return None
    tensors = [*module.parameters(), *module.buffers()]
    waiting = [value for part in module.modules() for value in vars(part).values()]
    seen = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, _WITHOUT_TENSORS):
            continue
        seen.add(id(value))
        if len(seen) > _MOST_OBJECTS:
            return None
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        else:
            waiting += value.__closure__ or () if isinstance(value, FunctionType) else gc.get_referents(value)
    return tensors if all(map(_is_plain, tensors)) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether what it holds is in memory of its own, not in tensors that it wraps (FSDP's, a quantised one)."""
    in_memory = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return in_memory and not is_traceable_wrapper_subclass(tensor)


def graph_for(scripted: Any, *inputs: Any) -> torch._C.Graph:
    """The optimised graph of a scripted module or function for ``inputs``, with its groups.

    Makes the warm-up calls that PyTorch's profiling executor needs first. A program that was optimised without any
    group, before torchmdla was switched on, is optimised anew.

    Raises:
        TypeError: it is not scripted.
    """
    if not hasattr(scripted, "graph_for"):
        raise TypeError(
            f"graph_for takes a TorchScript program, got {type(scripted).__name__}: "
            "torch.jit.trace(module, inputs), torch.jit.script(module) or torchmdla.compile(module, *inputs)"
        )
    if is_enabled():
        torchscript.optimise_anew(scripted)
    for _ in range(WARM_UP_CALLS):
        scripted(*inputs)
    graph: torch._C.Graph = scripted.graph_for(*inputs)
    return graph


def supported_ops(device: str = "cpu") -> Mapping[str, OpSupport]:
    """The operators that ``device`` takes into groups, by schema name with overload.

    Raises:
        ValueError: no such device.
    """
    return dict(devices.get(device).ops)


def is_exported(module: Any) -> bool:
    """Whether it is a ``torch.export.ExportedProgram``.

    Does not import torch.export, which takes a second: who has an exported program has done so.
    """
    export = sys.modules.get("torch.export")
    return export is not None and isinstance(module, export.ExportedProgram)


def ready(module: Any, example_inputs: tuple[Any, ...]) -> Any:
    """``module`` as a TorchScript program, frozen in eval mode.

    Raises:
        TypeError: it is no module, function or TorchScript program, or there are no example inputs to trace it with.
    """
    return _frozen(as_torchscript(module, example_inputs))


def as_torchscript(module: Any, example_inputs: tuple[Any, ...]) -> Any:
    """``module`` as a TorchScript program: traced, if it is none.

    Raises:
        TypeError: as :func:`ready`.
    """
    if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return module
    if not isinstance(module, torch.nn.Module) and not callable(module):
        raise TypeError(f"compile takes a module, a function or a TorchScript program, got {type(module).__name__}")
    if not example_inputs:
        raise TypeError("compile needs example inputs to trace a plain module or function")
    with torch.no_grad():
        return torch.jit.trace(module, example_inputs, check_trace=False)


def _frozen(scripted: Any) -> Any:
    is_module = isinstance(scripted, torch.jit.ScriptModule)
    if is_module and hasattr(scripted, "training") and not scripted.training:
        return torch.jit.freeze(scripted)
    return scripted


@contextmanager
def using(device: devices.Device) -> Iterator[None]:
    """Within the block programs that are new to PyTorch's executor have their groups for ``device``, and calls wait for
    the compiler."""
    before = _device or devices.get("cpu")
    devices.register(device)
    with waiting_for_compiles():
        _use(device)
        try:
            yield
        finally:
            _use(before)


@contextmanager
def waiting_for_compiles() -> Iterator[None]:
    """Within the block torchmdla is on, for the device in use, and calls wait for the compiler."""
    was_enabled = _C.is_enabled()
    if _device is None:
        _use(devices.get("cpu"))
    _C.set_background(False)
    _C.set_enabled(True)
    try:
        yield
    finally:
        _C.set_background(_background)
        _C.set_enabled(was_enabled)


@contextmanager
def without_groups() -> Iterator[None]:
    """Within the block programs that are new to PyTorch's executor are optimised by PyTorch alone, and stay so."""
    with enabled(False):
        _C.use_device("")
        try:
            yield
        finally:
            _C.use_device(_device.name if _device else "")


def _use(device: devices.Device) -> None:
    global _device
    if _device is None and _C.optimised_without_device():
        warnings.warn(
            "torchmdla: programs of TorchScript that ran before torchmdla was switched on stay without groups: "
            "torchmdla.compile(program, *inputs) has PyTorch optimise one anew",
            RuntimeWarning,
            stacklevel=3,
        )
    if device is not _device:
        torchscript.use_device(device)
        devices.use(device)
        _device = device


specialise.install()
torchscript.watch_loads()
kept_versions.install()
if os.environ.get("TORCHMDLA_ENABLE", "1") not in ("0", ""):
    enable()
