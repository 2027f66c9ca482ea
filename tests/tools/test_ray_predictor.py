"""Tests of predictors on columns, files and functions, and of their errors. They need no cluster."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from child_process import run_python
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.compare import assert_matches

pytest.importorskip("ray.data")

X = np.random.default_rng(0).standard_normal((9, 6), dtype=np.float32)


class Two(nn.Module):
    """Module with two inputs. ``structure`` combines its two results."""

    def __init__(self, structure: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 3)
        self.structure = structure

    def forward(self, a: Tensor, b: Tensor) -> Any:
        return self.structure(torch.tanh(self.first(a)), torch.relu(self.second(b)))


def one() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def in_pairs() -> nn.Module:
    torch.manual_seed(0)
    return Two(lambda a, b: (a, b)).eval()


def by_name() -> Any:
    torch.manual_seed(0)
    return torch.jit.trace(Two(lambda a, b: {"a": a, "b": b}).eval(), (torch.zeros(2, 6),) * 2, strict=False)


def mean_of_the_batch() -> nn.Module:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean()

    return Mean()


def predictor(model: Any = one, **arguments: Any) -> Any:
    keywords = {"inputs": "x", "examples": [{"x": X[:1]}], **arguments}
    return torchmdla.ray.Predictor(model, **keywords)


def eager(x: Any, model: Callable[[], nn.Module] = one) -> Tensor:
    with torch.no_grad():
        return model()(torch.as_tensor(x))


def check(column: Any, x: Any) -> None:
    assert_matches(torch.from_numpy(column), eager(x), layers=2)


@pytest.mark.sampled(0)
def test_ray_is_imported_when_it_is_asked_for() -> None:
    done = run_python(
        "import sys, torchmdla; assert 'ray' not in sys.modules; torchmdla.ray.Predictor; import ray.data"
    )
    assert done.returncode == 0, done.stderr


def test_without_ray_the_error_names_the_package_to_install() -> None:
    done = run_python("import sys; sys.modules['ray'] = None; import torchmdla; torchmdla.ray")
    assert done.returncode == 1
    assert "ModuleNotFoundError: torchmdla.ray needs the package ray: pip install 'torchmdla[ray]'" in done.stderr


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return the paths of the same model in each kind of file."""
    kinds = {kind: tmp_path / name for kind, name in FILES.items()}
    examples = [torch.zeros(rows, 6) for rows in (4, 3, 2, 1)]
    torch.jit.save(torch.jit.trace(one(), examples[0]), kinds["torchscript"])
    torchmdla.save(one(), kinds["package"], inputs=examples)
    torch.export.save(torch.export.export(one(), (examples[0],)), kinds["one size"])
    dynamic = ({0: torch.export.Dim("rows", min=2)},)
    torch.export.save(torch.export.export(one(), (examples[0],), dynamic_shapes=dynamic), kinds["any size"])
    return kinds


FILES = {"torchscript": "model.pt", "package": "package.pt", "one size": "model.pt2", "any size": "dynamic.pt2"}


@pytest.mark.parametrize("kind", FILES)
def test_files(files: dict[str, Path], kind: str) -> None:
    instance = predictor(files[kind], batch_size=4, pad=kind == "one size")
    for rows in (4, 3, 2, 4):
        check(instance({"x": X[:rows]})["output"], X[:rows])


@pytest.mark.parametrize("kind", ["torchscript", "one size", "any size"])
def test_a_warm_model_compiles_nothing_more(files: dict[str, Path], kind: str) -> None:
    instance = predictor(files[kind], batch_size=4, pad=kind == "one size")
    before = torchmdla.stats()
    for rows in (4, 3, 2):
        instance({"x": X[:rows]})
    after = torchmdla.stats()
    assert before.specialisations == after.specialisations > 0
    assert after.fallbacks == {}
    assert [group.recorded_calls for group in before.by_group] == [group.recorded_calls for group in after.by_group]


def test_a_package_is_not_compiled(files: dict[str, Path]) -> None:
    done = run_python(
        """
        import sys, numpy as np, torchmdla
        made = torchmdla.ray.Predictor(sys.argv[1], inputs="x")
        made({"x": np.zeros((4, 6), np.float32)})
        stats = torchmdla.stats()
        assert stats.packaged > 0 and stats.compiled + stats.cache_hits + stats.memory_hits == 0, stats
        """,
        str(files["package"]),
    )
    assert done.returncode == 0, done.stderr


