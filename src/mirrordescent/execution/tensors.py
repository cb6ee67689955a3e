"""Lists of tensors."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

from torch import Tensor

T = TypeVar("T")

Tensors: TypeAlias = list[Tensor]


def select(items: list[T], indices: list[int]) -> list[T]:
    """Return the items with these increasing indices; the list itself if these are all."""
    return items if len(indices) == len(items) else [items[i] for i in indices]
