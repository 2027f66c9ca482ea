"""Measure decoding: a Llama of transformers with random weights, token by token, with weights of several precisions.

Each precision runs in a separate process, with a static cache: with ``torch.compile`` (torchmdla and Inductor), with
eager PyTorch, and if they are installed with zentorch and with OpenVINO, whose weights nncf compresses, in turn. The
table shows the minimum and the median of the milliseconds of a token. It also shows the bandwidth: the bytes of weights
that a token reads, divided by its time, relative to a copy of the same amount of memory.

The exit status is 1 if the first token differs from eager's, if something falls back, or if a token compiles something
again.
"""

from __future__ import annotations

import copy
import importlib
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from harness import children, output
from harness.openvino_decoder import OpenVinoDecoder

WEIGHTS = ("float32", "bfloat16", "int8", "int4")
VARIANTS = ("eager", "inductor", "zentorch", "openvino", "torchmdla")
# The packages of variants, which may be missing.
PACKAGES = {"zentorch": ("zentorch",), "openvino": ("openvino", "nncf")}
DEFAULTS = {
    False: {"weights": list(WEIGHTS), "layers": 16, "width": 2048, "tokens": 24, "prompt": 64},
    True: {"weights": ["float32", "int8"], "layers": 2, "width": 128, "tokens": 6, "prompt": 8},
}
_HEAD = 64  # features of each head

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--weights", type=output.one_of(WEIGHTS), metavar="NAMES", help=f"of {','.join(WEIGHTS)} (all)")
    parser.add_argument("--layers", type=output.number, help="(16)")
    parser.add_argument("--width", type=output.number, help="in multiples of 64 (2048)")
    parser.add_argument("--tokens", type=output.number, help="after the prompt (24)")
    parser.add_argument("--prompt", type=output.number, help="tokens of it (64)")
    parser.add_argument("--threads", type=output.number, default=1, help="of each op (%(default)s)")
    parser.add_argument(
        "--ways", type=output.one_of(VARIANTS), default=list(VARIANTS), help=f"of {','.join(VARIANTS)} (all)"
    )
    options = parser.parse_args()
    output.fill_in(options, DEFAULTS)
    for way in [way for way in options.ways if any(find_spec(name) is None for name in PACKAGES.get(way, ()))]:
        options.ways.remove(way)
        output.show(f"{way} is left out: pip install torchmdla[bench] installs it")
    task = {name: getattr(options, name) for name in ("layers", "width", "tokens", "prompt", "threads", "ways")}
    rows: list[Row] = []
    with output.progress(len(options.weights), "precision") as bar:
        for weights in options.weights:
            variables = {"OMP_NUM_THREADS": str(options.threads)}
            rows.append(children.run("decoding:measure", {**task, "weights": weights}, variables, bar.set_postfix_str))
            bar.update()
            output.write_json(options.json, {"benchmark": "decoding", "quick": options.quick, "rows": rows})
    show(rows, options.threads)
    faults = [f"{row['weights']}: {fault}" for row in rows for fault in row["faults"]]
    output.show(*faults)
    return int(bool(faults))


