"""Learned potentials: input-convex networks with explicit gradients."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import ClassVar, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mirrordescent._internal.suggestions import require_known
from mirrordescent.parts import Part
from mirrordescent.trees import sum_per_sample

ActivationName: TypeAlias = Literal["softplus", "leaky_relu"]
Padding: TypeAlias = Literal["zeros", "circular"]


class Potential(Part, nn.Module):
    """A strongly convex ψ on Rⁿ with an explicit gradient, the building block of learned maps.

    ψ(x) − (α/2)‖x‖² is convex, with α = ``strong_convexity`` > 0. To add a potential, write
    ``value``, ``gradient`` and ``strong_convexity``. Use differentiable operations, because
    meta-training and the inverse differentiate ``gradient``.
    """

    kind = "potential"

    def __init__(self) -> None:
        super().__init__()

    @property
    def strong_convexity(self) -> float:
        """A constant α > 0 in ℓ₂ that holds for all values of the parameters."""
        raise NotImplementedError

    def value(self, x: Tensor) -> Tensor:
        """ψ(x) per sample: (batch,)."""
        raise NotImplementedError

    def gradient(self, x: Tensor) -> Tensor:
        """∇ψ(x), in the shape of x."""
        raise NotImplementedError

    @property
    def smooth(self) -> bool | None:
        """Whether ∇ψ is continuous; None if unknown."""
        return None


class InputConvex(Potential):
    """An input-convex network.

    .. code-block:: none

        a_0  =  L_0 x + (Q_0 x)² + b_0
        a_l  =  W_l σ(a_{l−1}) + L_l x + (Q_l x)² + b_l          W_l ≥ 0
        ψ(x) =  ⟨c, σ(a_last)⟩ + ((μ + a)/2)‖x‖²                 c ≥ 0,  a ≥ 0

    Every a_l is convex in x, because σ is convex and non-decreasing and W_l ≥ 0. So ψ is convex for
    all values of the parameters, and (μ + a)-strongly convex. The chain rule gives

    .. code-block:: none

        g_last = c·σ'(a_last),    g_{l−1} = σ'(a_{l−1})·W_lᵀ g_l
        ∇ψ(x)  = Σ_l L_lᵀ g_l + 2 Q_lᵀ(Q_l x · g_l) + (μ + a) x

    All L_l and Q_l are applied at once, and so are their transposes: two layers need four linear
    maps.

    W, c and a are softplus of free parameters. With clamping or squaring, a weight at 0 would have
    gradient 0 and stop learning. The initial map is ∇ψ(x) ≈ x: μ + a = 1, and L and Q are small.

    A subclass provides the linear maps: convolutions or matrix products. ``quadratic`` adds the
    terms (Q_l x)². The ``activation`` is ``"softplus"``, which makes ψ smooth, or ``"leaky_relu"``
    (slope 0.2), whose gradient jumps, so that ∇ψ is not invertible everywhere.

    Reference: Amos, Xu, Kolter, ICML 2017.
    """

    generator: Generator | None = None  # not stored; the parameters replace it
    points: ClassVar[str]
    """Description of valid points in error messages."""

    def __init__(
        self,
        inputs: int,
        width: int,
        layers: int,
        window: tuple[int, ...],
        activation: ActivationName,
        quadratic: bool,
        mu: float,
        generator: Generator | None,
    ) -> None:
        super().__init__()
        for name, number in (("inputs", inputs), ("width", width), ("layers", layers)):
            if number < 1:
                raise ValueError(f"an input-convex network needs {name} ≥ 1, got {number}")
        require_known(activation, get_args(ActivationName), "activation")
        if not 0 < mu < 1:
            raise ValueError(
                f"an input-convex network needs 0 < mu < 1 to start near the identity, got mu={mu}"
            )
        self.inputs = inputs
        self.width = width
        self.layers = layers
        self.activation = activation
        self.quadratic = quadratic
        self.mu = float(mu)
        self._sigma = _ACTIVATIONS[activation]
        self._initialise(window, generator or torch.Generator().manual_seed(0))

    def _initialise(self, window: tuple[int, ...], generator: Generator) -> None:
        size = prod(window)
        rows = self.layers * self.width
        small = START / (self.inputs * size) ** 0.5
        kinds = 2 if self.quadratic else 1
        self.skips = nn.Parameter(
            small * torch.randn(kinds * rows, self.inputs, *window, generator=generator)
        )
        self.bias = nn.Parameter(torch.zeros(rows))
        # Rows of W, and c, that add up to 1 preserve the scale through the layers.
        mixing_shape = (self.layers - 1, self.width, self.width, *window)
        mixing = torch.full(mixing_shape, 1 / (self.width * size))
        self.mixing = nn.Parameter(_inverse_softplus(mixing))
        output = torch.full((self.width, *[1] * len(window)), 1 / self.width)
        self.output = nn.Parameter(_inverse_softplus(output))
        self.scale = nn.Parameter(_inverse_softplus(torch.tensor(1 - self.mu)))

    @property
    def strong_convexity(self) -> float:
        """α = μ + a, the coefficient of the quadratic part; the network part is convex."""
        return float(self._curvature().detach())

    @property
    def smooth(self) -> bool:
        return self.activation != "leaky_relu"

    def value(self, x: Tensor) -> Tensor:
        """ψ(x) per sample: (batch,)."""
        preactivations, _ = self._preactivations(x, F.softplus(self.mixing))
        network = sum_per_sample(F.softplus(self.output) * self._sigma.value(preactivations[-1]))
        return network + 0.5 * self._curvature() * sum_per_sample(x.square())

    def gradient(self, x: Tensor) -> Tensor:
        """∇ψ(x), in the shape of x."""
        weights = F.softplus(self.mixing)
        preactivations, roots = self._preactivations(x, weights)
        g = F.softplus(self.output) * self._sigma.slope(preactivations[-1])
        gradients = [g]  # g_0, …, g_last
        for layer in reversed(range(self.layers - 1)):
            g = self._sigma.slope(preactivations[layer]) * self._times_transposed(weights[layer], g)
            gradients.insert(0, g)
        if roots is not None:
            by_layer = zip(roots.chunk(self.layers, 1), gradients, strict=True)
            gradients = gradients + [2 * root * g for root, g in by_layer]
        network = self._times_transposed(self.skips, torch.cat(gradients, 1))
        return torch.addcmul(network.contiguous(), self._curvature(), x)

    def _preactivations(self, x: Tensor, weights: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return a_0, …, a_last, and the Q_l x of all layers, if there are any."""
        bias = F.pad(self.bias, (0, len(self.skips) - len(self.bias)))  # 0 for the Q_l x
        skips = self._times(self.skips, self._checked(x), bias)
        roots = None
        if self.quadratic:
            skips, roots = skips.chunk(2, 1)
            skips = torch.addcmul(skips, roots, roots)
        first, *rest = skips.chunk(self.layers, 1)
        preactivations = [first]
        for weight, skip in zip(weights, rest, strict=True):
            preactivations.append(skip + self._times(weight, self._sigma.value(preactivations[-1])))
        return preactivations, roots

    def _curvature(self) -> Tensor:
        return self.mu + F.softplus(self.scale)

    def _checked(self, x: Tensor) -> Tensor:
        if x.ndim != self.skips.ndim or x.shape[1] != self.inputs:
            raise ValueError(
                f"this potential needs {self.points.format(self.inputs)}, got {tuple(x.shape)}"
            )
        return x

    def _times(self, weight: Tensor, z: Tensor, bias: Tensor | None = None) -> Tensor:
        """W z + b."""
        raise NotImplementedError

    def _times_transposed(self, weight: Tensor, g: Tensor) -> Tensor:
        """Wᵀ g."""
        raise NotImplementedError


