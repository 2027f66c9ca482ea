"""Compare kernels of torchmdla and torch with the machine's limit, for each kind, over shapes that occur in models.

Each case is one op, or a chain that fits one kernel, compiled by torchmdla.compile; weights are parameters. The same
rounds run a loop of fused multiply-adds and a copy of as many bytes (torchmdla/explaining/machine.py), so that a slow
phase of the machine lowers the limit as well. The limit of a case is the longer of two times: its operations at
the speed of the loop, and its bytes at the speed of the copy. Bytes are the required transfers: inputs once, results
once. Percentages are of this limit, by the median of the rounds. A case that computes exponentials or similar functions
may be limited by them instead. With one thread, the clock is its processor time, so that other processes disturb
little.

The exit status is 1 if a result differs from torch's beyond tolerance.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from harness import children, output

from torchmdla.testing import timing

if TYPE_CHECKING:
    from torchmdla.explaining.machine import Multiplier

Row = dict[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """Case of the benchmark: ``build`` makes the module, which is called on random float32 tensors of ``shapes``.

    ``flops`` counts a multiply-add as two, and only those of matrix products and convolutions.
    """

    name: str
    build: Callable[[], Any]
    shapes: tuple[Shape, ...]
    flops: int = 0


def main() -> int:
    options = parse_options()
    # The last case of each kind is the smallest.
    chosen = {kind: list(range(len(some)))[-1 if options.quick else 0 :] for kind, some in cases().items()}
    jobs = [(kind, threads) for threads in options.threads for kind in options.kinds]
    rows: list[Row] = []
    with output.progress(sum(len(chosen[kind]) for kind, _ in jobs), "case") as bar:
        for kind, threads in jobs:
            task = {"kind": kind, "indices": chosen[kind], "threads": threads, "rounds": options.rounds}
            try:
                rows += children.run("kernels:measure", task, {"OMP_NUM_THREADS": str(threads)}, bar.set_postfix_str)
            except children.ChildFailed as failure:
                rows.append({"kind": kind, "threads": threads, "name": "–", "fault": str(failure)})
            bar.update(len(chosen[kind]))
            results = {"benchmark": "kernels", "quick": options.quick, "rounds": options.rounds, "rows": rows}
            output.write_json(options.json, results)
    for threads in options.threads:
        show([row for row in rows if row["threads"] == threads], threads)
    faults = [f"{row['kind']} {row['name']}: {row['fault']}" for row in rows if row["fault"]]
    output.show(*faults)
    return int(bool(faults))


def parse_options() -> argparse.Namespace:
    parser = output.parser(__doc__)
    names = list(KINDS)
    parser.add_argument("--kinds", type=output.one_of(names), default=names, help=f"of {','.join(names)} (all)")
    parser.add_argument("--threads", type=output.numbers, help="of each op, in turn (1,2)")
    parser.add_argument("--rounds", type=output.number, help="timed rounds of each case (7)")
    options = parser.parse_args()
    options.threads = options.threads or ([1] if options.quick else [1, 2])
    options.rounds = options.rounds or (2 if options.quick else 7)
    return options


# --- measuring ---------------------------------------------------------------------------------------------------


def measure(kind: str, indices: Sequence[int], threads: int, rounds: int) -> list[Row]:
    """Return the rows of some cases of one kind, measured in this process."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    rows = []
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder, torch.no_grad():
        os.environ["TORCHMDLA_CACHE_DIR"] = folder
        from torchmdla.explaining.machine import Multiplier

        multiplier = Multiplier(threads)
        for index in indices:
            case = cases()[kind][index]
            children.step(f"{kind} {case.name}, {threads} thread{'s' * (threads > 1)}")
            rows.append({"kind": kind, "threads": threads, **measure_case(case, multiplier, threads, rounds)})
    return rows


