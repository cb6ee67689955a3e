"""Potentials that are learned: input-convex networks with their gradients written out."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mirrordescent.parts import Config, Part
from mirrordescent.trees import sum_per_sample

ActivationName: TypeAlias = Literal["softplus", "leaky_relu"]
Padding: TypeAlias = Literal["zeros", "circular"]


class Potential(Part, nn.Module):
    """A convex ψ on all of Rⁿ with an explicit gradient, the building block of learned mirror maps.

    ψ(x) − (α/2)‖x‖² is convex, with α = ``strong_convexity`` > 0. To add a potential, write ``value``
    and ``gradient`` in differentiable operations: meta-training and the inverse differentiate
    through ``gradient``.
    """

    @property
    def strong_convexity(self) -> float:
        """A certified α > 0 in ℓ₂."""
        raise NotImplementedError

    def value(self, x: Tensor) -> Tensor:
        """ψ(x), one number per sample: (batch,)."""
        raise NotImplementedError

    def gradient(self, x: Tensor) -> Tensor:
        """∇ψ(x), shaped like x."""
        raise NotImplementedError

    @property
    def smooth(self) -> bool | None:
        """Whether ∇ψ is continuous; None: it is not known."""
        return None


class InputConvex(Potential):
    """An input-convex network, the recursion common to dense and convolutional ones:

    .. code-block:: none

        a_0  =  L_0 x + (Q_0 x)² + b_0
        a_l  =  W_l σ(a_{l−1}) + L_l x + (Q_l x)² + b_l          W_l ≥ 0
        ψ(x) =  ⟨c, σ(a_last)⟩ + ((μ + a)/2)‖x‖²                 c ≥ 0,  a ≥ 0

    Every a_l is convex in x, because σ is convex and non-decreasing and W_l ≥ 0; so ψ is convex for all
    values of the parameters, and (μ + a)-strongly convex. Back through the same pre-activations,

    .. code-block:: none

        g_last = c·σ'(a_last),    g_{l−1} = σ'(a_{l−1})·W_lᵀ g_l
        ∇ψ(x)  = Σ_l L_lᵀ g_l + 2 Q_lᵀ(Q_l x · g_l) + (μ + a) x

    which is a forward computation of four linear maps for two layers: all L_l and Q_l are applied at
    once, and so are their transposes.

    W, c and a are softplus of free parameters. Clamping and squaring stop learning at 0, where a
    weight's gradient vanishes; softplus does not. At the start ∇ψ(x) ≈ x: μ + a = 1, small L and Q.

    A subclass provides the linear maps: convolutions, or matrix products. ``quadratic`` adds the
    terms (Q_l x)². ``activation`` is ``"softplus"``, which makes ψ smooth, or ``"leaky_relu"``
    (slope 0.2), whose gradient jumps, so that it has no inverse everywhere.

    Reference: Amos, Xu, Kolter, ICML 2017.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        layers: int,
        window: tuple[int, ...],
        *,
        activation: ActivationName,
        quadratic: bool,
        mu: float,
        generator: Generator | None,
    ) -> None:
        super().__init__()
        for name, number in (("inputs", inputs), ("width", width), ("layers", layers)):
            if number < 1:
                raise ValueError(f"an input-convex network needs {name} ≥ 1, got {number}")
        if activation not in get_args(ActivationName):
            raise ValueError(f"activation must be one of {', '.join(get_args(ActivationName))}, got {activation!r}")
        if not 0 < mu < 1:
            raise ValueError(f"an input-convex network needs 0 < mu < 1, to start near the identity, got mu={mu}")
        self.inputs, self.width, self.layers = inputs, width, layers
        self.activation, self.quadratic, self.mu = activation, quadratic, float(mu)
        self._sigma = _ACTIVATIONS[activation]
        self._start(window, generator or torch.Generator().manual_seed(0))

    def _start(self, window: tuple[int, ...], generator: Generator) -> None:
        size, rows = prod(window), self.layers * self.width
        small = START / (self.inputs * size) ** 0.5
        kinds = 2 if self.quadratic else 1
        self.skips = nn.Parameter(small * torch.randn(kinds * rows, self.inputs, *window, generator=generator))
        self.bias = nn.Parameter(torch.zeros(rows))
        # Rows of W that add up to 1, and c that adds up to 1, keep the scale through the layers.
        even = torch.full((self.layers - 1, self.width, self.width, *window), 1 / (self.width * size))
        self.mixing = nn.Parameter(_inverse_softplus(even))
        self.output = nn.Parameter(_inverse_softplus(torch.full((self.width, *[1] * len(window)), 1 / self.width)))
        self.scale = nn.Parameter(_inverse_softplus(torch.tensor(1 - self.mu)))

    @property
    def strong_convexity(self) -> float:
        """α = μ + a, the coefficient of the quadratic part; the network adds only convexity."""
        return float(self._curvature().detach())

    @property
    def smooth(self) -> bool:
        """Only with a smooth activation."""
        return self.activation != "leaky_relu"

    def value(self, x: Tensor) -> Tensor:
        """ψ(x), one number per sample: (batch,)."""
        preactivations, _ = self._ascend(x, F.softplus(self.mixing))
        network = sum_per_sample(F.softplus(self.output) * self._sigma.value(preactivations[-1]))
        return network + 0.5 * self._curvature() * sum_per_sample(x.square())

    def gradient(self, x: Tensor) -> Tensor:
        """∇ψ(x), shaped like x."""
        weights = F.softplus(self.mixing)
        preactivations, roots = self._ascend(x, weights)
        g = F.softplus(self.output) * self._sigma.slope(preactivations[-1])
        pulled = [g]
        for layer in reversed(range(self.layers - 1)):
            g = self._sigma.slope(preactivations[layer]) * self._mix_back(g, weights[layer])
            pulled.insert(0, g)
        if roots is not None:
            pulled += [2 * root * g for root, g in zip(roots.chunk(self.layers, 1), pulled, strict=True)]
        return torch.addcmul(self._lower(torch.cat(pulled, 1)), self._curvature(), x)

    def _ascend(self, x: Tensor, weights: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Return a_0, …, a_last, and the Q_l x of all layers if there are any."""
        self._check(x)
        rows = self.layers * self.width
        lifted, roots = self._lift(x, F.pad(self.bias, (0, len(self.skips) - rows))), None
        if self.quadratic:
            lifted, roots = lifted.chunk(2, 1)
            lifted = torch.addcmul(lifted, roots, roots)
        first, *rest = lifted.chunk(self.layers, 1)
        preactivations = [first]
        for weight, skip in zip(weights, rest, strict=True):
            preactivations.append(skip + self._mix(self._sigma.value(preactivations[-1]), weight))
        return preactivations, roots

    def _curvature(self) -> Tensor:
        return self.mu + F.softplus(self.scale)

    def _check(self, x: Tensor) -> None:
        raise NotImplementedError

    def _lift(self, x: Tensor, bias: Tensor) -> Tensor:
        """All L_l x + b_l, then all Q_l x, stacked along dimension 1."""
        raise NotImplementedError

    def _lower(self, g: Tensor) -> Tensor:
        """The transpose of ``_lift``."""
        raise NotImplementedError

    def _mix(self, z: Tensor, weight: Tensor) -> Tensor:
        """W z."""
        raise NotImplementedError

    def _mix_back(self, g: Tensor, weight: Tensor) -> Tensor:
        """Wᵀ g."""
        raise NotImplementedError


class DenseICNN(InputConvex):
    """An input-convex network on Rⁿ: points (batch, dimension). The recursion is that of :class:`InputConvex`.

    Args:
        dimension: of the points, n.
        hidden: the width of every layer.
        layers: how many layers.
        activation: ``"softplus"`` or ``"leaky_relu"``.
        quadratic: add the terms (Q_l x)².
        mu: the strong convexity that no training can take away.
        generator: the source of the initial weights; seed 0 by default.

    >>> import torch
    >>> potential = DenseICNN(2, hidden=8)
    >>> potential.gradient(torch.tensor([[1.0, -2.0]])).shape
    torch.Size([1, 2])
    """

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
        super().__init__(
            dimension, hidden, layers, (), activation=activation, quadratic=quadratic, mu=mu, generator=generator
        )

    def config(self) -> Config:
        """The constructor's arguments."""
        return {
            "dimension": self.inputs,
            "hidden": self.width,
            "layers": self.layers,
            "activation": self.activation,
            "quadratic": self.quadratic,
            "mu": self.mu,
        }

    def _check(self, x: Tensor) -> None:
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"this potential is for points (batch, {self.inputs}), got {tuple(x.shape)}")

    def _lift(self, x: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, self.skips, bias)

    def _lower(self, g: Tensor) -> Tensor:
        return g @ self.skips

    def _mix(self, z: Tensor, weight: Tensor) -> Tensor:
        return F.linear(z, weight)

    def _mix_back(self, g: Tensor, weight: Tensor) -> Tensor:
        return g @ weight


