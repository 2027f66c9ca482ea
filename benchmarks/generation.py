"""Measure generation with a growing cache: a traced GPT-2, as in a server, and ``generate()`` of small models.

Models are those of transformers with random weights. The traced model computes prompts of several lengths, each
followed by single tokens, so that every call has new sizes. The table shows the slowest calls (which compile), the same
calls of eager, the number of compiled programs, and the median of all calls. With --background, calls do not wait for
the compiler.

``generate()`` runs twice with ``torch.compile`` of the forward pass. The table compares a call that compiles with the
same call of the backend ``aot_eager``, which is PyTorch's own tracing.

The exit status is 1 if a result differs from eager's beyond tolerance, or if any token differs.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import tempfile
import time
import warnings
from typing import Any

from harness import children, output

_PROMPTS = [7, 12, 33, 5, 64, 18]
_HEAD = 64  # features of each head
_VOCABULARY = 1000  # of the models for generate()

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--layers", type=output.number, default=12, help="(%(default)s)")
    parser.add_argument("--width", type=output.number, default=192, help=f"in multiples of {_HEAD} (%(default)s)")
    parser.add_argument("--tokens", type=output.number, default=10, help="after each prompt (%(default)s)")
    parser.add_argument("--threads", type=output.number, default=1, help="of each op (%(default)s)")
    parser.add_argument("--background", action="store_true", help="compile on other threads")
    parser.add_argument("--generate", type=output.one_of(GENERATORS), help=f"of {','.join(GENERATORS)} (all)")
    options = parser.parse_args()
    output.fill_in(options, {True: {"generate": ["gpt2"]}, False: {"generate": list(GENERATORS)}})
    task = {
        "layers": 2 if options.quick else options.layers,
        "heads": 1 if options.quick else options.width // _HEAD,
        "vocabulary": 100 if options.quick else 50257,
        "tokens": 4 if options.quick else options.tokens,
        "threads": options.threads,
        "background": options.background,
    }
    variables = {"OMP_NUM_THREADS": str(options.threads)}
    with output.progress(1 + 2 * len(options.generate), "loop") as bar:
        row = children.run("generation:measure", task, variables, bar.set_postfix_str)
        bar.update()
        generated: dict[str, dict[str, Row]] = {}
        for model in options.generate:
            for backend in ("aot_eager", "torchmdla"):
                bar.set_postfix_str(f"{model}, {backend}")
                of_model = {"model": model, "backend": backend, "tokens": task["tokens"], "threads": options.threads}
                generated.setdefault(model, {})[backend] = children.run("generation:generate", of_model, variables)
                bar.update()
    output.write_json(options.json, {"benchmark": "generation", "quick": options.quick, **row, "generate": generated})
    show(row)
    if generated:
        show_generated(generated)
    return int(
        bool(row["faults"])
        or not all(of["is_equal"] for by_backend in generated.values() for of in by_backend.values())
    )


def measure(layers: int, heads: int, vocabulary: int, tokens: int, threads: int, background: bool) -> Row:
    """Return the seconds of every call, and the statistics."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import torchmdla
    from torchmdla.testing.compare import assert_matches

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocabulary, n_layer=layers, n_embd=heads * _HEAD, n_head=heads, attn_implementation="sdpa"
    )
    eager = step_of(GPT2LMHeadModel(config).eval())
    seconds: dict[str, list[float]] = {"eager": [], "torchmdla": []}
    faults = []
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder, torch.no_grad():
        os.environ["TORCHMDLA_CACHE_DIR"] = folder
        torchmdla.enable(background=background)

        def cache(length: int) -> list[torch.Tensor]:
            return [torch.zeros(1, heads, length, _HEAD) for _ in range(2 * layers)]

        ids = torch.randint(0, vocabulary, (1, 5))
        traced = torch.jit.trace(eager, (ids, *cache(3)), check_trace=False)
        for prompt in _PROMPTS:
            children.step(f"a prompt of {prompt} tokens")
            ids, past = torch.randint(0, vocabulary, (1, prompt)), cache(0)
            for token in range(tokens):
                results = {}
                for way, run in (("eager", eager), ("torchmdla", traced)):
                    start = time.perf_counter()
                    results[way] = run(ids, *past)
                    seconds[way].append(time.perf_counter() - start)
                try:
                    assert_matches(results["torchmdla"], results["eager"], layers=8 * layers)
                except AssertionError as difference:
                    faults.append(f"prompt of {prompt}, token {token}: {difference}")
                logits, *past = results["eager"]
                ids = logits[:, -1:].argmax(-1)
        stats = torchmdla.stats()
    return {
        "seconds": seconds,
        "specialisations": stats.specialisations,
        "dynamic": stats.dynamic,
        "compile_seconds": stats.compile_seconds,
        "fallbacks": stats.fallbacks,
        "faults": faults,
    }


