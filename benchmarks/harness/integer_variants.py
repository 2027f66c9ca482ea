"""Variants of a model in 8-bit integers, each quantised by the tools of its engine.

Activations are quantised per tensor, by the values of the timed inputs, and weights per channel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchmdla
from harness.peers import (
    Inputs,
    Prepared,
    Subject,
    Variant,
    _from_arrays,
    _torch,
    make_once,
    onnx_session,
    prepare_onnx,
)


@dataclass
class Quantised(Subject):
    """Model to prepare in integers."""

    @cached_property
    def exported(self) -> Any:
        """Return the model quantised by torchao's PT2E, as a module of PyTorch's quantise and dequantise."""
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
        prepared = prepare_pt2e(torch.export.export(self.module, self.inputs).module(), quantizer)
        prepared(*self.inputs)
        return convert_pt2e(prepared)

    @cached_property
    def quantised(self) -> nn.Module:
        """Return the model quantised by FX, of PyTorch's quantised operators.

        If FX cannot trace the model, its linear layers are quantised dynamically, in each call.
        """
        from torch.ao import quantization
        from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

        torch.backends.quantized.engine = "x86"
        try:
            prepared = prepare_fx(self.module, quantization.get_default_qconfig_mapping("x86"), self.inputs)
            prepared(*self.inputs)
            result: nn.Module = convert_fx(prepared)
        except (torch.fx.proxy.TraceError, TypeError):
            result = quantization.quantize_dynamic(self.module, {nn.Linear}, dtype=torch.qint8)
        return result

    def scripted(self) -> Any:
        """Return the quantised model as new TorchScript for each caller, because execution plans keep their groups."""
        return torch.jit.freeze(torch.jit.trace(self.quantised, self.inputs, check_trace=False))

    @cached_property
    def quantised_onnx(self) -> Path:
        """Return the model quantised by ONNX Runtime, as pairs of quantise and dequantise."""
        from onnxruntime import quantization

        def quantise(folder: Path) -> None:
            names = [entry.name for entry in onnx_session(self.onnx, 1).get_inputs()]
            feeds = iter([dict(zip(names, (tensor.numpy() for tensor in self.inputs), strict=True)), None])

            class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
                def get_next(self) -> Any:
                    return next(feeds)

            types = {"activation_type": quantization.QuantType.QUInt8, "weight_type": quantization.QuantType.QInt8}
            form = quantization.QuantFormat.QDQ
            quantization.quantize_static(
                str(self.onnx), str(folder / "model.onnx"), Reader(), quant_format=form, per_channel=True, **types
            )

        return make_once(self.folder / "quantised", quantise) / "model.onnx"


def _onnx_runtime(subject: Any) -> Prepared:
    return prepare_onnx(subject.quantised_onnx, subject.threads)


def _openvino(subject: Any) -> Prepared:
    import nncf
    import openvino

    nncf.set_log_level(logging.ERROR)
    feed = tuple(tensor.numpy() for tensor in subject.inputs)
    data = nncf.Dataset([feed[0] if len(feed) == 1 else feed])
    kind = None if subject.inputs[0].is_floating_point() else nncf.ModelType.TRANSFORMER
    model = openvino.convert_model(subject.module, example_input=subject.inputs)
    model = nncf.quantize(model, data, subset_size=1, model_type=kind)
    properties = {
        "INFERENCE_NUM_THREADS": subject.threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(model, "CPU", properties)

    def bind(inputs: Inputs) -> Callable[[], Any]:
        arrays = [tensor.numpy() for tensor in inputs]
        return lambda: compiled(arrays, share_inputs=True, share_outputs=True)

    return Prepared(bind, lambda results: _from_arrays([results[output] for output in compiled.outputs]))


def _inductor(subject: Any) -> Prepared:
    from torch._inductor import config

    config.freezing = True
    return _torch(torch.compile(subject.exported), subject)


def _script(subject: Any) -> Prepared:
    return _torch(subject.scripted(), subject)


def _torchmdla(subject: Any) -> Prepared:
    torchmdla.enable()
    compiled = torchmdla.compile(torch.export.export(subject.exported, subject.inputs), *subject.inputs)
    return _torch(compiled, subject)


def _torchmdla_script(subject: Any) -> Prepared:
    torchmdla.enable()
    return _torch(subject.scripted(), subject)


def _torchmdla_float(subject: Any) -> Prepared:
    torchmdla.enable()
    return _torch(torchmdla.compile(subject.traced(), *subject.inputs), subject)


# The order of preparation: torchmdla's variants are last.
VARIANTS: Mapping[str, Variant] = {
    "script": Variant("TorchScript, quantised by FX", _script),
    "inductor": Variant("Inductor, freezing, PT2E", _inductor, ("torchao",)),
    "onnxruntime": Variant("ONNX Runtime, QDQ", _onnx_runtime, ("onnx", "onnxscript", "onnxruntime")),
    "openvino": Variant("OpenVINO, NNCF", _openvino, ("nncf", "openvino")),
    "torchmdla-float32": Variant("torchmdla, not quantised", _torchmdla_float, ours=True),
    "torchmdla-script": Variant("torchmdla, TorchScript quantised by FX", _torchmdla_script, ours=True),
    "torchmdla": Variant("torchmdla, PT2E", _torchmdla, ("torchao",), ours=True),
}