class ConvICNN(InputConvex):
    """An input-convex network on images (batch, channels, height, width) of any size.

    The recursion is that of :class:`InputConvex` with convolutions for linear maps; ⟨c, ·⟩ sums over
    pixels, so that the map is local: ∇ψ(x) at a pixel depends on x within 2·layers·(kernel−1)/2 pixels
    of it, and a map learned on small images serves large ones.

    Args:
        channels: of the images.
        filters: the width of every layer.
        layers: how many layers.
        kernel: the odd side length of every filter.
        padding: ``"zeros"``: outside the image, x and the hidden layers are 0; then the transposes are
            plain transposed convolutions. ``"circular"``: opposite borders touch, and the map commutes
            with circular shifts.
        activation: ``"softplus"`` or ``"leaky_relu"``.
        quadratic: add the terms (Q_l x)².
        mu: the strong convexity that no training can take away.
        generator: the source of the initial weights; seed 0 by default.

    >>> import torch
    >>> potential = ConvICNN(3)
    >>> sum(p.numel() for p in potential.parameters())
    4081
    >>> potential.value(torch.zeros(4, 3, 32, 48)).shape
    torch.Size([4])
    """

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
        if padding not in get_args(Padding):
            raise ValueError(f"padding must be one of {', '.join(get_args(Padding))}, got {padding!r}")
        window = (kernel, kernel)
        super().__init__(
            channels, filters, layers, window, activation=activation, quadratic=quadratic, mu=mu, generator=generator
        )
        self.kernel, self.padding = kernel, padding

    def config(self) -> Config:
        """The constructor's arguments."""
        return {
            "channels": self.inputs,
            "filters": self.width,
            "layers": self.layers,
            "kernel": self.kernel,
            "padding": self.padding,
            "activation": self.activation,
            "quadratic": self.quadratic,
            "mu": self.mu,
        }

    def _check(self, x: Tensor) -> None:
        if x.ndim != 4 or x.shape[1] != self.inputs:
            raise ValueError(
                f"this potential is for images (batch, {self.inputs}, height, width), got {tuple(x.shape)}"
            )

    def _lift(self, x: Tensor, bias: Tensor) -> Tensor:
        return self._convolve(_channels_last(x), self.skips, bias)

    def _lower(self, g: Tensor) -> Tensor:
        return self._mix_back(g, self.skips).contiguous()

    def _mix(self, z: Tensor, weight: Tensor) -> Tensor:
        return self._convolve(z, weight)

    def _mix_back(self, g: Tensor, weight: Tensor) -> Tensor:
        border = self.kernel // 2
        if self.padding == "zeros":
            return F.conv_transpose2d(g, weight, padding=border)
        return F.conv_transpose2d(_wrap(g, border), weight, padding=2 * border)

    def _convolve(self, z: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        border = self.kernel // 2
        if self.padding == "zeros":
            return F.conv2d(z, weight, bias, padding=border)
        return F.conv2d(_wrap(z, border), weight, bias)


class _Activation(NamedTuple):
    """A convex, non-decreasing σ with its derivative."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


LEAK = 0.2
START = 0.1  # standard deviation of the initial L x and Q x for white x of variance 1


def _softplus(a: Tensor) -> Tensor:
    # The default threshold of 20 would put a step of 2e-9 into the slope.
    return F.softplus(a, threshold=40)


def _leaky_relu(a: Tensor) -> Tensor:
    return F.leaky_relu(a, LEAK)


def _leaky_relu_slope(a: Tensor) -> Tensor:
    return (a > 0).to(a.dtype).mul_(1 - LEAK).add_(LEAK)


_ACTIVATIONS = {
    "softplus": _Activation(_softplus, torch.sigmoid),
    "leaky_relu": _Activation(_leaky_relu, _leaky_relu_slope),
}


def _inverse_softplus(value: Tensor) -> Tensor:
    return value.expm1().log()


def _channels_last(x: Tensor) -> Tensor:
    """Store the channels of a pixel together, for which convolutions of few channels are fastest on a CPU."""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    # One channel fits both layouts; only its stride of 1 makes convolutions choose this one.
    return x.squeeze(1).contiguous().unsqueeze(-1).movedim(-1, 1)


def _wrap(x: Tensor, border: int) -> Tensor:
    return F.pad(x, (border,) * 4, mode="circular")
