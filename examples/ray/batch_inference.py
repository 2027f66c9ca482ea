"""Run a model over a folder of images or over rows of Parquet files, with Ray Data; the results are Parquet files.

    python batch_inference.py images/ results/                          images, by a network with random weights
    python batch_inference.py images/ results/ --model fleet.pt         by a program of your own, or a package
    python batch_inference.py rows.parquet results/ --id key --inputs x y --model model.pt

If the same command runs again, it computes only the missing results: after a run that was killed, or for new images and
rows. Each row has an id, for images its path below the folder, and is in the results once.

Ray starts on this machine, or RAY_ADDRESS names a cluster. In a cluster, all nodes need the folders under the same
paths.

Resuming works as follows. Workers write files into a folder of the run, and the driver moves each complete file to the
results, in one step. So results are always complete files, whose ids need not be computed again. A worker that outlives
its driver adds nothing to them. Ray Data also has checkpoints (DataContext.checkpoint_config), which store the ids
apart from the results. As of Ray 2.60, they may contain ids of rows without a result: if a task is repeated after its
checkpoint was written, and the driver is killed then.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet
import ray
import ray.data
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.models import MODELS

IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
# Mean and deviation of ImageNet's images.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Batch = dict[str, Any]


# --- the model ---------------------------------------------------------------------------------------------------


def random_network(name: str) -> nn.Module:
    """Return the reduced variant of a model of torchmdla's tests, with the same weights in each actor."""
    return MODELS[name].reduced().build()


def normalised(batch: Batch) -> dict[str, Tensor]:
    """Return byte images ``[rows, height, width, 3]`` in the format of the networks."""
    images = torch.from_numpy(np.stack(list(batch["image"]))).permute(0, 3, 1, 2).float() / 255
    return {"image": (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)}


def best_class(results: dict[str, Tensor]) -> dict[str, Tensor]:
    scores = torch.softmax(results["output"].float(), 1).max(1)
    return {"class": scores.indices, "score": scores.values}


# --- the results -------------------------------------------------------------------------------------------------


