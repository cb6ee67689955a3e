"""Fixed parts of a collection for training and for testing."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from mirrordescent._internal.suggestions import require_known

Split: TypeAlias = Literal["train", "test"]

TEST_SHARE = 0.2


def split_indices(split: Split, count: int, test: int | None = None, seed: int = 0) -> Tensor:
    """Return the indices below ``count`` that belong to a split, in increasing order.

    Args:
        split: "train" or "test".
        count: Number of items.
        test: Number of test items; by default a fifth of all, but at least one.
        seed: Seed of the random choice.

    >>> split_indices("test", 10), len(split_indices("train", 10))
    (tensor([1, 4]), 8)
    """
    require_known(split, get_args(Split), "split")
    if test is None:
        test = max(1, int(TEST_SHARE * count))
    if not 0 < test < count:
        raise ValueError(f"{count} items cannot be split with {test} of them for testing")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    chosen = order[:test] if split == "test" else order[test:]
    return chosen.sort().values
