"""Help around the mdla device: number formats from data, errors and cycles layer by layer, compiled programs in files.

The functions take the library and the options that :func:`torchmdla.enable` was given for ``device="mdla"`` (the
emulator and the library's defaults where it was not); keywords replace single ones. They look at a copy of the model,
whose groups are the same as those that run, and change nothing in the caller's.
"""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from tqdm import tqdm

from torchmdla import api, devices
from torchmdla.devices.mdla import calibration
from torchmdla.devices.mdla.measuring import FLOAT, Layer, Networks, figures
from torchmdla.devices.mdla.network import Network
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.program_file import DamagedProgram, ProgramFile
from torchmdla.devices.mdla.recording import Call, Group, recording

__all__ = [
    "Calibration",
    "Comparison",
    "DamagedProgram",
    "LayerError",
    "LayerFormat",
    "LayerReport",
    "LoadedProgram",
    "Report",
    "calibrate",
    "compare",
    "load",
    "report",
    "save",
]

# What a graph may hold beside the group of a program that is saved: nothing of it computes.
_NO_WORK = frozenset({"prim::Constant", "prim::GetAttr", "prim::TupleConstruct", "prim::ListConstruct"})


class _Printed:
    """Prints as its table, on a terminal and as text."""

    def table(self) -> Table:
        raise NotImplementedError

    def __rich__(self) -> Table:
        return self.table()

    def _text(self) -> str:
        out = io.StringIO()
        Console(file=out, width=120).print(self.table())
        return out.getvalue()


# --- formats -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerFormat:
    """The number format of a layer's results: ``fraction`` bits of ``8 * element_bytes`` are behind the point."""

    name: str
    kind: str
    shape: tuple[int, ...]
    element_bytes: int
    fraction: int


@dataclass(frozen=True)
class Calibration(_Printed):
    """The formats that the library chose.

    Attributes:
        samples: calls of groups that they were chosen from.
        layers: the layers of all groups, in the order in which they run.
    """

    samples: int
    layers: tuple[LayerFormat, ...]

    def table(self) -> Table:
        """Layer by layer."""
        made = _table(f"Number formats from {self.samples} samples", "layer", "operation", "shape", "bits", "fraction")
        for layer in self.layers:
            bits = str(8 * layer.element_bytes)
            made.add_row(layer.name, layer.kind, _sizes(layer.shape), bits, str(layer.fraction))
        return made

    def __str__(self) -> str:
        return self._text()


def calibrate(model: Any, data: Iterable[Any], *, batches: int | None = None, **options: Any) -> Calibration:
    """Chooses the formats of ``precision="variable"`` by what a model computes from ``data``.

    The inputs of its groups are kept in this process, copied, for all later compilations of these groups with that
    precision; formats hold for inputs of the sizes that they were chosen with, so the batches need the size that the
    model is run with. Calibrating again adds to what is there.

    Args:
        model: ``nn.Module`` in eval mode, function, or TorchScript program, as :func:`torchmdla.compile` takes it.
        data: a ``DataLoader`` or other iterable of batches: a float32 tensor, or a tuple or list of a call's arguments
            of which those that the model does not take (labels) are left out.
        batches: take no more than so many.
        **options: options of the device that are to be others than those in use.

    Returns:
        The formats of each layer.

    Raises:
        ValueError: there is no batch, or the model has nothing that the device computes.
        TypeError: not a model, or no such option.
        DeviceError: the library fails.
    """
    chosen = replace(_options(options), precision="variable")
    groups: dict[tuple[str, bytes], Group] = {}
    samples = 0
    with Networks(FLOAT) as networks, recording(networks.run) as recorder, torch.no_grad():
        scripted = None
        for inputs in _batches(model, data, batches):
            if scripted is None:
                scripted = _copy(model, inputs)
            calls = recorder.calls_of(scripted, inputs)[1]
            for call in calls:
                calibration.add_sample(call.group.program.model_key, call.inputs)
                groups[call.group.program.model_key, call.group.model] = call.group
            samples += len(calls)
    if scripted is None:
        raise ValueError("there is nothing to calibrate with: no batches")
    _check_any(groups)
    layers: list[LayerFormat] = []
    with Networks(chosen) as networks:
        for group in tqdm(groups.values(), desc="torchmdla: choosing formats", unit="group", disable=None, leave=False):
            layers += [_format(figure) for figure in figures(networks.network(group))]
    return Calibration(samples, tuple(layers))


def _batches(model: Any, data: Iterable[Any], batches: int | None) -> Iterable[tuple[Any, ...]]:
    taken = _positions(model)
    bar = tqdm(data, desc="torchmdla: calibrating", unit="batch", disable=None, leave=False)
    for number, batch in enumerate(bar):
        if number == batches:
            return
        yield _arguments(batch)[:taken]


