"""Table of the frontends that run programs: each makes a callable from a module or function and its inputs.

A frontend has variants that capture different graphs (traced, scripted, frozen). A variant supports the programs that
its frontend can represent: tracing records only one branch, and TorchScript's compiler supports only a part of Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import _recursive
from torch.utils._pytree import tree_flatten, tree_unflatten

import torchmdla
from torchmdla import lazy
from torchmdla.capture.fx.function_module import FunctionModule
from torchmdla.capture.script.module import make_function, make_module
from torchmdla.errors import unknown_name
from torchmdla.importer.script_program import program_of, program_of_function
from torchmdla.testing.programs import Program
from torchmdla.testing.programs.program import Mode, is_scriptable

Methods = tuple[str, ...]

# The captured methods of a program, by name ("forward" for a function).
Captured = Mapping[str, Callable[..., Any]]

# Arguments: the module or function, the inputs of a call, and the methods. The inputs may be written to.
Capture = Callable[[Any, tuple[Any, ...], Methods], Captured]


class NotAvailableError(Exception):
    """Error: a frontend, variant or device does not exist, or a package that it needs is not installed."""


@dataclass(frozen=True)
class Variant:
    """Variant of a frontend.

    Attributes:
        capture: makes the callables.
        takes: whether the variant supports a program.
        owns_state: whether the result has its own parameters and buffers, and leaves those of the module unchanged.
        device: PyTorch's device that programs run on; the module and the inputs are moved to it, and results back.
        prepare: registers that device, with torchmdla's device in use as its backend.
        only_for: the only torchmdla device that supports this variant; empty: any.
        alone: makes the callables with PyTorch only. A difference of these from eager is not torchmdla's fault. None:
            ``capture`` itself, which adds nothing while torchmdla is switched off.
        has_memory: whether strides and aliases of tensors on this device are observable.
    """

    capture: Capture
    takes: Callable[[Program, Any], bool]
    owns_state: bool = False
    device: str = "cpu"
    prepare: Callable[[], object] = lambda: None
    only_for: str = ""
    has_memory: bool = True
    alone: Capture | None = None

    @property
    def has_device(self) -> bool:
        """Return whether PyTorch runs programs on another device than the CPU.

        torchmdla cannot be switched off there.
        """
        return self.device != "cpu"


@dataclass(frozen=True)
class Frontend:
    """Frontend with its help text and its variants."""

    help: str
    variants: Mapping[str, Variant]


def eager_methods(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    """Return the methods of a module, or a function, without capture."""
    return {name: getattr(subject, name) if isinstance(subject, nn.Module) else subject for name in methods}


# --- TorchScript -------------------------------------------------------------------------------------------------


def _trace(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    if isinstance(subject, nn.Module):
        traced = torch.jit.trace_module(subject, dict.fromkeys(methods, inputs), check_trace=False, strict=False)
        return _methods(traced, methods)

    def program(*args: Any) -> Any:  # tracing needs a function with a name, which builtins lack
        return subject(*args)

    return {"forward": torch.jit.trace(program, inputs, check_trace=False, strict=False)}


def _script(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    if isinstance(subject, nn.Module):
        return _methods(_script_as_new_type(subject), methods)
    return {"forward": torch.jit.script(_copy_function(subject) if inspect.isfunction(subject) else subject)}


def _script_as_new_type(module: nn.Module) -> Any:
    """Script ``module`` as a new type.

    PyTorch caches types, and their execution plans, by class and attributes.
    """
    _recursive.concrete_type_store = _recursive.ConcreteTypeStore()
    return torch.jit.script(module)


def _copy_function(function: FunctionType) -> FunctionType:
    """Return a copy of the function object.

    PyTorch caches the scripted form of a function object, and its execution plans.
    """
    result = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    result.__kwdefaults__, result.__annotations__ = function.__kwdefaults__, function.__annotations__
    result.__qualname__, result.__module__ = function.__qualname__, function.__module__
    return result


def _freeze(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    preserved = [name for name in methods if name != "forward"]
    return _methods(torch.jit.freeze(_script_as_new_type(subject), preserved_attrs=preserved), methods)


def _run_ir(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    """Run the graphs by torchmdla's own runner of TorchScript's programs."""
    scripted: Any = _script(subject, inputs, methods)
    if isinstance(subject, nn.Module):
        return _methods(make_module(program_of(scripted["forward"])), methods)
    return {"forward": make_function(*program_of_function(scripted["forward"]))}


def _methods(module: Any, methods: Methods) -> Captured:
    return {name: module if name == "forward" else getattr(module, name) for name in methods}


def _is_traceable(program: Program, subject: Any) -> bool:
    is_traced = program.tags.isdisjoint({"chooses", "scripted"})
    return program.takes_tensors_only and bool(program.inputs) and is_traced


def _is_script(program: Program, subject: Any) -> bool:
    return is_scriptable(subject) and "python" not in program.tags


def _is_freezable(program: Program, subject: Any) -> bool:
    is_frozen = isinstance(subject, nn.Module) and not subject.training and program.mode == "inference"
    return is_frozen and _is_script(program, subject)


# --- torch.compile and torch.export ------------------------------------------------------------------------------


def _dynamo(subject: Any, inputs: tuple[Any, ...], methods: Methods, backend: str = "torchmdla") -> Captured:
    torch._dynamo.reset()
    called = eager_methods(subject, inputs, methods)
    return {name: torch.compile(method, backend=backend) for name, method in called.items()}


def _export(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    return {"forward": torchmdla.compile(_as_module(subject), *inputs, frontend="export")}


def _export_without_torchmdla(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    return {"forward": torch.export.export(_as_module(subject), inputs).run_decompositions({}).module()}


def _as_module(subject: Any) -> nn.Module:
    return subject if isinstance(subject, nn.Module) else FunctionModule(subject)


def _is_exportable(program: Program, subject: Any) -> bool:
    is_exported = program.tags.isdisjoint({"chooses", "scripted"})
    return bool(program.inputs) and program.methods == ("forward",) and is_exported


def _is_unscripted(program: Program, subject: Any) -> bool:
    return "scripted" not in program.tags


# --- dispatch capture --------------------------------------------------------------------------------------------


def _dispatch(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    """Return functions over tensors only: they receive the leaves of the inputs and return those of the results."""
    builder = torchmdla.ModuleBuilder()  # type: ignore[attr-defined]
    leaves, _ = tree_flatten(inputs)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    results: dict[str, Any] = {}
    for name, function in eager_methods(subject, inputs, methods).items():
        with builder.capture_function(name, [leaves[index] for index in places]) as building:
            flat, results[name] = tree_flatten(function(*inputs))
            building.returns(flat)
    compiled = builder.compile()

    def calling(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            leaves_of_call = tree_flatten(args)[0]
            returned = compiled[name](*[leaves_of_call[index] for index in places])
            return tree_unflatten(returned if isinstance(returned, list | tuple) else [returned], results[name])

        return call

    return {name: calling(name) for name in methods}


def _is_dispatchable(program: Program, subject: Any) -> bool:
    return program.tags.isdisjoint({"chooses", "scripted"}) and program.mode == "inference"


# --- devices of PyTorch's own -------------------------------------------------------------------------------------


def _initialise_lazy_device() -> None:
    lazy.initialize(torchmdla.devices.in_use())


def _is_dense(program: Program, subject: Any) -> bool:
    return program.tags.isdisjoint({"scripted", "sparse"})


# --- the table ---------------------------------------------------------------------------------------------------

FRONTENDS: Mapping[str, Frontend] = {
    "torchscript": Frontend(
        "torch.jit.trace, torch.jit.script, scripted modules frozen, and torchmdla's own runner",
        {
            "trace": Variant(_trace, _is_traceable),
            "script": Variant(_script, _is_script),
            "freeze": Variant(_freeze, _is_freezable),
            "own": Variant(_run_ir, _is_script, alone=_script),
        },
    ),
    "dynamo": Frontend(
        'torch.compile(…, backend="torchmdla")',
        {"compile": Variant(_dynamo, _is_unscripted, alone=partial(_dynamo, backend="aot_eager"))},
    ),
    "export": Frontend(
        "torchmdla.compile(…, frontend='export')",
        {"export": Variant(_export, _is_exportable, owns_state=True, alone=_export_without_torchmdla)},
    ),
    "dispatch": Frontend("torchmdla.ModuleBuilder", {"capture": Variant(_dispatch, _is_dispatchable)}),
    "lazy": Frontend(
        "PyTorch's Lazy Tensor Core",
        {
            "step": Variant(
                eager_methods, _is_unscripted, device="lazy", prepare=_initialise_lazy_device, has_memory=False
            )
        },
    ),
    "acap": Frontend(
        "the acap device",
        {"device": Variant(eager_methods, _is_dense, device="acap", prepare=torchmdla.acap_device, only_for="cpu")},
    ),
}

# The name that requests, for each program, the first variant that runs a part of it on the device.
AUTOMATIC = "auto"

# Mode of a program → the variants that are tried, in this order. TorchScript captures operators as a program calls
# them, torch.compile those that PyTorch dispatches for them, in backward passes too.
_TRIED: Mapping[Mode, Sequence[str]] = {
    "inference": ("torchscript:trace", "torchscript:script", "dynamo:compile"),
    "gradients": ("dynamo:compile", "torchscript:trace"),
    "training": ("dynamo:compile", "torchscript:script"),
}


def variants_for(mode: Mode) -> list[str]:
    """Return the variants of :data:`AUTOMATIC` for a program of this mode, in the order in which they are tried."""
    return list(_TRIED[mode])


def variant_names(text: str) -> list[str]:
    """Return the variants that ``text`` requests, as ``frontend:variant``; :data:`AUTOMATIC` stands for itself.

    ``text`` lists names of frontends or of variants, separated by commas.

    Raises:
        NotAvailableError: a frontend or variant does not exist.
    """
    if text == AUTOMATIC:
        return [AUTOMATIC]
    names: list[str] = []
    for part in text.split(","):
        frontend, _, variant = part.partition(":")
        if frontend not in FRONTENDS:
            raise NotAvailableError(unknown_name("frontend", frontend, FRONTENDS))
        variants = FRONTENDS[frontend].variants
        if variant and variant not in variants:
            raise NotAvailableError(f"frontend {frontend!r}: {unknown_name('variant', variant, variants)}")
        names += [f"{frontend}:{name}" for name in ([variant] if variant else variants)]
    return list(dict.fromkeys(names))


def variant_of(name: str) -> Variant:
    """Return the variant that a name of :func:`variant_names` specifies."""
    frontend, _, variant = name.partition(":")
    return FRONTENDS[frontend].variants[variant]


def device_options(text: str) -> dict[str, Any]:
    """Parse ``"precision=fixed8,clusters=2"`` to keyword arguments of :func:`torchmdla.enable`; digits become numbers.

    Raises:
        ValueError: the text has another form.
    """
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not name.isidentifier() or not equals:
            raise ValueError(f"{part!r} is not NAME=VALUE")
        options[name] = int(value) if value.isdecimal() else value
    return options


def check_device(name: str, options: str, chosen: Sequence[str]) -> None:
    """Configure the device as jobs on the variants ``chosen`` will.

    Raises:
        NotAvailableError: no such device is registered, it has no such options, or a variant cannot run on it.
    """
    try:
        torchmdla.devices.get(name).configure(**device_options(options))
    except (TypeError, ValueError) as error:
        raise NotAvailableError(str(error)) from None
    refused = [way for way in chosen if way != AUTOMATIC and variant_of(way).only_for not in ("", name)]
    if refused:
        others = [
            frontend
            for frontend in FRONTENDS
            if all(not variant.only_for for variant in FRONTENDS[frontend].variants.values())
        ]
        taken = variant_of(refused[0]).only_for
        raise NotAvailableError(
            f"{', '.join(refused)} compiles for device {taken!r} alone: leave --device {name} out, or take "
            f"other frontends ({', '.join(others)})"
        )
