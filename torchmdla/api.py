"""Functions that users call."""

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
from torchmdla.capture import cache_artifacts, refusals, specialise, torchscript, ungrouped
from torchmdla.compile_service import service, stored_code
from torchmdla.devices import OpSupport
from torchmdla.errors import unknown_name
from torchmdla.report.observing import show_progress
from torchmdla.support import jit

# The profiling executor observes types in its first run and optimises in its second. A differentiable graph profiles
# once more inside. One further call compiles the rest.
WARM_UP_CALLS = 4

# Types of objects that the walk from a module to its tensors does not enter, and the most objects that it visits.
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
    check_speed: bool | None = None,
    **options: Any,
) -> None:
    """Turn torchmdla on or off, from the next call of any TorchScript program on.

    When torchmdla is off, existing groups run in PyTorch's interpreter. Before torchmdla is first turned on
    (``TORCHMDLA_ENABLE=0``), PyTorch optimises programs by itself. Programs that ran before stay without groups, and a
    warning reports that. :func:`compile`, :func:`graph_for` and :func:`explain` have them optimised again.

    Args:
        enabled: whether to turn torchmdla on.
        device: name of a registered device. Existing groups stay with their device.
        strict: whether to raise :class:`torchmdla.CompileError` where a group cannot be compiled, and
            :class:`torchmdla.DeviceError` where the device fails, instead of falling back.
        background: whether to compile on background threads. A group falls back until its code is there, so that no
            call waits for the compiler.
        dynamic: whether to compile a group for any sizes when a third input arrives that differs from earlier ones in
            sizes alone. If false, each size is another specialisation.
        max_specialisations: largest number of input types (sizes, dtypes, integer values) that a group is compiled for.
            Calls with further input types fall back.
        memory_limit: most bytes of code and packed weights of all groups; 0 for no limit. Above the limit the least
            recently used specialisations are evicted and compiled again when they are called (``Memory`` in
            docs/serving.md). The default is the value of ``TORCHMDLA_MEMORY`` (``4G``), or no limit.
        check_speed: whether the first calls of a group compare its code with PyTorch's operators, which replace it
            where they are faster (``Never slower than eager`` in docs/performance.md). The default is the value of
            ``TORCHMDLA_CHECK_SPEED``, or True.
        **options: options of the device, for groups compiled from then on (:meth:`torchmdla.devices.Device.configure`).
            An option that is absent has its default. The cpu device has ``processor``, ``algorithms``, ``matrix_unit``
            and ``tuned``. ``processor`` is ``"native"``, or ``"x86-64-v2"`` to ``"x86-64-v4"``, ``"x86-64-v4-amx"``,
            ``"armv8-a"`` or ``"armv8.6-a"`` for code that runs on all processors of that level. ``matrix_unit`` is
            ``"native"``, ``"none"`` (no use of AMX) or ``"software"`` (a slow model of AMX, for tests). ``algorithms``
            is ``"fast"``, ``"winograd"`` (matrix products by plain sums, without Strassen's algorithm) or ``"direct"``
            (convolutions by plain sums too, without Winograd's algorithm). ``tuned=False`` uses the cost model alone
            and ignores measurements of this machine.

    Raises:
        TypeError: ``enabled`` is not a bool, or the device does not have such an option.
        ValueError: the device does not exist, an option has a wrong value, or ``max_specialisations`` or
            ``memory_limit`` is negative.
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
        _C.set_check_speed(check_speed)
    _C.set_enabled(enabled)


def disable() -> None:
    """Turn torchmdla off, as ``enable(False)`` does."""
    _C.set_enabled(False)


def is_enabled() -> bool:
    """Return whether groups run compiled."""
    return _C.is_enabled()


class enabled:  # noqa: N801  (a context manager that reads like a function)
    """Context manager that turns torchmdla on or off for a block and for all threads.

    Use it as ``with torchmdla.enabled(False):``.
    """

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
    map_weights: bool = False,
    road: Literal["torchscript", "export"] | None = None,
) -> Any:
    """Make ``module`` ready to run compiled, so that the next call compiles nothing.

    The frontend ``"torchscript"`` traces a plain module or function with the example inputs. Script the module first if
    it has control flow that depends on data, because a trace would fix it. A module in eval mode is frozen. Then the
    calls that PyTorch's profiling executor needs are made, without gradients. A program that PyTorch optimised before
    torchmdla was turned on, without any group, is optimised again.

    Freezing copies: for a TorchScript module in eval mode the result is another module that has the weights as
    constants. The original module does not change. Its groups have the weights as inputs and are therefore different
    programs. They are compiled, or found in the cache, when the original module is called.

    The frontend ``"export"`` uses ``torch.export`` and does not need TorchScript. The result has the module's own
    parameters and buffers and accepts keyword arguments and nested inputs. It refuses inputs whose sizes differ from
    the examples' unless ``dynamic_shapes`` lets them vary. It computes gradients no faster than eager does.

    On a terminal a progress bar is shown when compiling takes longer than a second.

    Args:
        module: ``nn.Module``, function, any result of ``torch.jit``, or a ``torch.export.ExportedProgram``.
        example_inputs: positional arguments of one call. For an exported program the default is its own example inputs.
        frontend: ``"export"`` or ``"torchscript"``. The default is ``"export"`` for an exported program and
            ``"torchscript"`` for everything else. Programs of ``"torchscript"`` run without Python between groups.
        example_keywords: keyword arguments of that call, for the frontend ``"export"`` only.
        dynamic_shapes: sizes that may vary, as in ``torch.export.export``, for a plain module and the frontend
            ``"export"``.
        tune: whether to measure schedules of the most expensive kernels and use the fastest, for about two minutes or
            for this number of seconds. The measurements are kept on disk for this machine, and later compiles here use
            them. Earlier measurements are not repeated. The cost model chooses the schedules that were not measured.
        map_weights: whether to move the weights of the frozen program to a file without a name in the cache folder,
            which is mapped. Those that are packed then take no memory until something reads them (``Memory`` in
            docs/serving.md). For the frontend ``"torchscript"`` and a module in eval mode only.
        road: deprecated, the earlier name of ``frontend``.

    Returns:
        A ``ScriptModule``, a ``ScriptFunction`` for a function, or an ``nn.Module`` with the frontend ``"export"``.

    Raises:
        TypeError: ``module`` has another type, example inputs are missing, or the frontend does not support an
            argument.
        ValueError: the frontend does not exist.
        CompileError: in strict mode, a group cannot be compiled, or the device does not support an operator.
    """
    if road is not None:
        warnings.warn("torchmdla.compile takes frontend= in place of road=", DeprecationWarning, stacklevel=2)
        frontend = frontend or road
    service.default_service().prestart()
    exported = is_exported(module)
    frontend = frontend or ("export" if exported else "torchscript")
    if frontend not in ("torchscript", "export"):
        raise ValueError(unknown_name("frontend", frontend, ("torchscript", "export")))
    if frontend == "export" and map_weights:
        raise TypeError("map_weights needs frontend='torchscript'")
    if frontend == "torchscript" and (exported or example_keywords or dynamic_shapes):
        raise TypeError("exported programs, keyword arguments and dynamic shapes need frontend='export'")
    keywords = example_keywords or {}
    scripted = as_torchscript(module, example_inputs) if frontend == "torchscript" else None

    def build(anew: bool = False) -> Any:
        if frontend == "export":
            return _compile_exported(module, example_inputs, example_keywords or {}, dynamic_shapes)
        frozen = _freeze(scripted)
        if not map_weights:
            return _compile_scripted(frozen, example_inputs, anew)
        if not _is_frozen(frozen):
            raise TypeError("map_weights needs a module in eval mode, whose weights become constants")
        weights = torchscript.map_constants(frozen)
        compiled = _compile_scripted(frozen, example_inputs, anew=True)
        weights.drop_unwritten_pages()
        return compiled

    result = build()
    if tune:
        inputs = example_inputs
        if exported and not inputs:
            inputs, keywords = module.example_inputs
        _tune(lambda: result(*inputs, **keywords), tune)
        result = build(anew=True)
    _C.return_freed_memory()
    return result


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
    """Return ``scripted`` after the calls that optimise it; ``anew``: even if it has groups already."""
    if is_enabled():
        torchscript.reoptimise(scripted, whatever=anew)
    before = ungrouped.counts()
    with torch.no_grad(), show_progress(_C.statistics):
        refusals.call_until_compiled(lambda: scripted(*inputs), WARM_UP_CALLS)
    if _C.is_strict():
        ungrouped.refuse(ungrouped.counts() - before)
    return scripted


def _compile_exported(
    module: Any, inputs: tuple[Any, ...], keywords: Mapping[str, Any], dynamic_shapes: Any
) -> torch.nn.Module:
    from torch.export import ExportedProgram

    from torchmdla.capture import export

    with show_progress(_C.statistics):
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
    """Make the next call of any program that uses these weights read their current values.

    This holds for every frontend and device.

    Compiled code uses packed copies of weights. Writes that PyTorch tracks are noticed at once: an in-place operation,
    an optimiser's step, ``load_state_dict``, another tensor. An untracked write (through ``.data``, ``numpy()`` or a
    pointer) is noticed within some calls. After this function the next call notices it.

    Args:
        module: module whose parameters, buffers and other tensors were written to; None for all weights. All weights
            are refreshed too if the module's weights cannot be found: in a frozen graph, on a lazy device, sharded.

    Raises:
        TypeError: ``module`` is neither a module nor None.
    """
    if not isinstance(module, torch.nn.Module | None):
        raise TypeError(f"refresh takes a module, or None for all weights, got {type(module).__name__}")
    _C.refresh(None if module is None else _tensors_in_memory(module))


def _tensors_in_memory(module: torch.nn.Module) -> list[torch.Tensor] | None:
    """Return the tensors that ``module`` holds, or None if it may compute with others."""
    if _is_frozen(module):
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


def _is_frozen(module: Any) -> bool:
    return isinstance(module, torch.nn.Module) and not hasattr(module, "training")


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the data of ``tensor`` is in its own memory, not in tensors that it wraps (FSDP, quantised)."""
    in_memory = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return in_memory and not is_traceable_wrapper_subclass(tensor)


