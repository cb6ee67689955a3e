from __future__ import annotations

from mirrordescent import data


def test_every_public_name_exists():
    assert all(hasattr(data, name) for name in data.__all__)
