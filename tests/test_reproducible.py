"""Entries and samples that are computed alike wherever they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent._internal.reproducible import GRAIN, apply_padded, apply_per_sample

FUNCTIONS = {"sinh": torch.sinh, "sigmoid": torch.sigmoid, "power": lambda x: x.abs().pow(1.3)}
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@functions
@types
def test_an_entry_is_the_same_wherever_it_is(function, dtype):
    numbers = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
        dtype
    )
    whole = apply_padded(function, numbers)
    for first in range(0, 130, 3):
        for last in (first + 1, first + 7, first + 64, first + 101):
            assert torch.equal(apply_padded(function, numbers[first:last]), whole[first:last])


@functions
def test_it_is_the_function(function):
    for shape in ((0,), (), (3, 5), (2, 3, 64), (7, 31)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        for each in (x, x.mT if x.ndim > 1 else x):
            torch.testing.assert_close(
                apply_padded(function, each), function(each), rtol=1e-15, atol=0.0
            )


def test_derivatives_of_any_order():
    x = torch.randn(
        3, 23, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True
    )
    assert torch.autograd.gradcheck(lambda x: apply_padded(torch.sinh, x), x)
    assert torch.autograd.gradgradcheck(lambda x: apply_padded(torch.sigmoid, x), x)


def test_every_thread_has_an_end_of_its_own():
    count = 2 * GRAIN + 3331
    threads = torch.get_num_threads()
    numbers = torch.randn(3, count, generator=torch.Generator().manual_seed(2))
    try:
        for some in (1, 2, 3):
            torch.set_num_threads(some)
            whole = apply_padded(torch.sinh, numbers)
            for i in range(3):
                assert torch.equal(apply_padded(torch.sinh, numbers[i].clone()), whole[i])
    finally:
        torch.set_num_threads(threads)


@types
def test_samples_one_by_one(dtype):
    product = nn.Linear(17, 9, dtype=dtype).requires_grad_(False)
    x = torch.randn(5, 3, 17, generator=torch.Generator().manual_seed(3), dtype=dtype)
    together = apply_per_sample(product, x)
    torch.testing.assert_close(together, product(x))
    for i in range(5):
        assert torch.equal(apply_per_sample(product, x[i : i + 1]), together[i : i + 1])
    assert apply_per_sample(product, x[:0]).shape == (0, 3, 9)