def _positions(model: Any) -> int | None:
    """How many positional arguments a model takes at the most; None for any number."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        function: Any = model.forward if isinstance(model, torch.jit.ScriptModule) else model
        return len(function.schema.arguments) - isinstance(model, torch.jit.ScriptModule)
    parameters = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters
    )


def _format(figure: dict[str, Any]) -> LayerFormat:
    return LayerFormat(
        figure["name"], figure["type"], tuple(figure["shape"]), figure["element_bytes"], figure["fraction"]
    )


# --- errors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerError:
    """Absolute errors of a layer's results, and the largest magnitude that float has there."""

    name: str
    kind: str
    shape: tuple[int, ...]
    mean: float
    maximum: float
    largest: float


@dataclass(frozen=True)
class Comparison(_Printed):
    """Errors of a model on the device. All are absolute.

    Attributes:
        mean, maximum: of the results against PyTorch's, over all elements.
        largest: the largest magnitude in PyTorch's results.
        agreement: the part of the rows of the results (along the last dimension) whose largest element is where
            PyTorch's is: of a classifier, top-1 agreement.
        layers: of each layer against the same layers in float32, in the order in which they run. They include what
            comes from the layers before.
    """

    mean: float
    maximum: float
    largest: float
    agreement: float
    layers: tuple[LayerError, ...]

    def table(self) -> Table:
        """Layer by layer."""
        made = _table("Errors against float", "layer", "operation", "shape", "mean", "maximum", "largest value")
        for layer in self.layers:
            errors = (f"{number:.3g}" for number in (layer.mean, layer.maximum, layer.largest))
            made.add_row(layer.name, layer.kind, _sizes(layer.shape), *errors)
        made.caption = str(self)
        return made

    def __str__(self) -> str:
        return f"Mean/max error compared to pytorch are {self.mean:.6g} {self.maximum:.6g}"


def compare(model: Any, inputs: Any, **options: Any) -> Comparison:
    """Runs a model on the device and in float, and tells how far each layer and the results are apart.

    Layers are the nodes of the groups' ONNX models, a batch norm being part of the layer that it was folded into. Their
    results are read from a second binary, which has them as outputs. What they are compared with is the emulator's
    float32; the results of the model are compared with PyTorch's.

    Args:
        model: as for :func:`calibrate`.
        inputs: a tensor, or a tuple or list of a call's arguments.
        **options: options of the device that are to be others than those in use.

    Raises:
        ValueError: the model has nothing that the device computes, or no floating-point results.
        TypeError: not a model, or no such option.
        DeviceError: the library fails.
    """
    given = _arguments(inputs)
    with torch.no_grad():
        made, layers = _run_in_layers(model, given, _options(options))
        _, float_layers = _run_in_layers(model, given, FLOAT)
        with api.enabled(False):
            expected = model(*given)
    errors = [_layer_error(one, other) for one, other in zip(layers, float_layers, strict=True)]
    pairs = [
        (one.double(), other.double())
        for one, other in zip(pytree.tree_leaves(made), pytree.tree_leaves(expected), strict=True)
        if isinstance(other, Tensor) and other.is_floating_point() and other.numel()
    ]
    if not pairs:
        raise ValueError("the model has no floating-point results to compare")
    distance = torch.cat([(one - other).abs().flatten() for one, other in pairs])
    same = torch.cat([_same_place(one, other) for one, other in pairs])
    return Comparison(
        float(distance.mean()),
        float(distance.max()),
        max(float(other.abs().max()) for _, other in pairs),
        float(same.double().mean()),
        tuple(errors),
    )


def _same_place(one: Tensor, other: Tensor) -> Tensor:
    """Row by row, whether the largest element is at the same place."""
    places = [torch.atleast_1d(tensor).argmax(-1).flatten() for tensor in (one, other)]
    return torch.eq(places[0], places[1])


def _run_in_layers(model: Any, inputs: Sequence[Any], options: Options) -> tuple[Any, list[Layer]]:
    """The results, computed with ``options``, and those of each layer."""
    with Networks(options) as networks:
        results, calls = _recorded(model, inputs, networks.run)
        return results, [layer for call in calls for layer in networks.layers(call.group, call.inputs)]


def _recorded(model: Any, inputs: Sequence[Any], run: Callable[..., Any]) -> tuple[Any, list[Call]]:
    with recording(run) as recorder, torch.no_grad():
        results, calls = recorder.calls_of(_copy(model, inputs), inputs)
    _check_any(calls)
    return results, calls


def _layer_error(made: Layer, expected: Layer) -> LayerError:
    error = np.abs(made.value.astype(np.float64) - expected.value)
    largest = float(np.abs(expected.value).max())
    return LayerError(made.name, made.kind, made.value.shape, float(error.mean()), float(error.max()), largest)


