"""Shared by the tests of data."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def real_data():
    """The data directory, where there is one."""
    chosen = os.environ.get("MIRRORDESCENT_DATA")
    if not chosen:
        pytest.skip("needs real data: set MIRRORDESCENT_DATA to a folder with mnist/, omniglot/, …")
    return chosen


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """An empty data directory, named by the variable."""
    empty = tmp_path / "data"
    monkeypatch.setenv("MIRRORDESCENT_DATA", str(empty))
    return empty
