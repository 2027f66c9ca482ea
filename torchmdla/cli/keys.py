"""Commands ``python -m torchmdla keys`` and ``sign``: generate keys and sign packages."""

from __future__ import annotations

import argparse

from torchmdla.cli import failed, one_line

GENERATE_EPILOG = """\
examples:
  python -m torchmdla keys generate release

release.pem is for whoever signs, and nobody else; release.pub.pem for whoever loads packages.
"""

SIGN_EPILOG = """\
examples:
  python -m torchmdla sign model.pt --key release.pem
  python -m torchmdla sign model.pt --key release.pem -o signed.pt
  TORCHMDLA_REQUIRE_SIGNATURE=release.pub.pem python serve.py

Nothing is compiled again. A signature that the package has is replaced.
"""


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``keys generate``."""
    parser.add_argument("name", help="what the files' names begin with: NAME.pem and NAME.pub.pem")


def generate(options: argparse.Namespace) -> int:
    """Write the two files of a key. Return the exit status."""
    from torchmdla.compile_service.signatures import generate_key

    try:
        key = generate_key(options.name)
    except (ImportError, OSError) as error:
        return failed(one_line(error))
    print(f"{options.name}.pem and {options.name}.pub.pem: key {key.number[:16]}")
    return 0


def add_sign_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``sign``."""
    parser.add_argument("file", help="a package, as torchmdla.save writes it")
    parser.add_argument("--key", required=True, metavar="FILE", help="the private key (PEM)")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (default: in its place)")


def sign(options: argparse.Namespace) -> int:
    """Sign a package. Return the exit status."""
    from torchmdla.packages import signing

    try:
        key = signing.sign(options.file, options.key, options.output)
    except (ImportError, OSError, ValueError) as error:
        return failed(one_line(error))
    print(f"{options.output or options.file}: signed by key {key.number[:16]}")
    return 0
