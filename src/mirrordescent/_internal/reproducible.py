"""The same bits for a sample, whatever is in the batch beside it.

Most entries of a tensor are computed in vectors, and those left over at its end one by one, by
other code: powers, hyperbolic sines and sigmoids of both differ in their last bits. Products of
matrices are cut into blocks by how many rows there are, and where these lie in memory. Where a
method jumps, as with total variation, a last bit may become any other difference; so a sample would
depend on its neighbours.
"""

from collections.abc import Callable

import torch
from torch import Tensor

VECTORS = 64  # entries: a multiple of what is computed at once
GRAIN = 1 << 15  # entries, below which torch does not share work among threads


def apply_padded(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function to every entry by the same code: what is left over is filled up with ones to
    whole vectors.

    >>> x = torch.linspace(0, 1, 70, dtype=torch.float64)
    >>> torch.equal(apply_padded(torch.sinh, x[:66]), apply_padded(torch.sinh, x)[:66])
    True
    """
    if x.device.type != "cpu":
        return function(x)
    over = x.numel() % (VECTORS * _shares(x.numel()))
    if not over:
        return function(x.contiguous())
    flat = x.reshape(-1)
    whole = flat[: flat.numel() - over]
    rest = flat[flat.numel() - over :]
    filled = function(torch.cat([rest, rest.new_ones(-over % VECTORS)]))[:over]
    return (torch.cat([function(whole), filled]) if len(whole) else filled).view(x.shape)


def _shares(count: int) -> int:
    """Return among how many threads torch shares so many entries: each of them has an end of its
    own.
    """
    if count <= GRAIN or torch.compiler.is_compiling():  # which does not know of threads
        return 1
    return min(torch.get_num_threads(), -(-count // GRAIN))


def apply_per_sample(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function to every sample by itself, in memory of its own."""
    return (
        torch.cat([function(sample.clone()) for sample in torch.split(x, 1)])
        if len(x)
        else function(x)
    )
