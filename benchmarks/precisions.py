"""Measure precisions: the accuracy that a small trained model loses with each, and its time.

Trains a convolutional network on scikit-learn's digits (1797 images of 8 × 8 pixels, a quarter of them for testing),
from a fixed seed. Then classifies the test images in each precision that PyTorch has switches for. Errors are root mean
squares of the logits' difference from the same model in float64, relative to its logits. Agreement is the fraction of
the test images with the class of float64. The table also shows times of a call, in turn, on one thread.

The exit status is 1 if torchmdla's results differ from eager's beyond the tolerance of the precision, or fall back.
Needs scikit-learn: pip install torchmdla[examples].
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness import children, output

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--epochs", type=output.number, metavar="NUMBER", help="of training (20)")
    parser.add_argument("--rounds", type=output.number, metavar="NUMBER", help="timed rounds of each way (9)")
    options = parser.parse_args()
    if importlib.util.find_spec("sklearn") is None:
        parser.error("this needs scikit-learn: pip install torchmdla[examples]")
    output.fill_in(options, {False: {"epochs": 20, "rounds": 9}, True: {"epochs": 2, "rounds": 2}})
    task = {"epochs": options.epochs, "rounds": options.rounds}
    with output.progress(1, "model") as bar:
        results = children.run("precisions:measure", task, {"OMP_NUM_THREADS": "1"}, bar.set_postfix_str)
        bar.update()
    output.write_json(options.json, {"benchmark": "precisions", "quick": options.quick, **results})
    show(results)
    faults = [f"{row['precision']}: {fault}" for row in results["rows"] for fault in row["faults"]]
    output.show(*faults)
    return int(bool(faults))


def measure(epochs: int, rounds: int) -> Row:
    """Measure all rows in this process."""
    import torch
    from harness.accuracy import exact_results, relative_rms

    import torchmdla
    from torchmdla.testing import timing

    torch.set_num_threads(1)
    images, labels, others, wanted = digits()
    children.step("training")
    model = train(images, labels, epochs)
    rows: list[Row] = []
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    with torch.no_grad():
        exact = exact_results(model, [others])
        classes = exact[0].argmax(1)
        for name, precision in precisions().items():
            children.step(name)
            torchmdla.reset_stats()
            row: Row = {"precision": name, "ways": {}, "faults": []}
            results = {}
            for way in ("eager", "torchmdla"):
                calls[name, way] = prepare(model, others, precision, way)
                results[way] = [calls[name, way]().float() for _ in range(4)][-1]
                row["ways"][way] = {
                    "error": relative_rms([results[way]], exact),
                    "agreement": float((results[way].argmax(1) == classes).double().mean()),
                    "accuracy": float((results[way].argmax(1) == wanted).double().mean()),
                }
            row["faults"] = [*differences(results, precision), *torchmdla.stats().fallbacks]
            rows.append(row)
        times = timing.time_interleaved(calls, rounds, on_round=lambda i: children.step(f"round {i + 1} of {rounds}"))
    for row in rows:
        for way, figures in row["ways"].items():
            figures |= timing.summary(times[row["precision"], way])
    return {"rows": rows, "images": len(others)}


# --- the model -----------------------------------------------------------------------------------------------------


def digits() -> tuple[Any, Any, Any, Any]:
    """Return images and labels for training, and for testing."""
    import torch
    from sklearn.datasets import load_digits

    content = load_digits()
    images = torch.tensor(content.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(content.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 4], order[len(order) // 4 :]
    return images[train], labels[train], images[test], labels[test]


def train(images: Any, labels: Any, epochs: int) -> Any:
    """Return a trained network of two convolutions and two linear layers."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(images)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
            optimiser.step()
    return model.eval()


# --- precisions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """Precision of a model.

    Attributes:
        dtype: the dtype of the model and its inputs.
        tolerance: the number format whose tolerance applies to results.
        autocast: the dtype of autocast around a call.
        products: whether products of float32 are computed in bfloat16.
        quantised: the quantisation engine for FX.
    """

    dtype: Any
    tolerance: str | None = None
    autocast: Any = None
    products: bool = False
    quantised: str = ""

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        import torch

        # The function behind torch.backends.mkldnn.fp32_precision.
        torch._C._set_fp32_precision_setter("mkldnn", "all", "bf16" if self.products else "none")
        with torch.autocast("cpu", self.autocast) if self.autocast else contextlib.nullcontext():
            yield
        torch._C._set_fp32_precision_setter("mkldnn", "all", "none")


def precisions() -> Mapping[str, Precision]:
    """Return precisions by the PyTorch switch that selects them."""
    import torch

    return {
        "float32": Precision(torch.float32),
        'fp32_precision = "bf16"': Precision(torch.float32, "bfloat16", products=True),
        "autocast, bfloat16": Precision(torch.float32, "bfloat16", autocast=torch.bfloat16),
        "model.bfloat16()": Precision(torch.bfloat16, "bfloat16"),
        "autocast, float16": Precision(torch.float32, "bfloat16", autocast=torch.float16),
        "model.half()": Precision(torch.float16, "bfloat16"),
        "int8, by FX": Precision(torch.float32, quantised="x86"),
        "int8, by FX, for qnnpack": Precision(torch.float32, quantised="qnnpack"),
    }


def prepare(model: Any, images: Any, precision: Precision, way: str) -> Callable[[], Any]:
    """Return a call of the model in a precision, with eager or torchmdla."""
    import torch

    import torchmdla

    copied = copy.deepcopy(model).to(precision.dtype)
    if precision.quantised:
        copied = quantise(copied, images, precision.quantised)
    arguments = images.to(precision.dtype)
    if way == "torchmdla":
        torchmdla.enable()
        copied = torch.jit.freeze(torch.jit.trace(copied, arguments, check_trace=False))

    def call() -> Any:
        with precision.active():
            return copied(arguments)

    return call


def quantise(model: Any, images: Any, engine: str) -> Any:
    """Return the model in 8-bit integers, calibrated by the images."""
    import torch
    from torch.ao import quantization
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    torch.backends.quantized.engine = engine
    observed = prepare_fx(model, quantization.get_default_qconfig_mapping(engine), (images,))
    observed(images)
    return convert_fx(observed)


# Maximum difference of quantised results, relative to their root mean square: caused by rounding of ties.
_QUANTISED = 0.02


def differences(results: Mapping[str, Any], precision: Precision) -> list[str]:
    """Return the differences of torchmdla's results from eager's beyond tolerance."""
    from harness.accuracy import relative_rms

    from torchmdla.testing.compare import assert_matches

    if precision.quantised:
        error = relative_rms([results["torchmdla"]], [results["eager"]])
        return [f"differs by {error:.2g}"] if not error <= _QUANTISED else []
    try:
        assert_matches(results["torchmdla"], results["eager"], layers=4, precision=precision.tolerance)
    except AssertionError as difference:
        return [str(difference)]
    return []


def show(results: Row) -> None:
    table = output.table(
        f"{results['images']} digits: ms for all of them, least / median, one thread",
        ("precision", "eager", "torchmdla", "error", "agreement"),
        "error and agreement: of eager's and of torchmdla's logits and classes with those of float64",
    )
    for row in results["rows"]:
        ways = row["ways"].values()
        errors = " / ".join(f"{way['error']:.1e}" for way in ways)
        agreement = " / ".join(f"{way['agreement']:.1%}" for way in ways)
        table.add_row(row["precision"], *map(output.pair, ways), errors, agreement)
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
