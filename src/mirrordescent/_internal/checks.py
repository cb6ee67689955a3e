"""Checks of arguments, with errors that name the argument."""

import math

from torch import Tensor


def require_positive(**numbers: float) -> None:
    """Raise unless every number is positive and finite.

    >>> require_positive(weight=0.1, scale=0.0)
    Traceback (most recent call last):
    ValueError: scale must be positive and finite, got 0.0
    """
    for name, number in numbers.items():
        require_constant(**{name: number})
        if not 0 < number < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {number}")


def require_not_negative(**numbers: float) -> None:
    """Raise unless every number is finite and not negative."""
    for name, number in numbers.items():
        require_constant(**{name: number})
        if not 0 <= number < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {number}")


def require_constant(**numbers: object) -> None:
    """Raise if a number is a tensor that requires derivatives, which would be lost."""
    for name, number in numbers.items():
        if isinstance(number, Tensor) and number.requires_grad:
            raise TypeError(
                f"{name} must be a number, because there are no derivatives with respect to it; "
                f"got a tensor that requires them: give {name}.item()"
            )


def require_data(**tensors: Tensor) -> None:
    """Raise unless all tensors are finite floating-point tensors of one dtype on one device."""
    first_name = next(iter(tensors), "")
    for name, tensor in tensors.items():
        first = tensors[first_name]
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {tensor.dtype}")
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has NaN or infinite entries")
        if first.dtype != tensor.dtype or first.device != tensor.device:
            raise TypeError(
                f"{first_name} and {name} must share dtype and device, "
                f"got {first.dtype} on {first.device} and {tensor.dtype} on {tensor.device}"
            )
