"""Training of small convolutional networks with a hand-written gradient."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.trees import Tree

POOL = 4  # pixels of a pooling window


class SmallCNNTraining(NetworkTraining):
    """Training of small convolutional networks, each on its own few images.

    f(w) = mean cross-entropy of s = A·ReLU(max over windows of (K ∗ image) + b) + c. Its gradient
    is

    .. code-block:: none

        r = (softmax(s) − target)/n              ∂c = Σ r                 ∂A = Σ r featuresᵀ
        q = Aᵀr where the feature is positive    ∂b = Σ q over windows    ∂K = Σ q · patch

    where the patch is the one that has the maximum. If several patches of a window have the
    maximum, they share it. The patches of the images are the same in every step, so they are cut
    out once. The gradient can be differentiated again, with the choice of the maxima fixed.

    Args:
        model: Network from :func:`~mirrordescent.recipes.architectures.small_cnn`.
        inputs: Images (batch, n, 1, height, width) of every network.
        targets: Classes (batch, n) of the images.
    """

    patches: Tensor
    one_hot: Tensor

    def __init__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        super().__init__(model, inputs, targets)
        convolution, *_, dense = cast(nn.Sequential, self.model)
        last = len(cast(nn.Sequential, self.model)) - 1
        self.names = [f"{layer}.{part}" for layer in (0, last) for part in ("weight", "bias")]
        if (
            not isinstance(convolution, nn.Conv2d)
            or not isinstance(dense, nn.Linear)
            or targets.ndim != 2
        ):
            raise TypeError(
                "this gradient is that of a convolution and a dense layer, on data of each "
                "network's own"
            )
        self.register_buffer("patches", _patches(inputs.squeeze(2), convolution.kernel_size[0]))
        self.register_buffer("one_hot", F.one_hot(targets, dense.out_features).to(inputs))

    def outputs(self, x: Tree, inputs: Tensor) -> Tensor:
        """Return the outputs s of every network for its own images: (batch, n, classes)."""
        K, b, A, c = self._parts(x)
        _, channels = _pooled(K, b, _patches(inputs.squeeze(2), K.shape[-1]))
        return torch.baddbmm(c.unsqueeze(1), _by_image(channels, inputs.shape[1]), A.mT)

    def grad(self, x: Tree) -> Tree:
        """Return the gradient by the formulas above."""
        K, b, A, c = self._parts(x)
        n = self.terms
        values, channels = _pooled(K, b, self.patches)
        features = _by_image(channels, n)
        r = (torch.baddbmm(c.unsqueeze(1), features, A.mT).softmax(2) - self.one_hot) / n
        q = torch.bmm(r, A).reshape(len(K), n, K.shape[1], -1).transpose(1, 2).flatten(2) * (
            channels > 0
        )
        chosen = (values == values.amax(2, keepdim=True)).to(values)
        shares = chosen * (q / chosen.sum(2)).unsqueeze(2)
        slopes = torch.bmm(shares.flatten(2), self.patches.mT)
        found = (slopes.reshape(K.shape), q.sum(2), torch.bmm(r.mT, features), r.sum(1))
        return dict(zip(self.names, found, strict=True))

    def _parts(self, x: Tree) -> list[Tensor]:
        """Return K, b, A and c of every network."""
        return [cast(dict[str, Tensor], x)[name] for name in self.names]


def _pooled(K: Tensor, b: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """Return the convolution at every window, and the features.

    K ∗ image is (batch, channels, 4, n · windows). Features are the ReLU of the maxima plus b.
    """
    values = torch.bmm(K.flatten(2), patches).reshape(*K.shape[:2], POOL, -1)
    return values, (values.amax(2) + b.unsqueeze(2)).relu()


def _by_image(channels: Tensor, n: int) -> Tensor:
    """Reorder (batch, channels, n · windows) to (batch, n, channels · windows)."""
    return channels.reshape(*channels.shape[:2], n, -1).transpose(1, 2).flatten(2)


def _patches(images: Tensor, side: int) -> Tensor:
    """Cut images (batch, n, height, width) into patches (batch, side², 4 · n · windows)."""
    cut: Any = images.unfold(2, side, 1).unfold(3, side, 1)  # (batch, n, rows, columns, side, side)
    batch, n, rows, columns = cut.shape[:4]
    windows = cut.reshape(batch, n, rows // 2, 2, columns // 2, 2, side * side)
    return cast(
        Tensor, windows.permute(0, 6, 3, 5, 1, 2, 4).reshape(batch, side * side, -1).contiguous()
    )
