"""Tensors that belong to a module: learned, or fixed."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def hold(module: nn.Module, name: str, value: Tensor | float) -> None:
    """Keep a tensor in a module: as a parameter if it is one (it will be learned), else as a buffer."""
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, torch.as_tensor(value))
