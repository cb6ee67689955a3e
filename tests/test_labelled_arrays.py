"""Arrays of NumPy, pandas and xarray: accepted everywhere, and results of the same kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mirrordescent as md
from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.image_arrays import as_images

pandas = pytest.importorskip("pandas")
xarray = pytest.importorskip("xarray")


def noise(*shape):
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def raster(numbers, *dims):
    coordinates = {dims[-1]: 10.0 * np.arange(numbers.shape[-1])}
    return xarray.DataArray(numbers, coordinates, dims, name="dose", attrs={"units": "Gy"})


@pytest.mark.parametrize("kind", ["numpy", "pandas", "xarray"])
def test_problems_take_data_of_all_kinds(kind):
    A = noise(5, 3)
    y = np.sign(noise(5) - 0.5)
    features, labels = {
        "numpy": (A, y),
        "pandas": (pandas.DataFrame(A, columns=list("xyz")), pandas.Series(y)),
        "xarray": (raster(A, "row", "column"), raster(y, "row")),
    }[kind]
    problem = md.LogisticRegression(features, labels)
    expected = md.LogisticRegression(torch.from_numpy(A), torch.from_numpy(y))
    x = torch.ones(1, 3)
    assert torch.equal(problem.value(x), expected.value(x))


def test_a_solution_is_of_the_kind_of_its_start():
    problem = md.Quadratic(torch.ones(3), centre=torch.tensor([[1.0, 2.0, 3.0]]))
    starts = {
        np.ndarray: np.zeros((1, 3), np.float32),
        pandas.DataFrame: pandas.DataFrame(np.zeros((1, 3), np.float32), columns=list("xyz")),
        xarray.DataArray: raster(np.zeros((1, 3), np.float32), "sample", "place"),
        torch.Tensor: torch.zeros(1, 3),
    }
    for kind, x0 in starts.items():
        solution = md.solve(problem, md.GD(1.0), x0, iterations=3)
        for answer in (solution.x, solution.best_x):
            assert type(answer) is kind
            np.testing.assert_allclose(np.asarray(answer), [[1, 2, 3]])
        assert isinstance(solution.value, torch.Tensor)
        assert not np.asarray(x0).any()
    frame = md.solve(problem, md.GD(1.0), starts[pandas.DataFrame], iterations=3).x
    assert list(frame.columns) == list("xyz")
    solution = md.solve(problem, md.GD(1.0), starts[xarray.DataArray], iterations=3)
    assert solution.x.place.to_numpy().tolist() == [0, 10, 20]
    assert solution.x.attrs == {"units": "Gy"}
    assert solution._repr_html_().startswith("<div>")


def test_a_dict_of_arrays_is_a_start_and_an_answer():
    problem = md.Function(lambda x: (x["a"] - 1).square().sum(-1) + x["b"].square().sum(-1))
    x0 = {"a": np.zeros((2, 2), np.float32), "b": torch.ones(2, 1)}
    x = md.solve(problem, md.GD(0.5), x0, iterations=5).x
    assert isinstance(x["a"], np.ndarray)
    assert isinstance(x["b"], torch.Tensor)
    np.testing.assert_allclose(x["a"], 1)
    with pytest.raises(TypeError, match=r"x0\['b'\] must be a tensor or an array of NumPy"):
        md.solve(problem, md.GD(0.5), {"a": x0["a"], "b": [1.0]})


def test_labels_of_images_are_kept():
    grey = noise(12, 10)
    frame = pandas.DataFrame(grey, columns=[f"column {j}" for j in range(10)])
    restored = md.denoise(frame, noise=0.1)
    assert list(restored.columns) == list(frame.columns)
    np.testing.assert_array_equal(restored.to_numpy(), md.denoise(grey, noise=0.1))
    image = raster(grey, "y", "x")
    restored = md.denoise(image, noise=0.1)
    np.testing.assert_array_equal(restored.x, image.x)
    assert restored.name == "dose"
    assert restored.attrs == image.attrs
    larger = md.upsample(image, 2)
    assert larger.dims == ("y", "x")
    assert larger.shape == (24, 20)
    assert not larger.coords  # those of the image do not fit


@pytest.mark.parametrize("dims", [("y", "x", "band"), ("band", "y", "x"), ("y", "Channel", "x")])
def test_the_axis_of_colours_is_found_by_its_name(dims):
    colour = noise(9, 8, 3)
    axis = [name.lower() in ("band", "channel") for name in dims].index(True)
    image = xarray.DataArray(np.moveaxis(colour, -1, axis), dims=dims)
    mask = xarray.DataArray(noise(9, 8) > 0.3, dims=("y", "x"))
    expected = md.inpaint(colour, mask.to_numpy(), noise=0.05)
    restored = md.inpaint(image, mask, noise=0.05)
    assert restored.dims == dims
    np.testing.assert_array_equal(np.moveaxis(restored.to_numpy(), axis, -1), expected)
    torch.testing.assert_close(as_images(image), as_images(colour))


def test_what_holds_no_numbers_is_refused():
    with pytest.raises(TypeError, match="A must hold real numbers, got an array of"):
        as_tensor(pandas.DataFrame({"a": ["x", "y"]}), "A")
    with pytest.raises(
        TypeError, match="a tensor or an array of NumPy, pandas or xarray, got list"
    ):
        as_tensor([1.0])
