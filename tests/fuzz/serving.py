"""Soak test of a server, whose model files are replaced while the models are called.

Compiled programs sometimes come from a store, and memory has a limit. PyTorch keeps nothing of a program that was
loaded, so memory must not grow.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.soak import WIDTHS, Live, Soak, kinds

# Sets of weights of each model.
_SETS = 3

_MEMORY_LIMIT = "24M"


def set_up(folder: Path) -> None:
    """Write the files of models in a separate process, and make this process use a store and a memory limit.

    It must be called before torchmdla is imported.
    """
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o400)
    os.environ["TORCHMDLA_STORE"] = str(folder / "store")
    os.environ["TORCHMDLA_STORE_SECRET"] = str(secret)
    os.environ["TORCHMDLA_MEMORY"] = _MEMORY_LIMIT
    (folder / "models").mkdir()
    subprocess.run([sys.executable, "-m", "fuzz.serving", str(folder / "models")], check=True)


def _write(folder: Path) -> None:
    import torch

    for width, number in itertools.product(WIDTHS, range(_SETS)):
        for name, (make, _, _) in kinds(width).items():
            model = make().eval().requires_grad_(False)
            path = folder / f"{name}-{width}-{number}"
            torch.save(model.state_dict(), path.with_suffix(".weights"))
            torch.jit.script(model).save(str(path.with_suffix(".pt")))


@dataclass
class Served(Live):
    """Model whose file is replaced by other models of its kind and width."""

    path: Path
    width: int


class Serving(Soak):
    """Soak test with the actions of a server."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed)
        self._folder = folder
        self._numbers = itertools.count()
        # Models of eager PyTorch by kind, width and set of weights.
        self._twins: dict[tuple[str, int, int], Any] = {}
        self._actions.update({self._reload: 20, self._page: 2})

    def make(self) -> Live:
        from torchmdla import ReloadingModel

        width = self._choice.choice(WIDTHS)
        name, (_, draw, layers) = self._choice.choice(list(kinds(width).items()))
        path = self._folder / f"served-{next(self._numbers)}.pt"
        number = self._put(path, name, width)
        return Served(name, self._twin(name, width, number), ReloadingModel(path), draw, layers, path, width)

    def _reload(self) -> None:
        """Reload a model while threads call it. Each result must be of the old version or of the new version."""
        live = self._choice.choice(self._live)
        assert isinstance(live, Served)
        number = self._put(live.path, live.name, live.width)
        before, after, over = live.eager, self._twin(live.name, live.width, number), threading.Event()
        sizes = random.Random(self._choice.random())

        def call() -> None:
            while not over.is_set():
                self._check_either(live, (before, after), sizes.randint(1, 20))

        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        live.compiled.reload()  # type: ignore[attr-defined]
        over.set()
        for thread in threads:
            thread.join()
        live.eager = after
        self._check(live, 3)

    def _check_either(self, live: Live, twins: tuple[Any, Any], size: int) -> None:
        import torch

        from torchmdla.testing.compare import assert_matches

        with torch.no_grad():
            inputs = live.draw(size)
            problem: AssertionError | None = None
            try:
                result = live.compiled(*inputs)
            except Exception as error:
                self.wrong.append(f"{live.name} while it is reloaded, size {size}: {type(error).__name__}: {error}")
                return
            for twin in twins:
                try:
                    assert_matches(result, twin(*inputs), layers=live.layers)
                    return
                except AssertionError as error:
                    problem = error
        self.wrong.append(f"{live.name} while it is reloaded, size {size}: {problem}")

    def _page(self) -> None:
        from torchmdla import prometheus

        if b"torchmdla_groups" not in prometheus.page():
            self.wrong.append("the page of metrics has no groups")

    def _put(self, path: Path, name: str, width: int) -> int:
        """Replace the file with a random model of the kind and width, and return the number of its set of weights."""
        number = self._choice.randrange(_SETS)
        beside = path.with_suffix(".new")
        shutil.copyfile(self._folder / "models" / f"{name}-{width}-{number}.pt", beside)
        os.replace(beside, path)
        return number

    def _twin(self, name: str, width: int, number: int) -> Any:
        import torch

        key = name, width, number
        if key not in self._twins:
            model = kinds(width)[name][0]().eval().requires_grad_(False)
            model.load_state_dict(torch.load(self._folder / "models" / f"{name}-{width}-{number}.weights"))
            self._twins[key] = model
        return self._twins[key]

    def _replace(self) -> None:
        gone = self._live.pop(self._choice.randrange(len(self._live)))
        assert isinstance(gone, Served)
        gone.path.unlink()


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
