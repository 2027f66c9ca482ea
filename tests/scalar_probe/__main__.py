"""Command line of the probe: ``make probe ARGS="…"``, or ``python -m scalar_probe`` in ``tests``."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    with tempfile.TemporaryDirectory(prefix="torchmdla-probe-") as folder:
        os.environ.setdefault("TORCHMDLA_CACHE_DIR", folder)
        import torch

        import torchmdla
        from scalar_probe.probe import DTYPES, KINDS, VARIANTS, Subject, probe

        parser = argparse.ArgumentParser(prog="make probe", description="Compares operators of scalars with eager.")
        parser.add_argument("--frontend", default=",".join(VARIANTS), metavar="NAMES", help="between commas; all")
        parser.add_argument("--dtype", default=",".join(DTYPES), metavar="NAMES", help="of tensors; all")
        parser.add_argument("--kind", default=",".join(KINDS), metavar="NAMES", help="of scalars; all")
        parser.add_argument("--filter", default="", metavar="TEXT", help="expressions that hold it alone")
        parser.add_argument(
            "--few", action="store_true", help="few of the numbers that are constants, one program each"
        )
        options = parser.parse_args(arguments)
        torch.set_grad_enabled(False)
        total = 0
        for way in options.frontend.split(","):
            torchmdla.reset_stats()
            results = differences = 0
            ambiguous: set[str] = set()
            captured: set[str] = set()
            exempted: set[str] = set()
            for dtype in options.dtype.split(","):
                for kind in options.kind.split(","):
                    report = probe(Subject(way, dtype, kind, options.filter), every=not options.few)
                    for line in report.differences:
                        print(line, flush=True)
                    results += report.results
                    differences += len(report.differences)
                    ambiguous |= report.ambiguous
                    captured |= report.captured
                    exempted |= report.exempted
            stats = torchmdla.stats()
            print(f"{way}: {differences} differences in {results} results")
            print(f"  eager's scalar code computes something else than its vector code: {sorted(ambiguous)}")
            print(f"  PyTorch's own capture makes something else: {sorted(captured)}")
            print(f"  exempted: {sorted(exempted)}")
            print(f"  {stats.compiled_calls} compiled calls", stats.fallbacks, stats.left_out, sep="\n  ", flush=True)
            total += differences
        return int(bool(total))


if __name__ == "__main__":
    raise SystemExit(main())
