"""Features of a network's weights at the start of a run, for the sizes of its steps.

Two ratios, neither of which changes if the inputs or outputs of a layer are rotated, tell networks
with usual random weights from others:

- ``scale``, the root mean square of the entries times √(3·fan-in), is 1 for the default
  initialisation of PyTorch, 2.4 for He's, and much smaller for networks whose layers multiply their
  inputs by a large number, such as sine networks.
- ``peak``, the largest singular value over that of a random matrix with entries of the same root
  mean square, (√rows + √columns)·rms, is about 1 for random weights, less for orthogonal ones, and
  larger for trained ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mirrordescent.mirrors.roles import LayerKind, Role

ITERATIONS = 30  # of the power method; more change the ratio of random matrices by a percent
INNER: tuple[LayerKind, ...] = ("hidden", "conv", "output")


class Start(NamedTuple):
    """Features of a tensor and of its network at the start of a run.

    Attributes:
        rms: Root mean square of the tensor's entries.
        peak: Largest singular value of the tensor over that of a random matrix; for vectors the
            network's.
        network_scale: Geometric mean of root mean squares times √(3·fan-in), over inner matrices.
        network_peak: Median of ``peak`` over inner matrices and embeddings.
    """

    rms: float = 0.0
    peak: float = 1.0
    network_scale: float = 1.0
    network_peak: float = 1.0


def starts(tensors: Mapping[str, Tensor], roles: Mapping[str, Role]) -> dict[str, Start]:
    """Return the features of all tensors of a network.

    Matrices that are zero count neither for the scale nor for the peak of the network.

    Args:
        tensors: Tensors by name.
        roles: Roles by name.

    >>> import torch
    >>> from mirrordescent.mirrors import roles_of
    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> model = torch.nn.Sequential(torch.nn.Linear(99, 300), torch.nn.Linear(300, 9))
    >>> start = starts(dict(model.named_parameters()), roles_of(model))["1.weight"]
    >>> round(start.network_scale, 1), round(start.peak, 1)
    (1.0, 1.0)
    """
    rms: dict[str, float] = {}
    peaks: dict[str, float] = {}
    scales: list[float] = []
    for name, tensor in tensors.items():
        role = roles[name]
        rms[name] = root_mean_square(tensor)
        if tensor.ndim < 2 or rms[name] == 0:
            continue
        peaks[name] = singular_peak(tensor)
        if role.kind in INNER:
            scales.append(rms[name] * math.sqrt(3 * role.fan_in))
    counted = [peaks[name] for name in peaks if roles[name].kind not in ("input", "output")]
    counted = sorted(counted or peaks.values())
    network_peak = counted[len(counted) // 2] if counted else 1.0
    network_scale = math.exp(sum(map(math.log, scales)) / len(scales)) if scales else 1.0
    return {
        name: Start(rms[name], peaks.get(name, network_peak), network_scale, network_peak)
        for name in tensors
    }


@torch.no_grad()
def root_mean_square(tensor: Tensor) -> float:
    """Return the root mean square of the entries; 0 if there are none or if one is not finite."""
    if not tensor.numel() or tensor.is_meta:
        return 0.0
    value = float(_whole(tensor).float().square().mean().sqrt())
    return value if math.isfinite(value) else 0.0


@torch.no_grad()
def singular_peak(tensor: Tensor) -> float:
    """Return σ_max/((√m + √n)·rms) of a tensor as a matrix of its first axis by the others.

    σ_max is a lower bound by the power method, a few percent below for random matrices.
    """
    matrix = _whole(tensor).float().flatten(1)
    m, n = matrix.shape
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(n, generator=generator).to(matrix.device)
    norm = matrix.norm()
    if not 0 < float(norm) < math.inf:
        return 1.0
    for _ in range(ITERATIONS):
        v = matrix.T @ (matrix @ (v / v.norm()))
    largest = float(v.norm().sqrt())
    rms = float(norm) / math.sqrt(m * n)
    return largest / ((math.sqrt(m) + math.sqrt(n)) * rms)


def _whole(tensor: Tensor) -> Tensor:
    """Return a tensor of which processes may hold parts, without its derivatives."""
    gather = getattr(tensor.detach(), "full_tensor", None)
    return tensor.detach() if gather is None else gather()
