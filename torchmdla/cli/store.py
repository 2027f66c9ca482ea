"""Command ``python -m torchmdla store``: manage artifacts that machines share."""

from __future__ import annotations

import argparse
import os

from torchmdla.cli import report_failure

PUSH_EPILOG = """\
examples:
  TORCHMDLA_STORE=s3://bucket/artifacts TORCHMDLA_STORE_SECRET=secret python -m torchmdla store push

What is on this machine's disk, wherever it was compiled, is in the store then: run a model with the sizes that it is
served with, push, and no machine of this kind compiles it again.

exit status:
  0  all of it is there
  2  some is not, or there is no store
"""


def push(options: argparse.Namespace) -> int:
    """Copy every artifact of the disk cache to the store. Return the exit status."""
    from rich.console import Console
    from rich.progress import track

    from torchmdla.compile_service import store as stores
    from torchmdla.compile_service.cache import DiskCache

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