def measure_case(case: Case, multiplier: Multiplier, threads: int, rounds: int) -> Row:
    import torch

    import torchmdla
    from torchmdla.explaining.machine import Copier
    from torchmdla.testing.compare import assert_matches
    from torchmdla.testing.coverage import groups

    torch.manual_seed(0)
    module = case.build().eval()
    inputs = tuple(torch.randn(shape) for shape in case.shapes)
    torchmdla.reset_stats()
    compiled: Any = torchmdla.compile(torch.jit.trace(module, inputs, check_trace=False), *inputs)
    expected = module(*inputs)
    try:
        assert_matches(compiled(*inputs), expected)
        fault = None
    except AssertionError as difference:
        fault = str(difference)
    tensors = [*inputs, *module.parameters(), expected]
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    copier = Copier(moved, threads)
    ways: dict[str, timing.Function] = {
        "torch": lambda: module(*inputs),
        "torchmdla": lambda: compiled(*inputs),
        "multiply-adds": multiplier,
        "copy": copier,
    }
    clock = time.thread_time if threads == 1 else time.perf_counter
    times = {name: timing.summary(taken) for name, taken in timing.time_interleaved(ways, rounds, clock=clock).items()}
    peak = multiplier.work / times["multiply-adds"]["median"] / 1e6
    bandwidth = copier.work / times["copy"]["median"] / 1e6
    return {
        "name": case.name,
        "flops": case.flops,
        "bytes": moved,
        "peak_gflops": peak,
        "bandwidth_gbs": bandwidth,
        "limit_ms": max(case.flops / peak, moved / bandwidth) / 1e6,
        "torch": times["torch"],
        "torchmdla": times["torchmdla"],
        "groups": len(groups(compiled.graph_for(*inputs))),
        "fallbacks": torchmdla.stats().fallbacks,
        "fault": fault,
    }


def show(rows: Sequence[Row], threads: int) -> None:
    measured = [row for row in rows if "limit_ms" in row]
    table = output.table(
        f"Kernels, {threads} thread{'s' * (threads > 1)}, medians",
        (
            "kind",
            "case",
            "limit",
            "torch, ms",
            "torchmdla, ms",
            "torch",
            "torchmdla",
            "torch, %",
            "torchmdla, %",
            "gain",
        ),
        "limit, torch, torchmdla: GFLOP/s where multiply-adds are the limit, else GB/s; %: of the limit; gain: torch's "
        "time over torchmdla's;\n∅: no group was formed; ↩: fell back",
    )
    for row in measured:
        ways = [row[name]["median"] for name in ("torch", "torchmdla")]
        computes = row["flops"] / row["peak_gflops"] > row["bytes"] / row["bandwidth_gbs"]
        work = row["flops"] if computes else row["bytes"]
        marks = " ∅" * (not row["groups"]) + " ↩" * bool(row["fallbacks"])
        table.add_row(
            row["kind"],
            row["name"] + marks,
            f"{row['peak_gflops']:.0f} GFLOP/s" if computes else f"{row['bandwidth_gbs']:.0f} GB/s",
            *(output.digits(time) for time in ways),
            *(output.digits(work / time / 1e6) for time in ways),
            *(f"{row['limit_ms'] / time:.0%}" for time in ways),
            f"{ways[0] / ways[1]:.2f}",
        )
    output.show(table, width=160)


# --- the cases ---------------------------------------------------------------------------------------------------


def cases() -> dict[str, list[Case]]:
    """Return all cases by kind."""
    return {kind: list(make()) for kind, make in KINDS.items()}


def matmul() -> Iterator[Case]:
    """Yield products of two activations, then of an activation and a weight with bias: BERT, ViT, an MLP."""
    import torch

    for m, n, k in ((1024, 1024, 1024), (512, 512, 512)):
        yield Case(f"{m}×{k} · {k}×{n}", partial(Of, torch.matmul), ((m, k), (k, n)), 2 * m * n * k)
    for batch, m, n, k in ((12, 128, 128, 64), (12, 128, 64, 128)):
        shapes = ((batch, m, k), (batch, k, n))
        yield Case(f"{batch} of {m}×{k} · {k}×{n}", partial(Of, torch.matmul), shapes, 2 * batch * m * n * k)
    for m, n, k in ((128, 3072, 768), (128, 768, 3072), (197, 2304, 768), (128, 768, 768)):
        yield linear(m, n, k)