class Results:
    """Folder of Parquet files with disjoint rows.

    Args:
        folder: the path; created if it does not exist.
        run: the settings of the run. A folder with results of other settings is rejected.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any]) -> None:
        self._folder, self._run = folder, dict(run)
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Lock the folder for one run. Yield the folder that the workers of the run write to."""
        with open(self._folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SystemExit(f"another run is writing to {self._folder}") from None
            # A worker of a killed run may still be writing to its folder.
            for left_over in self._folder.glob(".run-*"):
                shutil.rmtree(left_over, ignore_errors=True)
            folder = self._folder / f".run-{uuid.uuid4().hex}"
            folder.mkdir()
            try:
                self._check_run(folder)
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def ids(self) -> pa.Array:
        """Return the ids of the rows in the results."""
        files = list(map(str, self._folder.glob("*.parquet")))
        if not files:
            return pa.array([], pa.string())
        return pyarrow.dataset.dataset(files).to_table(["id"])["id"].combine_chunks()

    def add(self, file: str) -> None:
        """Add a file of a worker to the results."""
        os.replace(file, self._folder / os.path.basename(file))

    def _check_run(self, folder: Path) -> None:
        noted = self._folder / ".run.json"
        if not noted.exists():
            (folder / noted.name).write_text(json.dumps(self._run))
            os.replace(folder / noted.name, noted)
        elif (before := json.loads(noted.read_text())) != self._run:
            changed = ", ".join(key for key in self._run if before.get(key) != self._run[key])
            raise SystemExit(
                f"{self._folder} has results of another run ({changed}): give another folder, or remove it"
            )


def write(batch: Batch, folder: str) -> Batch:
    """Write one file in a worker. The file is on the disk when its name is returned."""
    path = os.path.join(folder, f"{uuid.uuid4().hex}.parquet")
    table = pa.table({name: list(column) if column.ndim > 1 else column for name, column in batch.items()})
    with open(path, "wb") as file:
        pyarrow.parquet.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    return {"file": [path], "rows": [len(table)]}


# --- the inputs --------------------------------------------------------------------------------------------------


class Images:
    """Images in a folder and its subfolders; their ids are their paths."""

    def __init__(self, folder: Path, side: int) -> None:
        self._folder, self._side = folder, side

    def ids(self) -> pa.Array:
        paths = (path for path in self._folder.rglob("*") if path.suffix.lower() in IMAGES)
        return pa.array(sorted(path.relative_to(self._folder).as_posix() for path in paths), pa.string())

    def dataset(self, ids: pa.Array) -> ray.data.Dataset:
        """Return the columns ``id`` and ``image`` of these images only."""
        folder = self._folder.resolve()

        def with_ids(batch: Batch) -> Batch:
            ids = [Path(path).relative_to(folder).as_posix() for path in batch["path"]]
            return {"id": np.array(ids, dtype=object), "image": batch["image"]}

        paths = [str(folder / path) for path in ids.to_pylist()]
        images = ray.data.read_images(paths, size=(self._side, self._side), mode="RGB", include_paths=True)
        return images.map_batches(with_ids)

    def predictor(self) -> dict[str, Any]:
        """Return the arguments of the predictor."""
        example = {"image": np.zeros((1, self._side, self._side, 3), np.uint8)}
        return {"inputs": "image", "examples": [example], "preprocess": normalised, "postprocess": best_class}


class Rows:
    """Rows of Parquet files; a column has their ids."""

    def __init__(self, path: Path, key: str, inputs: Sequence[str]) -> None:
        self._path, self._key, self._inputs = path, key, list(inputs)
        self._files = pyarrow.dataset.dataset(path, format="parquet")
        if missing := [name for name in (key, *inputs) if name not in self._files.schema.names]:
            raise SystemExit(f"{path} has no column {missing[0]!r}; it has {', '.join(self._files.schema.names)}")

    def ids(self) -> pa.Array:
        return self._files.to_table([self._key])[self._key].combine_chunks()

    def dataset(self, ids: pa.Array) -> ray.data.Dataset:
        """Return the column ``id`` and the model's inputs, of these rows only."""
        key, wanted = self._key, ray.put(ids)

        def chosen(table: pa.Table) -> pa.Table:
            table = table.filter(pc.is_in(table[key], ray.get(wanted)))
            return table.rename_columns(["id" if name == key else name for name in table.column_names])

        rows = ray.data.read_parquet(str(self._path)).select_columns([key, *self._inputs])
        return rows.map_batches(chosen, batch_format="pyarrow", batch_size=None)

    def predictor(self) -> dict[str, Any]:
        """Return the arguments of the predictor."""
        first = self._files.head(1, columns=self._inputs)
        example = {name: first[name].to_numpy() for name in self._inputs}
        return {"inputs": self._inputs, "examples": [example]}


def check_ids(ids: pa.Array) -> None:
    if ids.null_count or len(ids.unique()) != len(ids):
        raise SystemExit(f"ids must be there and unique, and {len(ids) - len(ids.unique())} are not: --id COLUMN")


# --- the run -----------------------------------------------------------------------------------------------------


def main() -> None:
    options = arguments()
    of_images = options.input.is_dir() and not any(options.input.rglob("*.parquet"))
    source = Images(options.input, options.size) if of_images else Rows(options.input, options.id, options.inputs)
    model = options.model or ("resnet18" if of_images else "mlp")
    results = Results(
        options.output, {"model": model, "id": options.id, "inputs": options.inputs, "size": options.size}
    )
    with results.opened() as folder:
        check_ids(ids := source.ids())
        missing = ids.filter(pc.invert(pc.is_in(ids, results.ids().cast(ids.type))))
        print(f"{len(ids)} rows, {len(ids) - len(missing)} of them done before", flush=True)
        if len(missing):
            start_ray()
            for file, rows in computed(source, missing, model, folder, options):
                results.add(file)
                print(f"{rows} more", flush=True)
        print(f"{len(results.ids())} rows in {options.output}")


def start_ray() -> None:
    """Start Ray, or connect to the cluster in RAY_ADDRESS.

    On this machine, Ray has at least two CPUs, one of them for tasks that read and write.
    """
    here = "RAY_ADDRESS" not in os.environ
    ray.init(num_cpus=max(2, os.cpu_count() or 1) if here else None, logging_level="warning")


def computed(
    source: Images | Rows, ids: pa.Array, model: str, folder: Path, options: argparse.Namespace
) -> Iterator[tuple[str, int]]:
    """Yield the files that workers wrote, each with its number of rows, as they arrive.

    Ray shows a progress bar for each step on a terminal, and lines elsewhere.
    """
    cpus = ray.cluster_resources().get("CPU", 0)
    actors = options.actors or max(1, int((cpus - 1) // options.cpus))
    if actors * options.cpus > cpus - 1:
        raise SystemExit(
            f"{actors} actors of {options.cpus:g} CPUs leave none of the cluster's {cpus:g} to tasks that read and "
            "write, which the actors would wait for: fewer --actors or --cpus"
        )
    files = (
        source.dataset(ids)
        .repartition(target_num_rows_per_block=options.rows_per_file)
        .map_batches(
            torchmdla.ray.Predictor,
            fn_constructor_kwargs={
                **source.predictor(),
                "model": functools.partial(random_network, model) if model in MODELS else os.path.abspath(model),
                "keep": "id",
                "batch_size": options.batch_size,
                "name": Path(model).stem,
            },
            batch_size=options.batch_size,
            num_cpus=options.cpus,
            compute=ray.data.ActorPoolStrategy(size=actors),
        )
        .map_batches(write, fn_kwargs={"folder": str(folder.resolve())}, batch_size=None)
    )
    for written in files.iter_rows():
        yield written["file"], written["rows"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, help="a folder of images, or a Parquet file, or a folder of these")
    parser.add_argument("output", type=Path, help="a folder for the results; a run that was killed goes on there")
    parser.add_argument(
        "--model",
        help="a file of TorchScript, a package (torchmdla.save) or an exported program; or one of torchmdla's test "
        f"models, small, with random weights: {', '.join(MODELS)} (default: resnet18 for images, mlp for rows)",
    )
    parser.add_argument("--id", default="id", help="of Parquet files: the column that tells rows apart (default: id)")
    parser.add_argument(
        "--inputs", nargs="+", default=["x"], metavar="COLUMN", help="of Parquet files: the model's inputs (default: x)"
    )
    parser.add_argument("--size", type=int, default=64, help="of images: the side they are resized to (default: 64)")
    parser.add_argument("--batch-size", type=int, default=32, help="rows that are computed together (default: 32)")
    parser.add_argument(
        "--rows-per-file",
        type=int,
        default=1000,
        help="a run that is killed loses files that were not complete (default: 1000)",
    )
    parser.add_argument("--actors", type=int, help="copies of the model (default: as CPUs allow, some left to read)")
    parser.add_argument("--cpus", type=float, default=1, help="CPUs, and threads, of each (default: 1)")
    options = parser.parse_args()
    if not options.input.exists():
        parser.error(f"there is no {options.input}")
    if options.input.resolve() in (options.output.resolve(), *options.output.resolve().parents):
        parser.error("the results must not be below the input")
    if options.model and options.model not in MODELS and not os.path.isfile(options.model):
        parser.error(f"--model {options.model}: no such file, and no such test model")
    return options


if __name__ == "__main__":
    main()