# --- figures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerReport:
    """What a layer costs: clock ``cycles``, multiply-accumulates, the ``utilisation`` of all of the device's
    multipliers (0 to 1), bytes from and to the device's memory, and ``milliseconds``."""

    name: str
    kind: str
    shape: tuple[int, ...]
    cycles: int
    macs: int
    utilisation: float
    bytes_loaded: int
    bytes_stored: int
    milliseconds: float
    clusters: int


@dataclass(frozen=True)
class Report(_Printed):
    """The layers in the order in which they run. Sums are over all of them."""

    layers: tuple[LayerReport, ...]

    @property
    def cycles(self) -> int:
        return sum(layer.cycles for layer in self.layers)

    @property
    def milliseconds(self) -> float:
        return sum(layer.milliseconds for layer in self.layers)

    @property
    def utilisation(self) -> float:
        """The mean over the cycles."""
        return sum(layer.utilisation * layer.cycles for layer in self.layers) / (self.cycles or 1)

    def table(self) -> Table:
        """Layer by layer, with the sums."""
        names = "layer", "operation", "shape", "cycles", "MACs", "utilisation", "bytes in", "bytes out", "ms"
        made = _table("Layers on the device", *names)
        for layer in self.layers:
            made.add_row(layer.name, layer.kind, _sizes(layer.shape), *_costs(layer))
        made.add_section()
        macs, loaded, stored = (
            sum(getattr(layer, name) for layer in self.layers) for name in ("macs", "bytes_loaded", "bytes_stored")
        )
        whole = self.cycles, macs, self.utilisation, loaded, stored, self.milliseconds
        made.add_row("total", "", "", *_costs(LayerReport("total", "", (), *whole, clusters=0)))
        return made

    def __str__(self) -> str:
        return self._text()


def report(model: Any, inputs: Any, **options: Any) -> Report:
    """What each layer of a model costs on the device, by the library's own count (of the emulator: its model of the
    board). What runs in PyTorch's interpreter is not in it.

    Args:
        model, inputs, **options: as for :func:`compare`.

    Raises:
        ValueError: the model has nothing that the device computes.
        TypeError: not a model, or no such option.
        DeviceError: the library fails, or does not tell figures.
    """
    with Networks(_options(options)) as networks:
        _, calls = _recorded(model, _arguments(inputs), networks.run)
        return Report(tuple(layer for call in calls for layer in _report_of(networks.network(call.group))))


def _report_of(network: Network) -> list[LayerReport]:
    return [
        LayerReport(
            figure["name"],
            figure["type"],
            tuple(figure["shape"]),
            figure["cycles"],
            figure["macs"],
            figure["utilisation"],
            figure["bytes_loaded"],
            figure["bytes_stored"],
            figure["milliseconds"],
            figure["clusters"],
        )
        for figure in figures(network)
    ]


def _costs(layer: LayerReport) -> list[str]:
    counts = f"{layer.cycles:,}", f"{layer.macs:,}", f"{layer.utilisation:.1%}"
    return [*counts, f"{layer.bytes_loaded:,}", f"{layer.bytes_stored:,}", f"{layer.milliseconds:.4f}"]


# --- files -------------------------------------------------------------------------------------------------------


def save(model: Any, inputs: Any, path: str | os.PathLike[str], **options: Any) -> None:
    """Compiles a model for the device and keeps the program with its weights in a file.

    Args:
        model: as for :func:`calibrate`; all of it must be one group, for inputs of these sizes.
        inputs: a float32 tensor, or a tuple or list of them.
        path: of the file; one that is there is replaced at the end.
        **options: options of the device that are to be others than those in use. They are kept, but for the library.

    Raises:
        ValueError: something of the model is computed outside of the device, or is no tensor.
        TypeError: not a model, or no such option.
        DeviceError: the library fails.
        OSError: the file cannot be written.
    """
    given = _separate(_arguments(inputs))
    chosen = _options(options)
    with Networks(chosen) as networks, recording(networks.run) as recorder, torch.no_grad():
        scripted = _copy(model, given)
        results, calls = recorder.calls_of(scripted, given)
        call = _only_call(scripted, given, calls)
        leaves, structure = pytree.tree_flatten(results)
        addresses = {leaf.data_ptr() if isinstance(leaf, Tensor) else None for leaf in leaves}
        if not addresses <= set(call.output_addresses) or not all(leaf.is_contiguous() for leaf in leaves):
            raise ValueError("a result of the model is not a dense tensor that the device computes")
        pointers = [tensor.data_ptr() for tensor in given]
        if not set(call.input_addresses) <= set(pointers):
            raise ValueError("the device gets something else than the model's inputs")
        flags = {name: value for name, value in asdict(chosen).items() if value is not None and name != "library"}
        file = ProgramFile(
            networks.binary(call.group),
            tuple(tuple(tensor.shape) for tensor in given),
            tuple(pointers.index(address) for address in call.input_addresses),
            tuple(array.shape for array in call.outputs),
            tuple(call.output_addresses.index(leaf.data_ptr()) for leaf in leaves),
            pytree.treespec_dumps(structure),
            flags,
        )
    _write(Path(path), file.to_bytes())


