"""Quantised models for a device: calibration, and errors against float.

The types of tensors are those that the device declares (:class:`torchmdla.devices.Quantisation`). The quantised model
is torchao's reference: an exported graph with ``quantize`` and ``dequantize`` operators, which PyTorch runs and which
the frontends ``export`` and ``torch.compile`` compile for the device. See docs/quantisation.md.
"""

from __future__ import annotations

from torchmdla.quantisation.comparison import Comparison, LayerError
from torchmdla.quantisation.quantising import LayerTypes, Quantised, quantise, quantizer_of

__all__ = ["Comparison", "LayerError", "LayerTypes", "Quantised", "quantise", "quantizer_of"]
