"""Two processes compute the same as one: replicated (DDP) and sharded (FSDP2) parameters."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import processes

MATRICES = [[5, 3], [4, 5]]  # the output layer has another map

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="no gloo",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of both processes, which are started once because that takes most of the time."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(processes.work, (str(folder),), nprocs=processes.WORLD)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes.WORLD)]


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP"])
@pytest.mark.parametrize(("name", "kind"), processes.CASES)
def test_equal_to_one_process(found, wrapper, name, kind):
    # Means of gradients differ in the last digit. A polar factor amplifies that where singular
    # values are small.
    tolerance = 1e-11 if name in ("Preconditioned", "SpectralDescent") else 1e-12
    for each in found:
        assert each[f"{wrapper} {name} {kind}"] < tolerance


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP"])
def test_every_matrix_is_computed_by_one_process(found, wrapper):
    shares = [each[f"{wrapper} matrices"] for each in found]
    assert sorted(shares[0] + shares[1]) == sorted(MATRICES)
    assert all(shares)


def test_kernels_step_shards(found):
    if found[0]["FSDP compiled"] is None:
        pytest.skip("kernels cannot be built here")
    assert max(each["FSDP compiled"] for each in found) < 1e-12


def test_the_norm_of_all_shards_is_clipped(found):
    assert max(each["FSDP clipped"] for each in found) < 1e-12


def test_a_distributed_checkpoint_goes_on_where_it_was(found):
    assert max(each["FSDP resumed"] for each in found) < 1e-12


def test_maps_of_whole_tensors_are_refused_on_shards(found):
    for each in found:
        assert each["FSDP whole"].startswith("ValueError: SquaredPNorm acts on whole tensors")


def test_a_nan_in_one_shard_stops_all_processes(found):
    for each in found:
        assert each["FSDP not finite"].startswith(
            "FloatingPointError: the gradient of parameter 2.weight is not finite"
        )
        assert each["FSDP moved"] == 0
