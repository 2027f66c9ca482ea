"""A model that computes batches of columns, in an actor of Ray."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchmdla import api
from torchmdla.capture import refusals
from torchmdla.ray import columns, models
from torchmdla.ray.columns import Column, Columns
from torchmdla.ray.metrics import Meter
from torchmdla.ray.resources import use_assigned_threads

# Beside full batches, the sizes that a short one may have: 1 is a specialisation, and with three others a group is
# compiled for any from 2 on.
_SHORT = (3, 2, 1)


class Predictor:
    """Computes batches with a model that is loaded once, in an actor: for ``ray.data.Dataset.map_batches`` and for
    deployments of Ray Serve.

    In an actor it has PyTorch compute with as many threads as Ray assigned CPUs to the actor (a part of one is one).
    Batches run in inference mode. What it does is counted in metrics of Ray, which ``docs/ray.md`` lists.

    A batch is a dict of columns, each an array with one row for each sample; so is the result. Rows of several sizes
    are columns of the dtype ``object``, as Ray Data has them: rows of equal sizes are computed together. So samples
    must not depend on each other, which they do not in a model in eval mode. What a model writes to its inputs is
    written to the batch, where the batch may be written to.

    An object is pickled as its arguments, and loads its model where it is unpickled.

    Args:
        model: the path of a file on the actor's node, of a program of TorchScript, a package
            (:func:`torchmdla.save`, which needs no compiler there) or an exported program; or a function without
            arguments that returns a module in eval mode, or a program, in the actor.
        inputs: the columns that are the model's positional arguments, in their order.
        outputs: the names of the columns for its results: in their order, or those to take of a dict. By default a
            dict's own names, ``"output"`` for one tensor, and ``"output_0"``, ``"output_1"`` … for several.
        keep: columns of the batch that are passed on as they are.
        preprocess: makes the columns that ``inputs`` names from those of a batch: arrays, tensors, or lists with a
            value for each row. The number of rows must stay.
        postprocess: makes columns from the results, a dict of tensors: arrays, tensors, or lists with a value for each
            row. It is called for rows of equal sizes together.
        examples: batches to warm up with, of one row or more each, so that the first batch is compiled. A plain module
            is traced with the first one.
        batch_size: rows of a full batch, as given to ``map_batches`` or ``serve.batch``. Examples are repeated to that
            size, and to sizes that short batches have (3, 2 and 1), after which there is code for any size. Without,
            examples are computed as they are.
        pad: short batches are filled up to ``batch_size`` with copies of their last row, whose results are dropped. For
            programs that take one size alone; others compute short batches as they are, which is less work.
        name: the model's name in metrics; by default the file's, without its ending, or the function's.

    Raises:
        FileNotFoundError: there is no such file on this node.
        TypeError: ``model`` is of another kind.
        ValueError: arguments contradict each other, or a plain module comes without examples. And what loading and
            the calls with the examples raise.
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
        use_assigned_threads()
        batches = _warm_up_batches(examples, batch_size, pad)
        self._model = models.loaded(model, self._example_inputs(batches))
        self._warm_up(batches)
        self._meter = Meter(models.name_of(model) if name is None else name)
        self._meter.count_activity()

    def __reduce__(self) -> tuple[Callable[[], Predictor], tuple[()]]:
        return functools.partial(type(self), **self._arguments), ()

    def __call__(self, batch: Columns) -> dict[str, Column]:
        """The columns that are kept, and those of the results.

        Raises:
            ValueError: a column is missing or cannot become a tensor, results have no name or not a row for each
                sample, or two columns have one name. And what the model and the functions raise.
        """
        start = time.perf_counter()
        kept = columns.selected(batch, self._keep)
        results = self._computed(batch)
        if twice := kept.keys() & results.keys():
            raise ValueError(f"{sorted(twice)[0]!r} is both kept and a result: name the result by outputs=")
        self._meter.count_batch(columns.row_count(batch), time.perf_counter() - start)
        return {**kept, **results}

    def predict_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The same for samples one by one, as requests are: a dict for each, whose results are a dict, too. They may
        have several sizes.

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

    def _computed(self, batch: Columns) -> dict[str, Column]:
        rows = columns.row_count(batch)
        arguments = self._argument_columns(batch, rows)
        groups = columns.groups_of_equal_sizes(arguments)
        return columns.joined([self._of_equal_sizes(arguments, group) for group in groups], groups, rows)

    def _argument_columns(self, batch: Columns, rows: int) -> dict[str, Any]:
        made = batch if self._preprocess is None else self._preprocess(dict(batch))
        arguments = columns.selected(made, self._inputs)
        arguments = {
            name: columns.column_of(column) if isinstance(column, list) else column
            for name, column in arguments.items()
        }
        if (count := columns.row_count(arguments)) != rows:
            raise ValueError(f"preprocess made {count} rows of a batch of {rows}")
        return arguments

    def _of_equal_sizes(self, arguments: Columns, group: columns.Rows) -> dict[str, Column]:
        """The results for rows of equal sizes."""
        tensors = [columns.tensor_of(name, column, group) for name, column in arguments.items()]
        rows = len(tensors[0])
        if self._pad and self._batch_size is not None:
            tensors = [columns.filled(tensor, self._batch_size) for tensor in tensors]
        with torch.inference_mode():
            results = columns.named(self._model(*tensors), self._outputs)
            results = columns.first_rows(results, computed=len(tensors[0]), wanted=rows)
            made = results if self._postprocess is None else self._postprocess(results)
            return columns.as_columns(made, rows)

    def _example_inputs(self, batches: Sequence[Columns]) -> tuple[Tensor, ...]:
        """The model's arguments in the first of the batches to warm up with; none where there are none."""
        if not batches:
            return ()
        arguments = self._argument_columns(batches[0], columns.row_count(batches[0]))
        group = columns.groups_of_equal_sizes(arguments)[0]
        return tuple(columns.tensor_of(name, column, group) for name, column in arguments.items())

    def _warm_up(self, batches: Sequence[Columns]) -> None:
        # The first calls have PyTorch optimise the program; from then on new sizes are compiled when they come.
        for number, batch in enumerate(batches):
            least = 1 if number else api.WARM_UP_CALLS
            refusals.call_until_whole(functools.partial(self._computed, batch), least)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _warm_up_batches(examples: Sequence[Columns], batch_size: int | None, pad: bool) -> list[Columns]:
    """Copies of the examples, at each size that they are to be computed at."""
    if isinstance(examples, Mapping):
        raise TypeError("examples is a list of batches: examples=[{...}]")
    if any(columns.row_count(example) == 0 for example in examples):
        raise ValueError("an example has no rows; one is enough")
    if batch_size is None:
        return [columns.repeated(example, columns.row_count(example)) for example in examples]
    sizes = [batch_size] if pad else [batch_size, *(size for size in _SHORT if size < batch_size)]
    return [columns.repeated(example, size) for example in examples for size in sizes]