def small_m() -> Iterator[Case]:
    """Yield products with few rows, limited by reading the weights: a classifier's head, an LSTM's step, an MLP."""
    for m, n, k in ((1, 4096, 25088), (1, 1000, 2048), (1, 2048, 512), (8, 2048, 512), (32, 2048, 2048)):
        yield linear(m, n, k)


def linear(m: int, n: int, k: int) -> Case:
    from torch import nn

    return Case(f"{m}×{k} → {n}", partial(nn.Linear, k, n), ((m, k),), 2 * m * n * k)


def conv_3x3() -> Iterator[Case]:
    """Yield 3×3 convolutions of ResNet and VGG."""
    for inputs, outputs, side in ((64, 64, 224), (256, 256, 56), (64, 64, 56), (128, 128, 28), (256, 256, 14)):
        yield convolution(inputs, outputs, side, 3)
    yield convolution(512, 512, 7, 3)


def conv_1x1() -> Iterator[Case]:
    """Yield 1×1 convolutions of ResNet-50."""
    for inputs, outputs, side in ((64, 256, 56), (256, 64, 56), (1024, 256, 14), (512, 2048, 7)):
        yield convolution(inputs, outputs, side, 1)


def conv_strided() -> Iterator[Case]:
    """Yield the first layers of ResNet and ViT, and ResNet's downsampling layers."""
    for inputs, outputs, side, kernel, stride in ((3, 64, 224, 7, 2), (3, 768, 224, 16, 16), (128, 128, 56, 3, 2)):
        yield convolution(inputs, outputs, side, kernel, stride, padding=0 if kernel == stride else None)
    yield convolution(256, 512, 28, 1, 2)


def conv_depthwise() -> Iterator[Case]:
    """Yield depthwise convolutions of MobileNet."""
    for channels, side, kernel, stride in ((96, 112, 3, 2), (144, 56, 3, 1), (384, 14, 3, 1), (960, 7, 5, 1)):
        yield convolution(channels, channels, side, kernel, stride, groups=channels)


def convolution(
    inputs: int, outputs: int, side: int, kernel: int, stride: int = 1, groups: int = 1, padding: int | None = None
) -> Case:
    """Return a convolution with bias, on one image.

    The default padding keeps the size, except for the stride.
    """
    from torch import nn

    padding = kernel // 2 if padding is None else padding
    out = (side + 2 * padding - kernel) // stride + 1
    build = partial(nn.Conv2d, inputs, outputs, kernel, stride, padding, groups=groups)
    name = f"{inputs} → {outputs}, {kernel}×{kernel}{f' / {stride}' if stride > 1 else ''}, {side}²"
    flops = 2 * out * out * outputs * (inputs // groups) * kernel * kernel
    return Case(name, build, ((1, inputs, side, side),), flops)


def softmax() -> Iterator[Case]:
    from torch import nn

    for shape in ((4096, 1024), (12, 197, 197), (12, 128, 128)):
        yield Case(shape_text(shape), partial(nn.Softmax, -1), (shape,))


def layer_norm() -> Iterator[Case]:
    from torch import nn

    for shape in ((1024, 4096), (256, 16384), (4096, 1024), (197, 768), (128, 768)):
        yield Case(shape_text(shape), partial(nn.LayerNorm, shape[-1]), (shape,))


def other_norms() -> Iterator[Case]:
    """Yield RMS norm, batch norm in eval mode (not folded into another layer), group and instance norm."""
    from torch import nn

    yield Case(f"RMS, {shape_text((4096, 1024))}", partial(nn.RMSNorm, 1024), ((4096, 1024),))
    modules = {"batch": nn.BatchNorm2d, "group": partial(nn.GroupNorm, 32), "instance": nn.InstanceNorm2d}
    for name, make in modules.items():
        yield Case(f"{name}, {shape_text((4, 256, 56, 56))}", partial(make, 256), ((4, 256, 56, 56),))
    yield Case(f"group, {shape_text((1, 320, 64, 64))}", partial(nn.GroupNorm, 32, 320), ((1, 320, 64, 64),))


def elementwise() -> Iterator[Case]:
    """Yield chains: arithmetic only, one transcendental function, several; and with operands that broadcast."""
    import torch
    from torch.nn import functional

    chains: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
        "relu(x·y + z)": (lambda x, y, z: torch.relu(x * y + z), ((4096, 1024),) * 3),
        "relu(x + y)": (lambda x, y: torch.relu(x + y), ((1, 256, 56, 56),) * 2),
        "x·scale + shift": (lambda x, s, b: x * s + b, ((1, 256, 56, 56), (256, 1, 1), (256, 1, 1))),
        "gelu(x + bias)": (lambda x, b: functional.gelu(x + b), ((128, 3072), (3072,))),
        "x·sigmoid(x)": (lambda x: x * torch.sigmoid(x), ((1, 240, 28, 28),)),
        "tanh(x)·exp(-y²)": (lambda x, y: torch.tanh(x) * torch.exp(-y * y), ((512, 1024),) * 2),
    }
    for name, (function, shapes) in chains.items():
        yield Case(f"{name}, {shape_text(shapes[0])}", partial(Of, function), shapes)