def step_of(model: Any) -> Any:
    """Return a module of one step.

    It maps tokens and the layers' cached keys and values to logits and the longer cache.
    """
    import torch
    from transformers.cache_utils import DynamicCache

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
            cache = DynamicCache(ddp_cache_data=list(zip(past[::2], past[1::2], strict=True)))
            result = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
            caches = [tensor for layer in result.past_key_values.layers for tensor in (layer.keys, layer.values)]
            return result.logits, *caches

    return Step()


def gpt2() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=_VOCABULARY, n_layer=4, n_embd=128, n_head=4)
    return GPT2LMHeadModel(config), {"input_ids": torch.randint(1, _VOCABULARY, (1, 9))}


def llama() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
    config = LlamaConfig(vocab_size=_VOCABULARY, hidden_size=128, intermediate_size=256, **heads)
    return LlamaForCausalLM(config), {"input_ids": torch.randint(1, _VOCABULARY, (1, 9))}


def t5() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 3, "num_heads": 4}
    config = T5Config(vocab_size=_VOCABULARY, decoder_start_token_id=0, **sizes)
    return T5ForConditionalGeneration(config), {"input_ids": torch.randint(1, _VOCABULARY, (1, 9))}


def whisper() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    stack = {"layers": 2, "attention_heads": 4, "ffn_dim": 256}
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in stack.items()}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    frames = {"num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 64}
    config = WhisperConfig(vocab_size=_VOCABULARY, d_model=128, **sizes, **tokens, **frames)
    return WhisperForConditionalGeneration(config), {"input_features": torch.randn(1, 16, 100)}


GENERATORS = {"gpt2": gpt2, "llama": llama, "t5": t5, "whisper": whisper}


def generate(model: str, backend: str, tokens: int, threads: int) -> Row:
    """Return the seconds of each call of a model's forward in two runs of ``generate()``, and the statistics."""
    import torch

    import torchmdla

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    module, inputs = GENERATORS[model]()
    module.eval()
    # With random weights, a text may end at once.
    module.generation_config.update(eos_token_id=None, pad_token_id=0, suppress_tokens=None, begin_suppress_tokens=None)
    arguments = {"max_new_tokens": tokens, "max_length": None, "do_sample": False}
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder, torch.no_grad():
        os.environ["TORCHMDLA_CACHE_DIR"] = folder
        expected = module.generate(**inputs, **arguments)
        forward = torch.compile(module.forward, backend=backend)
        runs: list[list[float]] = []

        @functools.wraps(module.forward)
        def timed(*positional: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = forward(*positional, **named)
            runs[-1].append(time.perf_counter() - start)
            return result

        module.forward = timed
        is_equal = True
        for _ in range(2):
            runs.append([])
            is_equal &= torch.equal(module.generate(**inputs, **arguments), expected)
    stats = torchmdla.stats()
    return {"runs": runs, "is_equal": is_equal, "programs": stats.compiled, "fallbacks": stats.fallbacks}


def show_generated(generated: dict[str, dict[str, Row]]) -> None:
    columns = [
        "first calls, s",
        "of aot_eager, s",
        "slowest later call, ms",
        "second run, ms a token",
        "of aot_eager, ms",
    ]
    table = output.table("generate() with torch.compile", ["", "programs", *columns, "tokens", "fallbacks"])
    for model, by_backend in generated.items():
        ours, theirs = by_backend["torchmdla"], by_backend["aot_eager"]
        (first, second), (first_of_theirs, second_of_theirs) = ours["runs"], theirs["runs"]
        table.add_row(
            model,
            str(ours["programs"]),
            " ".join(output.digits(seconds) for seconds in first[:3]),
            " ".join(output.digits(seconds) for seconds in first_of_theirs[:3]),
            output.digits(max(first[3:], default=0.0) * 1e3),
            output.digits(statistics.median(second) * 1e3),
            output.digits(statistics.median(second_of_theirs) * 1e3),
            "eager's" if ours["is_equal"] else "OTHERS",
            str(ours["fallbacks"] or "none"),
        )
    output.show(table)


def show(row: Row) -> None:
    times = {way: sorted(seconds) for way, seconds in row["seconds"].items()}
    table = output.table("GPT-2 with a growing cache", ["", "all calls, s", "slowest, s", "median call, ms"])
    for way, seconds in times.items():
        table.add_row(
            way,
            output.digits(sum(seconds)),
            " ".join(output.digits(value) for value in seconds[-5:][::-1]),
            output.digits(seconds[len(seconds) // 2] * 1e3),
        )
    output.show(
        table,
        f"{row['specialisations']} programs compiled in {output.digits(row['compile_seconds'])} s, {row['dynamic']} of "
        f"them for any sizes; fallbacks: {row['fallbacks'] or 'none'}",
        *row["faults"],
    )


if __name__ == "__main__":
    sys.exit(main())
