"""Generation with a growing cache: a GPT-2 of transformers with random weights, traced, as a server would run it.

Prompts of several lengths, each followed by tokens one at a time, so that every call has sizes that no call before had.
Told are the slowest calls (which compile), what eager takes for the same, how many programs were compiled, and later
tokens beside eager's. With --background nothing waits for the compiler.

Ends with status 1 where a result differs from eager's beyond tolerance.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from typing import Any

from harness import children, output

_PROMPTS = [7, 12, 33, 5, 64, 18]
_HEAD = 64  # features of each

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--layers", type=output.number, default=12, help="(%(default)s)")
    parser.add_argument("--width", type=output.number, default=192, help=f"in multiples of {_HEAD} (%(default)s)")
    parser.add_argument("--tokens", type=output.number, default=10, help="after each prompt (%(default)s)")
    parser.add_argument("--threads", type=output.number, default=1, help="of each op (%(default)s)")
    parser.add_argument("--background", action="store_true", help="compile on other threads")
    options = parser.parse_args()
    task = {
        "layers": 2 if options.quick else options.layers,
        "heads": 1 if options.quick else options.width // _HEAD,
        "vocabulary": 100 if options.quick else 50257,
        "tokens": 4 if options.quick else options.tokens,
        "threads": options.threads,
        "background": options.background,
    }
    with output.progress(1, "loop") as bar:
        row = children.run("generation:measure", task, {"OMP_NUM_THREADS": str(options.threads)}, bar.set_postfix_str)
        bar.update()
    output.write_json(options.json, {"benchmark": "generation", "quick": options.quick, **row})
    show(row)
    return int(bool(row["faults"]))


def measure(layers: int, heads: int, vocabulary: int, tokens: int, threads: int, background: bool) -> Row:
    """Seconds of every call, and what was counted."""
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
    """A module of one step: tokens and the cache's keys and values by layers, to logits and the longer cache."""
    import torch
    from transformers.cache_utils import DynamicCache

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
            cache = DynamicCache(ddp_cache_data=list(zip(past[::2], past[1::2], strict=True)))
            made = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
            kept = [tensor for layer in made.past_key_values.layers for tensor in (layer.keys, layer.values)]
            return made.logits, *kept

    return Step()


def show(row: Row) -> None:
    times = {way: sorted(found) for way, found in row["seconds"].items()}
    table = output.table("GPT-2 with a growing cache", ["", "all calls, s", "slowest, s", "median call, ms"])
    for way, found in times.items():
        table.add_row(
            way,
            output.digits(sum(found)),
            " ".join(output.digits(one) for one in found[-5:][::-1]),
            output.digits(found[len(found) // 2] * 1e3),
        )
    output.show(
        table,
        f"{row['specialisations']} programs compiled in {output.digits(row['compile_seconds'])} s, {row['dynamic']} of "
        f"them for any sizes; fallbacks: {row['fallbacks'] or 'none'}",
        *row["faults"],
    )


if __name__ == "__main__":
    sys.exit(main())