class DenseICNN(InputConvex):
    """An input-convex network on Rⁿ, for points (batch, dimension).

    The recursion is that of :class:`InputConvex`.

    Args:
        dimension: Dimension n of the points.
        hidden: Width of every layer.
        layers: Number of layers.
        activation: ``"softplus"`` or ``"leaky_relu"``.
        quadratic: Whether to add the terms (Q_l x)².
        mu: Lower bound on the strong convexity, which learning cannot reduce.
        generator: Random generator for the initial weights; one with seed 0 by default.

    >>> import torch
    >>> potential = DenseICNN(2, hidden=8)
    >>> potential.gradient(torch.tensor([[1.0, -2.0]])).shape
    torch.Size([1, 2])
    """

    points = "points (batch, {})"

    def __init__(
        self,
        dimension: int,
        hidden: int = 64,
        layers: int = 2,
        *,
        activation: ActivationName = "softplus",
        quadratic: bool = True,
        mu: float = 0.1,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(dimension, hidden, layers, (), activation, quadratic, mu, generator)
        self.dimension = dimension
        self.hidden = hidden

    def _times(self, weight: Tensor, z: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(z, weight, bias)

    def _times_transposed(self, weight: Tensor, g: Tensor) -> Tensor:
        return g @ weight


class ConvICNN(InputConvex):
    """An input-convex network on images (batch, channels, height, width) of any size.

    The recursion is that of :class:`InputConvex`, with convolutions as the linear maps. ⟨c, ·⟩ sums
    over pixels. The map is local: ∇ψ(x) at a pixel depends on x within 2·layers·(kernel−1)/2 pixels
    of it. A map learned on small images therefore applies to large ones.

    Args:
        channels: Number of channels of the images.
        filters: Width of every layer.
        layers: Number of layers.
        kernel: Side of every filter, an odd number.
        padding: ``"zeros"``, for x and hidden layers that are 0 outside the image; or
            ``"circular"``, for a map that commutes with circular shifts.
        activation, quadratic, mu, generator: See :class:`DenseICNN`.

    >>> import torch
    >>> potential = ConvICNN(3)
    >>> sum(p.numel() for p in potential.parameters())
    4081
    >>> potential.value(torch.zeros(4, 3, 32, 48)).shape
    torch.Size([4])
    """

    points = "images (batch, {}, height, width)"

    def __init__(
        self,
        channels: int,
        filters: int = 16,
        layers: int = 2,
        kernel: int = 3,
        *,
        padding: Padding = "zeros",
        activation: ActivationName = "softplus",
        quadratic: bool = True,
        mu: float = 0.1,
        generator: Generator | None = None,
    ) -> None:
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"ConvICNN needs an odd kernel ≥ 1, got {kernel}")
        require_known(padding, get_args(Padding), "padding")
        super().__init__(
            channels, filters, layers, (kernel, kernel), activation, quadratic, mu, generator
        )
        self.channels = channels
        self.filters = filters
        self.kernel = kernel
        self.padding = padding

    def _checked(self, x: Tensor) -> Tensor:
        """Return x in the layout ``channels_last``, the fastest on a CPU for few channels."""
        if super()._checked(x).shape[1] > 1:
            return x.contiguous(memory_format=torch.channels_last)
        # A single channel fits both layouts. Its stride of 1 selects channels_last.
        return x.squeeze(1).contiguous().unsqueeze(-1).movedim(-1, 1)

    def _times(self, weight: Tensor, z: Tensor, bias: Tensor | None = None) -> Tensor:
        border = self.kernel // 2
        if self.padding == "zeros":
            return F.conv2d(z, weight, bias, padding=border)
        return F.conv2d(F.pad(z, (border,) * 4, mode="circular"), weight, bias)

    def _times_transposed(self, weight: Tensor, g: Tensor) -> Tensor:
        border = self.kernel // 2
        if self.padding == "zeros":
            return F.conv_transpose2d(g, weight, padding=border)
        return F.conv_transpose2d(
            F.pad(g, (border,) * 4, mode="circular"), weight, padding=2 * border
        )


class _Activation(NamedTuple):
    """A convex, non-decreasing σ with its derivative."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


LEAK = 0.2
START = 0.1  # standard deviation of the initial L x and Q x for white noise x of variance 1


def _leaky_relu_slope(a: Tensor) -> Tensor:
    return (a > 0).to(a.dtype).mul_(1 - LEAK).add_(LEAK)


_ACTIVATIONS = {
    # The default threshold of 20 would cause a jump of 2e-9 in the slope.
    "softplus": _Activation(partial(F.softplus, threshold=40), torch.sigmoid),
    "leaky_relu": _Activation(partial(F.leaky_relu, negative_slope=LEAK), _leaky_relu_slope),
}


def _inverse_softplus(value: Tensor) -> Tensor:
    return value.expm1().log()
