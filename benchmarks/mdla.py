"""Measure networks on the mdla device: errors and agreement with PyTorch for each number format, cycles for each layer.

The networks are ResNet-18, an AlexNet-like network, a U-Net, and an LSTM with a linear layer, with random weights. They
are reduced unless --full is given. They run on the library in use (by default the emulator, whose cycles are those of
its model of the board). Formats of ``variable`` are chosen from data of the same kind as the inputs. Agreement is the
fraction of rows whose largest element is at the same index as PyTorch's. The exit status is 1 if float32 is not within
tolerance of PyTorch.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from harness import children, output

# Models of torchmdla.testing.models, or defined below.
CASES = ("resnet18", "alexnet", "unet", "lstm_linear")
PRECISIONS = ("fixed16", "fixed8", "variable", "float32")

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(CASES), default=list(CASES), help=f"of {','.join(CASES)} (all)")
    parser.add_argument("--samples", type=output.number, help="inputs that are compared (16)")
    parser.add_argument("--clusters", type=output.number, default=4, help="of the device (%(default)s)")
    parser.add_argument("--full", action="store_true", help="the networks' own sizes, images of 224 by 224")
    parser.add_argument("--layers", action="store_true", help="print the cycles of each layer, too")
    options = parser.parse_args()
    samples = options.samples or (2 if options.quick else 16)
    rows: list[Row] = []
    with (
        output.progress(len(options.models), "model") as bar,
        tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder,
    ):
        for model in options.models:
            bar.set_postfix_str(model)
            task = {"model": model, "full": options.full, "samples": samples, "clusters": options.clusters}
            rows.append(children.run("mdla:measure", task, {"TORCHMDLA_CACHE_DIR": folder}))
            bar.update()
            output.write_json(options.json, {"benchmark": "mdla", "clusters": options.clusters, "rows": rows})
    show(rows, options.layers)
    return int(any(row["differs"] for row in rows))


def measure(model: str, full: bool, samples: int, clusters: int) -> Row:
    """Return the errors by format, and the cycles by layer in ``fixed16``."""
    import torch

    import torchmdla
    from torchmdla.testing.compare import assert_matches

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    module, draw, layers = _subject(model, full)
    inputs = [draw(seed) for seed in range(2 * samples)]
    seen, fresh = inputs[:samples], inputs[samples:]
    torchmdla.enable(device="mdla", clusters=clusters, strict=True)
    torchmdla.mdla.calibrate(module, seen)
    result: Row = {"model": model, "samples": samples, "formats": {}, "differs": ""}
    with torch.no_grad():
        expected = [module(*arguments) for arguments in fresh]
        for precision in PRECISIONS:
            torchmdla.enable(device="mdla", precision=precision, clusters=clusters, strict=True)
            compiled = torchmdla.compile(module, *fresh[0])
            actual = [compiled(*arguments) for arguments in fresh]
            result["formats"][precision] = _errors(actual, expected)
            try:
                if precision == "float32":
                    assert_matches(actual, expected, layers=layers, strides=False)
            except AssertionError as error:
                result["differs"] = str(error)
    result["fallbacks"] = torchmdla.stats().fallbacks
    figures = torchmdla.mdla.report(module, fresh[0], precision="fixed16")
    result["layers"] = [asdict(layer) for layer in figures.layers]
    result.update(cycles=figures.cycles, milliseconds=figures.milliseconds, utilisation=figures.utilisation)
    return result


def _subject(model: str, full: bool) -> tuple[Any, Callable[[int], Any], int]:
    """Return a module in eval mode, a function that draws its inputs, and the number of chained layers that sum."""
    from torchmdla.testing.models import MODELS, ModelSpec, images, sequences

    specs = {
        "alexnet": ModelSpec(lambda: alexnet(1 if full else 8), images, 1, (224 if full else 64,), "image side", 8),
        "lstm_linear": ModelSpec(
            lambda: lstm_linear(256 if full else 32), sequences(64), 1, (32 if full else 8,), "sequence length", 33
        ),
    }
    if model in specs:
        spec = specs[model]
    else:
        spec = MODELS[model] if full else MODELS[model].reduced()
    return spec.build(), lambda seed: spec.inputs(batch=1, seed=seed), spec.layers


def alexnet(divisor: int) -> Any:
    """Return AlexNet (Krizhevsky, 2014, arXiv:1404.5997), with the channels and the hidden units divided."""
    from torch import nn

    widths = [width // divisor for width in (64, 192, 384, 256, 256)]
    hidden = 4096 // divisor
    first, second, third, fourth, fifth = widths
    return nn.Sequential(
        *(nn.Conv2d(3, first, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(second, third, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(third, fourth, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(fourth, fifth, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout()),
        *(nn.Linear(fifth, hidden), nn.ReLU(), nn.Dropout()),
        *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1000 // divisor)),
    )


def lstm_linear(hidden: int) -> Any:
    """Return an LSTM over 64 features, with a linear layer on its last output."""
    import torch
    from torch import nn

    class LstmLinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(64, hidden, batch_first=True)
            self.linear = nn.Linear(hidden, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.linear(self.lstm(x)[0][:, -1])
            return scores

    return LstmLinear()


def _errors(actual: list[Any], expected: list[Any]) -> dict[str, float]:
    import torch

    # In results that are images, the classes are the channels.
    ours, other = (
        torch.cat([result.double().movedim(1, -1).flatten(0, -2) for result in all]) for all in (actual, expected)
    )
    error = (ours - other).abs()
    return {
        "mean": float(error.mean()),
        "maximum": float(error.max()),
        "largest": float(other.abs().max()),
        "agreement": float((ours.argmax(-1) == other.argmax(-1)).double().mean()),
    }


def show(rows: list[Row], with_layers: bool) -> None:
    columns = ("model", "format", "top-1 agreement", "mean error", "max error", "largest value", "cycles", "ms", "used")
    table = output.table("Networks on the mdla device", columns, "cycles, ms and utilisation: one input in fixed16")
    for row in rows:
        for place, (precision, errors_of_format) in enumerate(row["formats"].items()):
            costs = f"{row['cycles']:,}", f"{row['milliseconds']:.3f}", f"{row['utilisation']:.1%}"
            errors = (f"{errors_of_format[name]:.3g}" for name in ("mean", "maximum", "largest"))
            agreement = f"{errors_of_format['agreement']:.1%}"
            table.add_row(
                *("" if place else row["model"], precision, agreement), *errors, *("", "", "") if place else costs
            )
        table.add_section()
    output.show(table)
    for row in rows:
        if row["differs"]:
            output.show(f"{row['model']} in float32: {row['differs']}")
        if row["fallbacks"]:
            output.show(f"{row['model']}: not all on the device: {row['fallbacks']}")
        if with_layers:
            output.show(layer_table(row))


def layer_table(row: Row) -> Any:
    table = output.table(
        f"{row['model']}, layer by layer", ("layer", "operation", "shape", "cycles", "used", "bytes in", "bytes out")
    )
    for layer in row["layers"]:
        counts = f"{layer['cycles']:,}", f"{layer['utilisation']:.1%}"
        moved = f"{layer['bytes_loaded']:,}", f"{layer['bytes_stored']:,}"
        table.add_row(layer["name"], layer["kind"], "x".join(map(str, layer["shape"])), *counts, *moved)
    return table


if __name__ == "__main__":
    sys.exit(main())
