"""Fixed parts of a collection for training and for testing."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from mirrordescent.data.errors import require_known

Split: TypeAlias = Literal["train", "test"]

TEST_SHARE = 0.2


def part(split: Split, count: int, test: int | None = None, seed: int = 0) -> Tensor:
    """Return the indices below ``count`` that belong to a part, in increasing order.

    A seeded permutation sets ``test`` of them apart, a fifth by default, at least one and never all.

    >>> part("test", 10), len(part("train", 10))
    (tensor([1, 4]), 8)
    """
    require_known(split, ("train", "test"), "split")
    if test is None:
        test = max(1, int(TEST_SHARE * count))
    if not 0 < test < count:
        raise ValueError(f"{count} items cannot be split with {test} of them for testing")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return (order[:test] if split == "test" else order[test:]).sort().values
