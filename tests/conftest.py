"""Shared by all tests."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

from mirrordescent import kernels

# Most tensors here are tiny, and threads that wait for each other on a busy machine cost more than
# they gain.
torch.set_num_threads(1)

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    """Keep tests away from the user's cache, and from each other's entries."""
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Have the kernels compiled, once for all tests of a run, or skip where that cannot be done."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    kept = os.environ.get("MIRRORDESCENT_TEST_KERNELS")  # by those who run the tests many times
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORDESCENT_CACHE", kept or str(shared / "kernels"))
        kernels.library.cache_clear()
        try:
            kernels.library()
        except kernels.BuildError as error:
            pytest.skip(f"kernels cannot be built here: {error}")
        yield
    # where they are compiled they are used, and other tests are not about them
    kernels.library.cache_clear()


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
        ),
    ]
)
def device(request):
    return torch.device(request.param)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


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
