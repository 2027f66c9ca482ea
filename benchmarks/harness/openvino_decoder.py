"""Decoder of transformers in OpenVINO, token by token, with weights that nncf compresses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

# nncf's compression of linear layers, by the names of ``benchmarks/decoding.py``; None leaves them unchanged.
_MODES = {"float32": None, "bfloat16": None, "int8": "INT8_SYM", "int4": "INT4_SYM"}
_GROUP = 32


class OpenVinoDecoder:
    """Callable with the interface of the model: a token, a static cache with the prompt, and the token's position.

    Args:
        model: the model in float32.
        weights: the format of the stored weights, a name of ``benchmarks/decoding.py``.
        threads: threads of each op.
        length: length of the cache.
    """

    def __init__(self, model: Any, weights: str, threads: int, length: int) -> None:
        import nncf
        import openvino
        import torch

        config = model.config
        heads, size = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
        self._layers, self._length = config.num_hidden_layers, length
        caches = [torch.zeros(1, heads, length, size) for _ in range(2 * self._layers)]
        place = torch.zeros(1, dtype=torch.int64)
        inputs = (place[None], place, torch.zeros(1, 1, 1, length), *caches)
        with torch.no_grad():
            converted = openvino.convert_model(_step(model), example_input=inputs)
        if mode := _MODES[weights]:
            options = {"group_size": _GROUP, "ratio": 1.0, "all_layers": True} if "4" in mode else {}
            converted = nncf.compress_weights(converted, mode=getattr(nncf.CompressWeightsMode, mode), **options)
        precision = "bf16" if weights == "bfloat16" else "f32"
        hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
        self._request = openvino.Core().compile_model(converted, "CPU", hints).create_infer_request()
        self._caches: list[Any] = []
        self._first = -1

    def __call__(self, token: Any, past_key_values: Any, cache_position: Any) -> Any:
        import torch

        place = int(cache_position)
        if self._first in (-1, place):
            layers = past_key_values.layers
            self._caches = [t.float().numpy().copy() for layer in layers for t in (layer.keys, layer.values)]
            self._first = place
        mask = torch.zeros(1, 1, 1, self._length)
        mask[..., place + 1 :] = torch.finfo(torch.float32).min
        results = self._request.infer([token.numpy(), cache_position.numpy(), mask.numpy(), *self._caches])
        logits, *self._caches = results.values()
        return SimpleNamespace(logits=torch.from_numpy(logits))


def _step(model: Any) -> Any:
    """Return a module from a token, its position, a mask and the layers' caches to logits and new caches."""
    import torch
    from transformers import DynamicCache

    class Functional(DynamicCache):  # type: ignore[misc, unused-ignore]
        def __init__(self, caches: list[Any], place: Any) -> None:
            super().__init__()
            self.made, self._place = list(caches), place

        def update(self, key: Any, value: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
            for number, new in enumerate((key, value), 2 * layer):
                self.made[number] = torch.index_copy(self.made[number], 2, self._place, new)
            return self.made[2 * layer], self.made[2 * layer + 1]

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, token: Any, place: Any, mask: Any, *caches: Any) -> Any:
            cache = Functional(list(caches), place)
            result = self.model(
                token, attention_mask=mask, position_ids=place[None], past_key_values=cache, cache_position=place
            )
            return (result.logits, *cache.made)

    return Step()
