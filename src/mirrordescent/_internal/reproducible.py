"""Results of a sample that do not depend on the other samples of a batch, to the last bit.

Torch computes most entries of a tensor in vectors, and the remainder one by one with other code.
Powers, hyperbolic sines and sigmoids differ in their last bits between the two. Matrix products are
divided into blocks that depend on the number of rows and on their memory alignment. For a
non-smooth problem, such as total variation, a difference in the last bit can grow to any size.
"""

from collections.abc import Callable

import torch
from torch import Tensor

VECTOR = 64
"""Number of entries, a multiple of the length of a vector."""
GRAIN = 1 << 15
"""Number of entries below which torch uses one thread."""


def apply_padded(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an entrywise function with the same code for all entries.

    The remainder of a division into vectors is padded with ones.

    >>> x = torch.linspace(0, 1, 70, dtype=torch.float64)
    >>> torch.equal(apply_padded(torch.sinh, x[:66]), apply_padded(torch.sinh, x)[:66])
    True
    """
    if x.device.type != "cpu":
        return function(x)
    remainder = x.numel() % (VECTOR * _threads(x.numel()))
    if not remainder:
        return function(x.contiguous())
    flat = x.reshape(-1)
    vectors = flat[: flat.numel() - remainder]
    rest = flat[flat.numel() - remainder :]
    padding = rest.new_ones(-remainder % VECTOR)
    last = function(torch.cat([rest, padding]))[:remainder]
    if not len(vectors):
        return last.view(x.shape)
    return torch.cat([function(vectors), last]).view(x.shape)


def _threads(count: int) -> int:
    """Return the number of threads among which torch divides a number of entries.

    The part of every thread has a remainder.
    """
    if count <= GRAIN or torch.compiler.is_compiling():  # the compiler cannot trace the query
        return 1
    return min(torch.get_num_threads(), -(-count // GRAIN))


def apply_per_sample(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function to every sample separately, in newly allocated memory."""
    if not len(x):
        return function(x)
    return torch.cat([function(sample.clone()) for sample in torch.split(x, 1)])