def test_functions_that_make_compiled_modules() -> None:
    exported = torch.export.export(one(), (torch.zeros(4, 6),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    for make in (
        lambda: torch.jit.script(one()),
        lambda: exported,
        lambda: torchmdla.compile(exported),
        lambda: torch.compile(one(), backend="torchmdla"),
    ):
        check(predictor(make, batch_size=4)({"x": X[:3]})["output"], X[:3])


class SizeOfTheBatch(nn.Module):
    """Module that returns the number of rows of the batch for each row."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(x.size(0)) + x.size(0)


@pytest.mark.parametrize("pad", [False, True])
def test_short_batches_are_filled_up_where_that_is_asked_for(pad: bool) -> None:
    instance = predictor(lambda: torch.jit.script(SizeOfTheBatch().eval()), batch_size=4, pad=pad)
    for rows, computed in ((4, 4), (3, 4 if pad else 3), (9, 9), (1, 4 if pad else 1)):
        assert instance({"x": X[:rows]})["output"].tolist() == [computed] * rows


def test_padding_of_short_batches_changes_no_result() -> None:
    instance = predictor(batch_size=4, pad=True)
    for rows in (1, 2, 3, 4, 7):
        check(instance({"x": X[:rows]})["output"], X[:rows])


def test_several_inputs_and_outputs() -> None:
    batch = {"left": X, "right": X[::-1], "id": np.arange(9)}
    examples = [{"left": X[:2], "right": X[:2]}]
    expected = in_pairs()(torch.from_numpy(X), torch.from_numpy(X[::-1].copy()))
    for model, outputs, names in (
        (in_pairs, None, ("output_0", "output_1")),
        (in_pairs, ("a", "b"), ("a", "b")),
        (by_name, None, ("a", "b")),
        (by_name, "b", ("b",)),
    ):
        instance = predictor(model, inputs=("left", "right"), outputs=outputs, keep="id", examples=examples)
        result = instance(batch)
        assert tuple(result) == ("id", *names)
        assert result["id"].tolist() == list(range(9))
        for name in names:
            wanted = expected[int(name in ("b", "output_1"))].detach()
            assert_matches(torch.from_numpy(result[name]), wanted, layers=1)


def test_functions_before_and_after() -> None:
    instance = predictor(
        preprocess=lambda batch: {"x": [row / 255 for row in batch["bytes"].astype(np.float32)]},
        postprocess=lambda results: {
            "best": results["output"].argmax(1),
            "label": [f"class {index}" for index in results["output"].argmax(1).tolist()],
        },
        examples=[{"bytes": np.zeros((1, 6), np.uint8)}],
        keep=("bytes",),
    )
    pixels = np.arange(30, dtype=np.uint8).reshape(5, 6)
    result = instance({"bytes": pixels})
    best = eager(pixels.astype(np.float32) / 255).argmax(1)
    assert result["best"].tolist() == best.tolist()
    assert result["label"].tolist() == [f"class {index}" for index in best.tolist()]
    assert result["bytes"] is pixels


def test_rows_of_several_sizes_are_computed_in_their_order() -> None:
    """Check that each result equals eager's result for that row alone."""

    def sums() -> Any:
        torch.manual_seed(0)
        layer = nn.Conv1d(2, 3, 3, padding=1).eval()
        return torch.jit.trace(nn.Sequential(layer, nn.ReLU()), torch.zeros(1, 2, 5))

    generator = np.random.default_rng(1)
    rows = [generator.standard_normal((2, length), dtype=np.float32) for length in (5, 7, 5, 9, 7, 5)]
    column = np.empty(len(rows), dtype=object)
    column[:] = rows
    instance = predictor(sums, examples=[{"x": np.zeros((1, 2, 5), np.float32)}], keep="id")
    result = instance({"x": column, "id": np.arange(6)})
    model = sums()
    assert result["output"].dtype == object
    for row, values in enumerate(rows):
        assert_matches(
            torch.from_numpy(result["output"][row].copy()), model(torch.from_numpy(values)[None])[0].detach()
        )
    single = instance.predict_rows([{"x": values, "id": row} for row, values in enumerate(rows)])
    for row, one_result in enumerate(single):
        assert one_result["id"] == row
        assert_matches(*map(torch.from_numpy, (one_result["output"].copy(), result["output"][row].copy())), layers=1)


def test_samples_one_by_one() -> None:
    instance = predictor(keep=("name", "raw"))
    samples = [{"x": X[row], "name": f"row {row}", "raw": bytes([row, 0])} for row in range(5)]
    results = instance.predict_rows(samples)
    assert [(result["name"], result["raw"]) for result in results] == [(s["name"], s["raw"]) for s in samples]
    check(np.stack([result["output"] for result in results]), X[:5])
    assert instance.predict_rows([]) == []


def test_memory_that_may_only_be_read() -> None:
    def writes() -> Any:
        class Writes(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.add_(1)

        return torch.jit.trace(Writes(), torch.zeros(2, 6))

    frozen = X.copy()
    frozen.setflags(write=False)
    result = predictor(writes)({"x": frozen})
    np.testing.assert_array_equal(frozen, X)
    assert_matches(torch.from_numpy(result["output"]), torch.from_numpy(X) + 1)


def test_halves_become_columns() -> None:
    instance = predictor(lambda: torch.jit.trace(one().bfloat16(), torch.zeros(2, 6, dtype=torch.bfloat16)),
                     preprocess=lambda batch: {"x": torch.from_numpy(batch["x"]).bfloat16()})  # fmt: skip
    with torch.no_grad():
        expected = one().bfloat16()(torch.from_numpy(X).bfloat16())
    result = torch.from_numpy(instance({"x": X})["output"])
    assert result.dtype == torch.float32
    assert_matches(result.bfloat16(), expected, layers=2)


def test_it_is_pickled_as_its_arguments() -> None:
    instance = predictor(keep="id", batch_size=4, name="named")
    pickled = pickle.dumps(instance)
    assert len(pickled) < 1000
    result = pickle.loads(pickled)({"x": X, "id": np.arange(9)})
    check(result["output"], X)


def test_threads_stay_outside_of_an_actor() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    predictor()
    assert torch.get_num_threads() == threads + 1


WRONG = {
    "no file": ({"model": "nowhere/model.pt"}, FileNotFoundError, r"no model at nowhere/model.pt on node .*each node"),
    "a module": ({"model": one()}, TypeError, "give a function that makes it"),
    "a number": ({"model": 3}, TypeError, "a model is a path, or a function that returns a module, got int"),
    "no module": ({"model": dict}, TypeError, "returned no module, but a dict"),
    "no example": ({"examples": ()}, ValueError, "traced with an example"),
    "one example": ({"examples": {"x": X}}, TypeError, "examples is a list of batches"),
    "empty example": ({"examples": [{"x": X[:0]}]}, ValueError, "an example has no rows"),
    "no inputs": ({"inputs": ()}, ValueError, "inputs names the columns"),
    "no rows": ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    "pad": ({"pad": True}, ValueError, "pad=True needs the batch_size"),
    "example's name": ({"inputs": "y"}, ValueError, "batch: unknown column 'y'"),
    "outputs": ({"outputs": ("a", "b")}, ValueError, r"outputs names 2 results \(a, b\), the model returned 1"),
    "no such output": (
        {"model": by_name, "inputs": ("x", "x2"), "examples": [{"x": X, "x2": X}], "outputs": "c"},
        ValueError,
        "the model returned no 'c'; it returned 'a', 'b'",
    ),
    "of the batch": ({"model": mean_of_the_batch}, ValueError, r"of a batch of 1 rows has sizes \[\]; the first must"),
    "preprocess": ({"preprocess": lambda batch: {"x": X[:5]}}, ValueError, "preprocess made 5 rows of a batch of 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case: str) -> None:
    arguments, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        predictor(**arguments)


WRONG_BATCHES = {
    "column": ({"y": X, "id": X}, "batch: unknown column 'x'"),
    "kept column": ({"x": X}, "batch: unknown column 'id'"),
    "lengths": ({"x": X, "id": np.arange(4)}, r"columns must have one length, got {'x': 9, 'id': 4}"),
    "texts": ({"x": np.array(["a", "b"]), "id": np.arange(2)}, "column 'x' cannot become a tensor"),
    "nothing": ({"x": np.array([X[0], None], dtype=object), "id": np.arange(2)}, "column 'x' cannot become a tensor"),
}


@pytest.mark.parametrize("case", WRONG_BATCHES)
def test_wrong_batches(case: str) -> None:
    batch, message = WRONG_BATCHES[case]
    with pytest.raises(ValueError, match=message):
        predictor(keep="id")(batch)


def test_a_name_is_for_one_column() -> None:
    with pytest.raises(ValueError, match="'x' is both kept and a result"):
        predictor(outputs="x", keep="x")({"x": X})


def test_samples_have_the_same_columns() -> None:
    with pytest.raises(ValueError, match=r"different columns: \[\('x',\), \('x', 'y'\)\]"):
        predictor().predict_rows([{"x": X[0]}, {"x": X[0], "y": 1}])