def measure(weights: str, layers: int, width: int, tokens: int, prompt: int, threads: int, ways: list[str]) -> Row:
    """Measure one precision in this process."""
    import torch

    import torchmdla

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    children.step("building the model")
    model, prompt_tokens = build(weights, layers, width, prompt)
    row: Row = {"weights": weights, "ways": {}, "faults": [], "bytes": read_bytes(model)}
    sequences = {}
    with torch.no_grad():
        decoders = {}
        for way in ways:
            call = compile_model(model, way)
            if way == "openvino":
                original, _ = build("float32", layers, width, prompt)
                call = OpenVinoDecoder(original, weights, threads, prompt + tokens)
            decoders[way] = Decoder(model, call, prompt_tokens, tokens)
        for way, decoder in decoders.items():
            children.step(f"first tokens by {way}")
            sequences[way] = decoder.run()
        before = torchmdla.stats().specialisations
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(3):
            for way, decoder in decoders.items():
                children.step(f"turn {turn + 1} of 3, {way}")
                decoder.run(seconds[way])
        row["copy"] = copy_bandwidth(row["bytes"])
    stats = torchmdla.stats()
    if "torchmdla" in ways:
        row["faults"] += [f"fell back: {why}" for why in stats.fallbacks]
        row["faults"] += ["a token was compiled anew"] if stats.specialisations != before else []
        row["faults"] += (
            ["the first token is another one"] if sequences["torchmdla"][0] != sequences[ways[0]][0] else []
        )
    for way in ways:
        times = sorted(seconds[way])
        row["ways"][way] = {"min": times[0] * 1e3, "median": times[len(times) // 2] * 1e3}
    return row


class Decoder:
    """Greedy generation of ``tokens`` after a prompt."""

    def __init__(self, model: Any, call: Callable[..., Any], prompt: Any, tokens: int) -> None:
        from transformers import StaticCache

        self._model, self._call, self._given, self._tokens = model, call, prompt, tokens
        self._cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + tokens)

    def run(self, seconds: list[float] | None = None) -> list[int]:
        """Return the tokens. Append the times of all tokens but the first to ``seconds``."""
        import torch

        self._cache.reset()
        length = self._given.shape[1]
        result = self._model(self._given, past_key_values=self._cache, cache_position=torch.arange(length))
        token, tokens = result.logits[:, -1:].argmax(-1), []
        for place in range(length, length + self._tokens):
            start = time.perf_counter()
            result = self._call(token, past_key_values=self._cache, cache_position=torch.tensor([place]))
            token = result.logits[:, -1:].argmax(-1)
            if seconds is not None and place > length:
                seconds.append(time.perf_counter() - start)
            tokens.append(int(token))
        return tokens


def build(weights: str, layers: int, width: int, prompt: int) -> tuple[Any, Any]:
    """Return the model and a prompt."""
    import torch
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = width // _HEAD
    config = LlamaConfig(
        vocab_size=32000 if width >= 1024 else 512,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        max_position_embeddings=4096,
    )
    model = LlamaForCausalLM(config).eval()
    if weights == "bfloat16":
        model = model.bfloat16()
    if weights == "int8":
        quantize_(model, Int8WeightOnlyConfig())
    if weights == "int4":
        quantize_(model, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    return model, torch.randint(0, config.vocab_size, (1, prompt), generator=torch.Generator().manual_seed(0))


def compile_model(model: Any, way: str) -> Callable[..., Any]:
    import torch

    if way in ("eager", "openvino"):
        return model  # type: ignore[no-any-return]
    torch._dynamo.reset()
    if way == "zentorch":
        importlib.import_module(way)  # registers its backend
        model = copy.deepcopy(model)  # whose weights it reorders in place
    return torch.compile(model, backend=way, dynamic=False)


def read_bytes(model: Any) -> int:
    """Return the bytes of the weights that one token reads: all but the embedding, of which it reads one row.

    4-bit integers count half a byte, although torchao stores each in a byte. Their scales and zero points count, too.
    """
    total = 0
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            continue
        data = getattr(parameter, "qdata", parameter)
        is_half = "int4" in str(getattr(parameter, "target_dtype", ""))
        total += data.numel() * data.element_size() // (1 + is_half)
        for of_groups in (getattr(parameter, name, None) for name in ("scale", "zero_point")):
            if of_groups is not None:
                total += of_groups.numel() * of_groups.element_size()
    return total


def copy_bandwidth(size: int) -> float:
    """Return bytes per second, read and written, of a copy of ``size`` bytes, at most a gigabyte."""
    import torch

    source = torch.ones(min(size, 1 << 30) // 4)
    target = torch.empty_like(source)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return 2 * source.numel() * 4 / min(times)


def show(rows: list[Row], threads: int) -> None:
    table = output.table(
        f"ms for a token, least / median, {threads} thread{'s' * (threads > 1)}",
        ("weights", "MB read", *VARIANTS, "of a copy's bandwidth", "best peer ÷ torchmdla"),
    )
    for row in rows:
        ways = row["ways"]
        peers = [times["min"] for way, times in ways.items() if way != "torchmdla"]
        ours = ways.get("torchmdla", {}).get("min")
        part = f"{row['bytes'] / ours * 1e3 / row['copy']:.0%}" if ours else "–"
        gain = f"{min(peers) / ours:.2f}" if ours and peers else "–"
        cells = [output.pair(ways.get(way)) for way in VARIANTS]
        table.add_row(row["weights"], f"{row['bytes'] / 1e6:.0f}", *cells, part, gain)
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