def graph_for(scripted: Any, *inputs: Any) -> torch._C.Graph:
    """Return the optimised graph of a scripted module or function for ``inputs``, with its groups.

    The function first makes the warm-up calls that PyTorch's profiling executor needs. A program that was optimised
    without any group, before torchmdla was turned on, is optimised again.

    Raises:
        TypeError: ``scripted`` is not a TorchScript program.
    """
    if not hasattr(scripted, "graph_for"):
        raise TypeError(
            f"graph_for takes a TorchScript program, got {type(scripted).__name__}: "
            "torch.jit.trace(module, inputs), torch.jit.script(module) or torchmdla.compile(module, *inputs)"
        )
    if is_enabled():
        torchscript.reoptimise(scripted)
    for _ in range(WARM_UP_CALLS):
        scripted(*inputs)
    graph: torch._C.Graph = scripted.graph_for(*inputs)
    return graph


def supported_ops(device: str = "cpu") -> Mapping[str, OpSupport]:
    """Return the operators that ``device`` supports in groups, by schema name with overload.

    Raises:
        ValueError: the device does not exist.
    """
    return dict(devices.get(device).ops)


def is_exported(module: Any) -> bool:
    """Return whether ``module`` is a ``torch.export.ExportedProgram``.

    The function does not import torch.export, which takes a second. An exported program exists only if the import has
    happened.
    """
    export = sys.modules.get("torch.export")
    return export is not None and isinstance(module, export.ExportedProgram)


