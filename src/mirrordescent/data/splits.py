"""Fixed parts of a collection for training and for testing."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from mirrordescent._internal.suggestions import require_known

Split: TypeAlias = Literal["train", "test"]

TEST_SHARE = 0.2


def split_indices(split: Split, count: int, test: int | None = None, seed: int = 0) -> Tensor:
    """Return the indices below ``count`` that belong to a split, in increasing order.

    A seeded permutation sets ``test`` of them apart, by default a fifth but at least one; never
    all.

    >>> split_indices("test", 10), len(split_indices("train", 10))
    (tensor([1, 4]), 8)
    """
    require_known(split, get_args(Split), "split")
    test = max(1, int(TEST_SHARE * count)) if test is None else test
    if not 0 < test < count:
        raise ValueError(f"{count} items cannot be split with {test} of them for testing")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return (order[:test] if split == "test" else order[test:]).sort().values
