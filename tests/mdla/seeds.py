"""Write the initial inputs of fuzz.cpp: ``python seeds.py FOLDER``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mdla_library import Context, MdlaError
from mdla_models import MODELS, Model
from test_mdla_emulator import HEADER, SMALL_BOARD, small_board

PRECISIONS = ("float32", "fixed16", "fixed8")
# The size of the card in fuzz.cpp, and the largest input that it accepts.
CARD_BYTES, MOST_BYTES = 1 << 14, 1 << 15


def main(folder: Path) -> None:
    """Write each model of the tests that is small enough as a model and as a program, and write a board."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "board").write_text("b" + SMALL_BOARD)
    with tempfile.TemporaryDirectory() as place:
        for model in MODELS:
            for number, precision in enumerate(PRECISIONS):
                write(folder / f"{model.name}.{precision}", model, number, precision, Path(place))


def write(seed: Path, model: Model, number: int, precision: str, place: Path) -> None:
    path, binary = model.save(place), place / "model.bin"
    with Context(precision=precision, board=small_board(place, memory_bytes=CARD_BYTES)) as context:
        try:
            context.compile(path, binary)
        except MdlaError:  # larger than the card
            return
    for kind, data in {
        "model": b"o" + bytes([number]) + path.read_bytes(),
        "program": b"p" + binary.read_bytes()[HEADER.size :],
    }.items():
        if len(data) <= MOST_BYTES:
            seed.with_suffix(f"{seed.suffix}.{kind}").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