def as_frozen_torchscript(module: Any, example_inputs: tuple[Any, ...]) -> Any:
    """Return ``module`` as a TorchScript program, frozen if it is in eval mode.

    Raises:
        TypeError: ``module`` is not a module, function or TorchScript program, or the example inputs to trace it with
            are missing.
    """
    return _freeze(as_torchscript(module, example_inputs))


def as_torchscript(module: Any, example_inputs: tuple[Any, ...]) -> Any:
    """Return ``module`` as a TorchScript program; a plain module or function is traced.

    Raises:
        TypeError: as for :func:`as_frozen_torchscript`.
    """
    if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return module
    if not isinstance(module, torch.nn.Module) and not callable(module):
        raise TypeError(f"compile takes a module, a function or a TorchScript program, got {type(module).__name__}")
    if not example_inputs:
        raise TypeError("compile needs example inputs to trace a plain module or function")
    with torch.no_grad():
        return jit.trace(module, example_inputs)


def _freeze(scripted: Any) -> Any:
    is_module = isinstance(scripted, torch.jit.ScriptModule)
    if is_module and hasattr(scripted, "training") and not scripted.training:
        return jit.freeze(scripted)
    return scripted


@contextmanager
def using(device: devices.Device) -> Iterator[None]:
    """Form groups for ``device`` in programs that are new to PyTorch's executor, until the block ends.

    Calls wait for the compiler in the block.
    """
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
    """Turn torchmdla on for the device in use until the block ends; calls wait for the compiler."""
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
    """Have PyTorch alone optimise programs that are new to its executor, until the block ends.

    These programs stay without groups afterwards.
    """
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
    # The table of an asynchronous device contains one of its options.
    if device is not _device or isinstance(device, devices.Asynchronous):
        torchscript.use_device(device)
        devices.use(device)
        _device = device


specialise.install()
stored_code.install()
_C.add_events_to_profiler()
cache_artifacts.register()
torchscript.watch_loads()
if os.environ.get("TORCHMDLA_ENABLE", "1") not in ("0", ""):
    enable()
