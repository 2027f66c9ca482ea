"""Download the library that lays out graphs on a report's page from npm; used only by ``setup.py``."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# An npm package, its hash in the registry, and the files to use from it.
PACKAGE = "@dagrejs/dagre@3.1.3"
PACKAGE_HASH = "sha512-X4aUTwOReZvthaZWOVHqlJ52/ZdhZFEM4+Lh/uR4XooUSLE6p71bcy7MPGzYnNUcNh+nj+i/qJQpCMIdQnSmrg=="
PACKAGE_FILES = ("dist/dagre.min.js", "LICENSE")


def vendored() -> list[Path]:
    """Return the files of the npm package, in ``build/npm``; an empty list, with a notice, if npm fails.

    Raises:
        SystemExit: the package has another hash.
    """
    folder = ROOT / "build" / "npm" / PACKAGE.rpartition("@")[2]
    files = [folder / Path(name).name for name in PACKAGE_FILES]
    if all(file.exists() for file in files):
        return files
    with tempfile.TemporaryDirectory() as temporary:
        try:
            command = ["npm", "pack", "--silent", "--pack-destination", temporary, PACKAGE]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=temporary)
        except (OSError, subprocess.CalledProcessError) as error:
            print(
                f"NOTICE: npm did not get {PACKAGE} ({error}). All works but Explanation.save, which lays graphs out "
                "with it: install npm and build again.",
                file=sys.stderr,
            )
            return []
        (archive,) = Path(temporary).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != PACKAGE_HASH:
            raise SystemExit(f"npm's {PACKAGE} is not what release/npm_package.py expects: its hash is sha512-{digest}")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as packed:
            for name, file in zip(PACKAGE_FILES, files, strict=True):
                member = packed.extractfile(f"package/{name}")
                assert member is not None, name
                file.write_bytes(member.read())
    return files
