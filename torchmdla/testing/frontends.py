"""The frontends on which programs are run: name → how to make a callable of a module or function and its inputs.

A frontend has variants, ways that end in other graphs (traced, scripted, frozen). A variant takes what its frontend can
hold: tracing fixes what a program chooses, TorchScript's compiler does not read all of Python.
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
from torchmdla.capture.function_module import FunctionModule
from torchmdla.testing.programs import Program
from torchmdla.testing.programs.program import is_scriptable

Methods = tuple[str, ...]

# What a frontend makes: the callables of a program's methods, by name ("forward" for a function).
Captured = Mapping[str, Callable[..., Any]]

# From the module or function, the inputs of a call, and the methods; the inputs may be written to.
Capture = Callable[[Any, tuple[Any, ...], Methods], Captured]


class NotAvailableError(Exception):
    """There is no such frontend, variant or device, or what it needs is not installed."""


@dataclass(frozen=True)
class Variant:
    """One way on a frontend.

    Attributes:
        capture: makes the callables.
        takes: whether a program can go this way at all.
        owns_state: whether the result has parameters and buffers of its own, those of the module left as they were.
        device: PyTorch's device that programs run on, with module and inputs moved there and results moved back.
        prepare: makes that device known, with torchmdla's device in use behind it.
        only_for: the torchmdla device that alone can be behind it; empty: any.
        alone: makes the callables by PyTorch alone. What these do otherwise than eager is not torchmdla's fault. None:
            ``capture`` itself, which adds nothing while torchmdla is switched off.
        has_memory: whether strides, and sharing of memory, are what can be seen of tensors of this device.
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
        """Whether PyTorch runs programs on another device than the CPU. Nothing switches torchmdla off there."""
        return self.device != "cpu"


@dataclass(frozen=True)
class Frontend:
    """A frontend: what it is, and its variants."""

    help: str
    variants: Mapping[str, Variant]


