"""Predictor: a model that computes batches of columns, in a Ray actor."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
import torch
from torch import Tensor

from torchmdla import api
from torchmdla.capture import refusals
from torchmdla.ray import columns, models
from torchmdla.ray.columns import Column, Columns
from torchmdla.ray.metrics import Meter

# Sizes of short batches besides full ones. Size 1 is a specialisation; three other sizes generate code for any size
# from 2 on.
_SHORT = (3, 2, 1)


class Predictor:
    """Model that is loaded once in an actor and computes batches.

    It is for ``ray.data.Dataset.map_batches`` and for deployments of Ray Serve. In an actor, PyTorch uses as many
    threads as Ray assigned CPUs to the actor (a fraction counts as one). Batches run in inference mode. Its activity is
    counted in metrics of Ray, which ``docs/ray.md`` lists.

    A batch is a dict of columns. Each column is an array with one row for each sample. The result has the same form.
    Rows of several sizes are columns of the dtype ``object``, as in Ray Data. Rows of equal sizes are computed
    together. Samples must therefore not depend on each other, which is true for a model in eval mode. If a model writes
    to its inputs and the batch is writable, the batch changes.

    An object is pickled as its arguments, and loads its model where it is unpickled.

    Args:
        model: the path of a file on the actor's node: a TorchScript program, a package (:func:`torchmdla.save`, which
            does not need a compiler there) or an exported program. Or a function without arguments that returns, in the
            actor, a module in eval mode or a program.
        inputs: the columns that are the model's positional arguments, in their order.
        outputs: the names of the columns for its results: in order, or the names to select from a dict. The default is
            a dict's own names, ``"output"`` for one tensor, and ``"output_0"``, ``"output_1"`` … for several.
        keep: columns of the batch that are copied to the result.
        preprocess: computes the columns that ``inputs`` names from those of a batch: arrays, tensors, or lists with a
            value for each row. The number of rows must not change.
        postprocess: computes columns from the results, a dict of tensors: arrays, tensors, or lists with a value for
            each row. It is called for rows of equal sizes together.
        examples: batches to warm up with, of one row or more each, so that the first batch is compiled. A plain module
            is traced with the first one.
        batch_size: rows of a full batch, as in ``map_batches`` or ``serve.batch``. Examples are repeated to that size,
            and to sizes of short batches (3, 2 and 1), which generate code for any size. If it is omitted, examples are
            computed as they are.
        pad: pad short batches to ``batch_size`` with copies of their last row, whose results are dropped. This is for
            programs that support one size only. Other programs compute short batches as they are, which is less work.
        name: the model's name in metrics; by default the file's name without its ending, or the function's name.

    Raises:
        FileNotFoundError: the file does not exist on this node.
        TypeError: ``model`` is of another kind.
        ValueError: arguments contradict each other, or a plain module has no examples. Exceptions of loading and of the
            calls with the examples are also raised.
    """

    def __init__(
        self,
        model: models.Source,
        *,
        inputs: str | Sequence[str],
        outputs: str | Sequence[str] | None = None,
        keep: str | Sequence[str] = (),
        preprocess: Callable[[dict[str, Any]], Columns] | None = None,
        postprocess: Callable[[dict[str, Tensor]], Columns] | None = None,
        examples: Sequence[Columns] = (),
        batch_size: int | None = None,
        pad: bool = False,
        name: str | None = None,
    ) -> None:
        self._arguments = {key: value for key, value in locals().items() if key != "self"}
        self._inputs, self._keep = _names(inputs), _names(keep)
        self._outputs = None if outputs is None else _names(outputs)
        self._preprocess, self._postprocess = preprocess, postprocess
        self._batch_size, self._pad = batch_size, pad
        self._check()
        _use_assigned_threads()
        batches = _warm_up_batches(examples, batch_size, pad)
        self._model = models.load_model(model, self._example_inputs(batches))
        self._warm_up(batches)
        self._meter = Meter(models.name_of(model) if name is None else name)
        self._meter.count_activity()

    def __reduce__(self) -> tuple[Callable[[], Predictor], tuple[()]]:
        return functools.partial(type(self), **self._arguments), ()

    def __call__(self, batch: Columns) -> dict[str, Column]:
        """Return the columns to keep, and those of the results.

        Raises:
            ValueError: a column is missing or cannot become a tensor, results lack a name or a row for each sample, or
                two columns have one name. Exceptions of the model and of the functions are also raised.
        """
        start = time.perf_counter()
        retained = columns.select_columns(batch, self._keep)
        results = self._predict(batch)
        if twice := retained.keys() & results.keys():
            raise ValueError(f"{sorted(twice)[0]!r} is both kept and a result: name the result by outputs=")
        self._meter.count_batch(columns.row_count(batch), time.perf_counter() - start)
        return {**retained, **results}

    def predict_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Compute single samples, such as requests: a dict for each sample, with a dict as its result.

        Samples may differ in size.

        Raises:
            ValueError: as a call; or samples have different columns.
        """
        if not rows:
            return []
        if len({frozenset(row) for row in rows}) != 1:
            raise ValueError(f"samples of one batch have different columns: {sorted({*map(tuple, rows)})}")
        batch = {name: columns.column_of([row[name] for row in rows]) for name in rows[0]}
        return columns.rows_of(self(batch), len(rows))

    def _check(self) -> None:
        if not self._inputs:
            raise ValueError("inputs names the columns that are the model's arguments; it is empty")
        if self._batch_size is not None and self._batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self._batch_size}")
        if self._pad and self._batch_size is None:
            raise ValueError("pad=True needs the batch_size that short batches are filled up to")

    def _predict(self, batch: Columns) -> dict[str, Column]:
        rows = columns.row_count(batch)
        arguments = self._argument_columns(batch, rows)
        groups = columns.groups_of_equal_sizes(arguments)
        return columns.merge_groups([self._predict_group(arguments, group) for group in groups], groups, rows)

    def _argument_columns(self, batch: Columns, rows: int) -> dict[str, Any]:
        prepared = batch if self._preprocess is None else self._preprocess(dict(batch))
        arguments = columns.select_columns(prepared, self._inputs)
        arguments = {
            name: columns.column_of(column) if isinstance(column, list) else column
            for name, column in arguments.items()
        }
        if (count := columns.row_count(arguments)) != rows:
            raise ValueError(f"preprocess made {count} rows of a batch of {rows}")
        return arguments

    def _predict_group(self, arguments: Columns, group: columns.Rows) -> dict[str, Column]:
        """Return the results for rows of equal sizes."""
        tensors = [columns.tensor_of(name, column, group) for name, column in arguments.items()]
        rows = len(tensors[0])
        if self._pad and self._batch_size is not None:
            tensors = [columns.pad_rows(tensor, self._batch_size) for tensor in tensors]
        with torch.inference_mode():
            results = columns.name_results(self._model(*tensors), self._outputs)
            results = columns.first_rows(results, computed=len(tensors[0]), wanted=rows)
            processed = results if self._postprocess is None else self._postprocess(results)
            return columns.as_columns(processed, rows)

    def _example_inputs(self, batches: Sequence[Columns]) -> tuple[Tensor, ...]:
        """Return the model's arguments in the first of the warm-up batches; empty without batches."""
        if not batches:
            return ()
        arguments = self._argument_columns(batches[0], columns.row_count(batches[0]))
        group = columns.groups_of_equal_sizes(arguments)[0]
        return tuple(columns.tensor_of(name, column, group) for name, column in arguments.items())

    def _warm_up(self, batches: Sequence[Columns]) -> None:
        # In the first calls PyTorch optimises the program. After that, new sizes are compiled when they occur.
        for number, batch in enumerate(batches):
            least = 1 if number else api.WARM_UP_CALLS
            refusals.call_until_compiled(functools.partial(self._predict, batch), least)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _warm_up_batches(examples: Sequence[Columns], batch_size: int | None, pad: bool) -> list[Columns]:
    """Return copies of the examples, at each batch size to warm up."""
    if isinstance(examples, Mapping):
        raise TypeError("examples is a list of batches: examples=[{...}]")
    if any(columns.row_count(example) == 0 for example in examples):
        raise ValueError("an example has no rows; one is enough")
    if batch_size is None:
        return [columns.repeat_rows(example, columns.row_count(example)) for example in examples]
    sizes = [batch_size] if pad else [batch_size, *(size for size in _SHORT if size < batch_size)]
    return [columns.repeat_rows(example, size) for example in examples for size in sizes]


def _use_assigned_threads() -> None:
    """Set PyTorch's number of threads to the number of CPUs of this actor; a fraction counts as one.

    Outside an actor, nothing changes.
    """
    if not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return
    # An actor that requests no CPUs has no entry.
    torch.set_num_threads(max(1, math.ceil(context.get_assigned_resources().get("CPU", 0.0))))
