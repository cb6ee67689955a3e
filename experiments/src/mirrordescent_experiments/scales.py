"""How large an experiment is, and how it reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

Scale: TypeAlias = Literal["quick", "standard", "paper"]
Say: TypeAlias = Callable[[str], object]