def _separate(inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    """Dense copies, so that each is known by its address."""
    if not inputs or not all(isinstance(leaf, Tensor) and leaf.dtype == torch.float32 for leaf in inputs):
        raise ValueError("a program in a file takes float32 tensors and nothing else")
    return tuple(tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in inputs)


def _only_call(scripted: Any, inputs: Sequence[Any], calls: Sequence[Call]) -> Call:
    nodes = [node.kind() for node in scripted.graph_for(*inputs).nodes()]
    outside = sorted({kind for kind in nodes if kind not in _NO_WORK and "CompilationGroup" not in kind})
    if outside or len(calls) != 1:
        what = f"outside of the device: {', '.join(outside)}" if outside else f"{len(calls)} groups on the device"
        raise ValueError(f"the model is not one group: there is {what}")
    return calls[0]


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class LoadedProgram:
    """A compiled program on the device. Any thread may call it; :meth:`close` it, or use it in a ``with`` statement.

    Attributes:
        input_shapes: shapes of the arguments.
    """

    def __init__(self, file: ProgramFile, options: Options) -> None:
        self.input_shapes = file.inputs
        self._file = file
        self._structure = pytree.treespec_loads(file.structure)
        self._network = Network(file.binary, [file.inputs[place] for place in file.used], file.outputs, options)

    def __call__(self, *inputs: Any) -> Any:
        """The model's results, as float32 tensors in the model's own structure.

        Args:
            inputs: CPU tensors or arrays of :attr:`input_shapes`, float32 or what can be made so.

        Raises:
            ValueError: other shapes, or not as many.
            DeviceError: the library reported an error.
        """
        arrays = [np.asarray(one.detach() if isinstance(one, Tensor) else one, dtype=np.float32) for one in inputs]
        shapes = tuple(array.shape for array in arrays)
        if shapes != self.input_shapes:
            raise ValueError(f"inputs of shapes {list(self.input_shapes)} are needed, got {list(shapes)}")
        made = self._network.run(*(arrays[place] for place in self._file.used))
        return pytree.tree_unflatten([torch.from_numpy(made[place]) for place in self._file.results], self._structure)

    def report(self) -> Report:
        """As :func:`report`.

        Raises:
            DeviceError: the library does not tell figures.
        """
        return Report(tuple(_report_of(self._network)))

    def close(self) -> None:
        """Takes the program off the device. More than once is harmless."""
        self._network.close()

    def __enter__(self) -> LoadedProgram:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def load(path: str | os.PathLike[str], *, library: str | os.PathLike[str] | None = None) -> LoadedProgram:
    """The program of a file that :func:`save` wrote, on the device. No PyTorch model is needed, and no ONNX.

    Args:
        path: of the file.
        library: the library to run it with, instead of the one in use.

    Raises:
        DamagedProgram: the file holds no program, another version's, or one that was altered. Nothing of it has run.
        DeviceError: the library is not usable, or refuses the program.
        OSError: the file cannot be read.
    """
    file = ProgramFile.from_bytes(Path(path).read_bytes())
    used = _options({"library": library}).library
    return LoadedProgram(file, Options.of({**file.options, "library": used}))


# --- what they share ---------------------------------------------------------------------------------------------


def _options(changes: dict[str, Any]) -> Options:
    """Those in use with ``changes``, checked, and the path of the library that is meant."""
    in_use = asdict(Options.from_text(devices.get("mdla").target().features))
    return Options.of({**in_use, **{name: value for name, value in changes.items() if value is not None}}).located()


def _arguments(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _copy(model: Any, inputs: Sequence[Any]) -> Any:
    """A TorchScript program of the model that PyTorch's executor has not seen."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        kept = io.BytesIO()
        torch.jit.save(model, kept)
        kept.seek(0)
        model = torch.jit.load(kept)
    return api.ready(model, tuple(inputs))


def _check_any(found: Iterable[Any]) -> None:
    if not any(True for _ in found):
        raise ValueError("the device computes nothing of this model")


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _table(title: str, *names: str) -> Table:
    made = Table(title=title)
    for place, name in enumerate(names):
        made.add_column(name, justify="left" if place < 3 else "right", overflow="fold")
    return made