def uncaptured(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    """The methods of a module, or a function, as they are."""
    return {name: getattr(subject, name) if isinstance(subject, nn.Module) else subject for name in methods}


# --- TorchScript -------------------------------------------------------------------------------------------------


def _trace(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    if isinstance(subject, nn.Module):
        traced = torch.jit.trace_module(subject, dict.fromkeys(methods, inputs), check_trace=False, strict=False)
        return _methods(traced, methods)

    def program(*args: Any) -> Any:  # tracing wants a function with a name, which builtins have not
        return subject(*args)

    return {"forward": torch.jit.trace(program, inputs, check_trace=False, strict=False)}


def _script(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    if isinstance(subject, nn.Module):
        return _methods(_scripted_anew(subject), methods)
    return {"forward": torch.jit.script(_copied(subject) if inspect.isfunction(subject) else subject)}


def _scripted_anew(module: nn.Module) -> Any:
    """Script ``module`` as a type of its own: PyTorch keeps types, and their plans of runs, by class and attributes."""
    _recursive.concrete_type_store = _recursive.ConcreteTypeStore()
    return torch.jit.script(module)


def _copied(function: FunctionType) -> FunctionType:
    """The same function as another object: of one object PyTorch keeps what it once scripted, and its plans of runs."""
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__, made.__annotations__ = function.__kwdefaults__, function.__annotations__
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    return made


def _freeze(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    kept = [name for name in methods if name != "forward"]
    return _methods(torch.jit.freeze(_scripted_anew(subject), preserved_attrs=kept), methods)


def _methods(module: Any, methods: Methods) -> Captured:
    return {name: module if name == "forward" else getattr(module, name) for name in methods}


def _traceable(program: Program, subject: Any) -> bool:
    is_traced = program.tags.isdisjoint({"chooses", "scripted"})
    return program.takes_tensors_only and bool(program.inputs) and is_traced


def _scriptable(program: Program, subject: Any) -> bool:
    return is_scriptable(subject) and "python" not in program.tags


def _freezable(program: Program, subject: Any) -> bool:
    is_frozen = isinstance(subject, nn.Module) and not subject.training and program.mode == "inference"
    return is_frozen and _scriptable(program, subject)


# --- torch.compile and torch.export ------------------------------------------------------------------------------


def _dynamo(subject: Any, inputs: tuple[Any, ...], methods: Methods, backend: str = "torchmdla") -> Captured:
    torch._dynamo.reset()
    called = uncaptured(subject, inputs, methods)
    return {name: torch.compile(method, backend=backend) for name, method in called.items()}


def _export(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    return {"forward": torchmdla.compile(_as_module(subject), *inputs, frontend="export")}


def _export_alone(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    return {"forward": torch.export.export(_as_module(subject), inputs).run_decompositions({}).module()}


def _as_module(subject: Any) -> nn.Module:
    return subject if isinstance(subject, nn.Module) else FunctionModule(subject)


def _exportable(program: Program, subject: Any) -> bool:
    is_exported = program.tags.isdisjoint({"chooses", "scripted"})
    return bool(program.inputs) and program.methods == ("forward",) and is_exported


def _anything(program: Program, subject: Any) -> bool:
    return "scripted" not in program.tags


# --- dispatch capture --------------------------------------------------------------------------------------------


def _dispatch(subject: Any, inputs: tuple[Any, ...], methods: Methods) -> Captured:
    """Functions over tensors alone: the leaves of the inputs in, those of the results out."""
    builder = torchmdla.ModuleBuilder()  # type: ignore[attr-defined]
    leaves, _ = tree_flatten(inputs)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    results: dict[str, Any] = {}
    for name, function in uncaptured(subject, inputs, methods).items():
        with builder.capture_function(name, [leaves[index] for index in places]) as building:
            flat, results[name] = tree_flatten(function(*inputs))
            building.returns(flat)
    compiled = builder.compile()

    def calling(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            given = tree_flatten(args)[0]
            made = compiled[name](*[given[index] for index in places])
            return tree_unflatten(made if isinstance(made, list | tuple) else [made], results[name])

        return call

    return {name: calling(name) for name in methods}


def _dispatchable(program: Program, subject: Any) -> bool:
    return program.tags.isdisjoint({"chooses", "scripted"}) and program.mode == "inference"


# --- devices of PyTorch's own -------------------------------------------------------------------------------------


def _lazy_device() -> None:
    lazy.initialize(torchmdla.devices.in_use())


def _dense(program: Program, subject: Any) -> bool:
    return program.tags.isdisjoint({"scripted", "sparse"})


# --- the table ---------------------------------------------------------------------------------------------------

FRONTENDS: Mapping[str, Frontend] = {
    "torchscript": Frontend(
        "torch.jit.trace, torch.jit.script, and scripted modules frozen",
        {
            "trace": Variant(_trace, _traceable),
            "script": Variant(_script, _scriptable),
            "freeze": Variant(_freeze, _freezable),
        },
    ),
    "dynamo": Frontend(
        'torch.compile(…, backend="torchmdla")',
        {"compile": Variant(_dynamo, _anything, alone=partial(_dynamo, backend="aot_eager"))},
    ),
    "export": Frontend(
        "torchmdla.compile(…, frontend='export')",
        {"export": Variant(_export, _exportable, owns_state=True, alone=_export_alone)},
    ),
    "dispatch": Frontend("torchmdla.ModuleBuilder", {"capture": Variant(_dispatch, _dispatchable)}),
    "lazy": Frontend(
        "PyTorch's Lazy Tensor Core",
        {"step": Variant(uncaptured, _anything, device="lazy", prepare=_lazy_device, has_memory=False)},
    ),
    "acap": Frontend(
        "the acap device",
        {"device": Variant(uncaptured, _dense, device="acap", prepare=torchmdla.acap_device, only_for="cpu")},
    ),
}


def ways(text: str) -> list[str]:
    """The ways that ``text`` asks for, as ``frontend:variant``: names of frontends or of ways, between commas.

    Raises:
        NotAvailableError: there is no such frontend or variant.
    """
    found: list[str] = []
    for part in text.split(","):
        frontend, _, variant = part.partition(":")
        if frontend not in FRONTENDS:
            raise NotAvailableError(f"no frontend {frontend!r}; there are {', '.join(FRONTENDS)}")
        variants = FRONTENDS[frontend].variants
        if variant and variant not in variants:
            raise NotAvailableError(f"frontend {frontend!r} has no variant {variant!r}; it has {', '.join(variants)}")
        found += [f"{frontend}:{name}" for name in ([variant] if variant else variants)]
    return list(dict.fromkeys(found))


def variant_of(way: str) -> Variant:
    """The variant that a way of :func:`ways` names."""
    frontend, _, variant = way.partition(":")
    return FRONTENDS[frontend].variants[variant]


def device_options(text: str) -> dict[str, Any]:
    """``"precision=fixed8,clusters=2"`` as keywords of :func:`torchmdla.enable`; digits are numbers.

    Raises:
        ValueError: not of this form.
    """
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not name.isidentifier() or not equals:
            raise ValueError(f"{part!r} is not NAME=VALUE")
        found[name] = int(value) if value.isdecimal() else value
    return found


def check_device(name: str, options: str, chosen: Sequence[str]) -> None:
    """Configures the device as jobs on the ways ``chosen`` will.

    Raises:
        NotAvailableError: no such device is registered, it has no such options, or a way cannot run on it.
    """
    try:
        torchmdla.devices.get(name).configure(**device_options(options))
    except (TypeError, ValueError) as error:
        raise NotAvailableError(str(error)) from None
    refused = [way for way in chosen if variant_of(way).only_for not in ("", name)]
    if refused:
        others = [
            frontend for frontend in FRONTENDS if all(not one.only_for for one in FRONTENDS[frontend].variants.values())
        ]
        taken = variant_of(refused[0]).only_for
        raise NotAvailableError(
            f"{', '.join(refused)} compiles for device {taken!r} alone: leave --device {name} out, or take "
            f"other frontends ({', '.join(others)})"
        )
