from __future__ import annotations

import math

import pytest
import torch

from mirrordescent._internal.image_arrays import psnr


def test_psnr_of_a_known_error():
    truth = torch.full((3, 4, 5), 0.5)
    assert psnr(truth + 0.1, truth) == pytest.approx(20, abs=1e-5)
    assert psnr(truth, truth) == math.inf
