"""Fuzzer of the reader of TorchScript's files: ``make fuzz-archives ARGS="--minutes 60"``.

It changes records and bytes of small programs' files (:mod:`script_files.hostile`). Each file must be read or refused
by ReadError within a few seconds. A file that is not is written to ``build/fuzz-archives``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import torch
from script_files.hostile import change_file, change_record, records_of, refusal_of, write_records
from script_files.language import PROGRAMS

# Most seconds of one file, on a machine that does other work as well.
LIMIT = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failures, count, slowest, outcomes = 0, 0, 0.0, Counter[bool]()
    with tempfile.TemporaryDirectory() as folder:
        seeds = write_seeds(Path(folder))
        path = Path(folder, "changed.pt")
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end:
            number = options.seed * 1_000_000_000 + count
            count += 1
            change(path, seeds, random.Random(number))
            start = time.monotonic()
            try:
                outcomes[bool(refusal_of(path))] += 1
            except BaseException as error:
                failures += 1
                report(path, number, "".join(traceback.format_exception(error)[-2:]))
                if isinstance(error, KeyboardInterrupt):
                    break
            duration = time.monotonic() - start
            slowest = max(slowest, duration)
            if duration > LIMIT:
                failures += 1
                report(path, number, f"reading takes {duration:.0f} s")
    print(
        f"{count} files: {outcomes[False]} read, {outcomes[True]} refused, {failures} failures, {slowest:.1f} s at most"
    )
    return int(failures > 0)


def write_seeds(folder: Path) -> list[Path]:
    """Write the files that are changed."""
    paths = []
    for name, (make, _) in PROGRAMS.items():
        paths.append(folder / f"{name}.pt")
        torch.jit.script(make()).save(paths[-1])
    return paths


def change(path: Path, seeds: list[Path], chance: random.Random) -> None:
    """Write a changed copy of a seed."""
    seed = chance.choice(seeds)
    if chance.random() < 0.7:
        write_records(path, change_record(records_of(seed), chance))
    else:
        path.write_bytes(change_file(seed.read_bytes(), chance))


def report(path: Path, number: int, reason: str) -> None:
    """Print a failure, and copy its file to the build folder."""
    target = Path("build/fuzz-archives", f"{number}.pt")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(path.read_bytes())
    print(f"{target}: {reason}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