def reduction() -> Iterator[Case]:
    """Yield reductions to one number, as in losses, and argmax: of all elements, of each row and of each column."""
    import torch
    from torch.nn import functional

    functions: dict[str, tuple[Callable[..., Any], int]] = {
        "sum(x²)": (lambda x: (x * x).sum(), 1),
        "mean(|x|)": (lambda x: x.abs().mean(), 1),
        "max(2x)": (lambda x: torch.max(x * 2), 1),
        "mean((x - y)²)": (functional.mse_loss, 2),
    }
    for name, (function, count) in functions.items():
        yield Case(f"{name}, 4096×1024", partial(Of, function), ((4096, 1024),) * count)
    for shape, dim in (((4096, 1024), None), ((8, 524288), 1), ((4096, 1024), 1), ((4096, 1024), 0)):
        largest = partial(lambda dim, x: torch.argmax(x, dim), dim)
        yield Case(f"argmax of {'all' if dim is None else dim}, {shape_text(shape)}", partial(Of, largest), (shape,))


def transpose() -> Iterator[Case]:
    """Yield transposes, each followed by two cheap ops, because a copy alone does not form a group."""
    import torch

    for shape, order in (
        ((4096, 1024), (1, 0)),
        ((4000, 1000), (1, 0)),
        ((1, 128, 12, 64), (0, 2, 1, 3)),
        ((1, 56, 56, 64), (0, 3, 1, 2)),
    ):
        move = partial(lambda order, x: torch.relu(x.permute(order).contiguous() + 1), order)
        yield Case(f"{shape_text(shape)} to {order}", partial(Of, move), (shape,))


def attention() -> Iterator[Case]:
    """Yield attention of BERT and ViT. The work is that of the two products."""
    from torch.nn import functional

    for batch, heads, length, width in ((8, 12, 128, 64), (1, 12, 512, 64), (1, 12, 197, 64), (1, 12, 128, 64)):
        shape = (batch, heads, length, width)
        flops = 4 * batch * heads * length * length * width
        yield Case(shape_text(shape), partial(Of, functional.scaled_dot_product_attention), (shape,) * 3, flops)


def shape_text(shape: Shape) -> str:
    return "×".join(map(str, shape))


def Of(function: Callable[..., Any]) -> Any:  # noqa: N802  (stands for a class of modules)
    """Return a module that computes ``function``."""
    from torch import nn

    module = nn.Module()
    module.forward = function
    return module


KINDS: dict[str, Callable[[], Iterator[Case]]] = {
    "matmul": matmul,
    "small-m": small_m,
    "conv-3x3": conv_3x3,
    "conv-1x1": conv_1x1,
    "conv-strided": conv_strided,
    "conv-depthwise": conv_depthwise,
    "softmax": softmax,
    "layer-norm": layer_norm,
    "other-norms": other_norms,
    "elementwise": elementwise,
    "reduction": reduction,
    "transpose": transpose,
    "attention": attention,
}


if __name__ == "__main__":
    sys.exit(main())
