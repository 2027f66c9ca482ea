"""Commands ``cache`` and ``store``: artifacts on disk, and artifacts that machines share."""

from __future__ import annotations

import argparse
import os

from rich.console import Console
from rich.progress import track

from torchmdla import devices
from torchmdla.cli import Command, argument, print_pairs, report_failure
from torchmdla.compile_service import store as stores
from torchmdla.compile_service.cache import DiskCache
from torchmdla.compile_service.records import Records
from torchmdla.report.rendering import count_text, size_text


def _show_cache(_: argparse.Namespace) -> int:
    cache = DiskCache()
    info = cache.info()
    print_pairs(
        {
            "path": str(info.path),
            "artifacts": str(info.entries),
            "measured kernels": str(len(Records(devices.get("cpu"), cache).load())),
            "size": size_text(info.size),
            "limit": size_text(info.limit),
            "in use": f"no: {info.problem}" if info.problem else "yes",
        }
    )
    return 0


def _clear_cache(options: argparse.Namespace) -> int:
    cache = DiskCache()
    message = f"{cache.clear()} artifacts removed from {cache.path}"
    if options.records:
        message += f", and what was measured on {count_text(cache.clear_records(), 'machine')}"
    Console().print(message, soft_wrap=True, markup=False, highlight=False)
    return 0


def _push(_: argparse.Namespace) -> int:
    if not os.environ.get(stores.URL_VARIABLE):
        return report_failure(f"no store is configured: set {stores.URL_VARIABLE}")
    store, cache = stores.from_environment(), DiskCache()
    if store is None:  # A warning has reported the reason.
        return 2
    if not store.may_write:
        return report_failure(f"nothing can be put into {store.folder.url}: {store.authentication.description}")
    console = Console(markup=False, highlight=False)
    keys = cache.keys()
    stored = 0
    for key in track(keys, "pushing", console=console, transient=True, disable=not console.is_terminal):
        artifact = cache.load(key)
        stored += artifact is not None and store.put(key, artifact)
    console.print(f"{stored} of {len(keys)} artifacts of {cache.path} put into {store.folder.url}", soft_wrap=True)
    problems = store.statistics().problems
    return report_failure("; ".join(problems)) if problems else 0


CACHE = Command(
    "cache",
    "the artifacts on disk",
    commands=[
        Command("info", "where it is, how much is in it, and why it is not used if so", _show_cache),
        Command(
            "clear",
            "remove every artifact",
            _clear_cache,
            [argument("--records", action="store_true", help="what tune has measured, too")],
        ),
    ],
)

STORE = Command(
    "store",
    "the artifacts that machines share (TORCHMDLA_STORE)",
    commands=[
        Command(
            "push",
            "put every artifact on disk into it",
            _push,
            epilog="""\
examples:
  TORCHMDLA_STORE=s3://bucket/artifacts TORCHMDLA_STORE_SECRET=secret python -m torchmdla store push

What is on this machine's disk, wherever it was compiled, is in the store then: run a model with the sizes that it is
served with, push, and no machine of this kind compiles it again.

exit status:
  0  all of it is there
  2  a part is missing, or TORCHMDLA_STORE is not set
""",
        )
    ],
)
