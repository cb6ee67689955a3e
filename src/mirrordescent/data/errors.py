"""What can be wrong with data on disk."""

from __future__ import annotations

from mirrordescent.names import require_known

__all__ = ["DataDamaged", "DataMissing", "require_known"]


class DataMissing(FileNotFoundError):
    """A file is not there and could not be fetched."""


class DataDamaged(ValueError):
    """A file is there but is not what it should be."""
