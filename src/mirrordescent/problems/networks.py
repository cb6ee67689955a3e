"""Training networks: many of one architecture, side by side, as one batch of problems."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from mirrordescent.parts import Config, Part
from mirrordescent.problems.base import Function, Problem, require_finite
from mirrordescent.trees import Tree, batch_size

Networks: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

CHUNK = 1000  # data points looked at together when a value is computed: more of them fall out of the cache


class NetworkTraining(Problem):
    """f(w) = (1/n) Σᵢ ℓ(N(aᵢ; w), bᵢ), where N(·; w) is a network with parameters w and (aᵢ, bᵢ) are data.

    A point is a dict of the parameters of a batch of networks, ``name → (batch, *shape)``. They are computed together,
    so any ``nn.Module`` will do that has no state of its own (no running averages) and draws nothing (no dropout).

    Args:
        model: the architecture; its own parameters are not used.
        inputs: (n, …), shared by all networks, or (batch, n, …), where every network has its own data.
        targets: (n,) or (batch, n), likewise. Whole numbers are classes, for the cross-entropy; floating-point numbers
            in [0, 1] are probabilities for a network with one output, its logit.
        loss: another ℓ: of outputs (m, …) and targets (m,), one number each, (m,).
        evaluation: let ``value`` look at the first so many data points only; gradients still use all.

    >>> import torch
    >>> from torch import nn
    >>> problem = NetworkTraining(nn.Linear(2, 3), torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))
    >>> networks = {"weight": torch.zeros(1, 3, 2), "bias": torch.zeros(1, 3)}
    >>> problem.value(networks).exp()  # three classes, equally likely
    tensor([3.])
    """

    inputs: Tensor
    targets: Tensor

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        *,
        loss: Loss | None = None,
        evaluation: int | None = None,
    ) -> None:
        require_finite(inputs, "inputs")
        _check_data(inputs, targets, evaluation)
        super().__init__(len(targets) if targets.ndim == 2 else None, None)
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.loss = loss or (binary_cross_entropy if targets.is_floating_point() else cross_entropy)
        self.evaluation = evaluation
        self.register_buffer("inputs", inputs)
        self.register_buffer("targets", targets)

    def value(self, x: Tree) -> Tensor:
        """Return the mean loss, over the data or the part of it chosen for evaluation."""
        inputs, targets = self._first(self.evaluation)
        pieces = zip(_chunks(inputs, targets.ndim), _chunks(targets, targets.ndim), strict=True)
        return torch.cat([self._losses(cast(Networks, x), *piece) for piece in pieces], 1).mean(1)

    def grad(self, x: Tree) -> Tree:
        """Return the gradient over all data; inside an autograd graph it can be differentiated again."""
        return self._grad_over(x, self.inputs, self.targets)

    @property
    def terms(self) -> int:
        """The number of data points (of every network)."""
        return self.targets.shape[-1]

    def grad_of_terms(self, x: Tree, subset: Tensor) -> Tree:
        """Return the gradient of the mean loss over some data points."""
        subset = subset.to(self.targets.device)
        dimension = self.targets.ndim - 1
        return self._grad_over(x, self.inputs.index_select(dimension, subset), self.targets[..., subset])

    @torch.no_grad()
    def accuracy(self, x: Tree, inputs: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        """Return the share of the data ``value`` looks at, or of other data, that a network classifies rightly."""
        if inputs is None or targets is None:
            inputs, targets = self._first(self.evaluation)
        outputs = torch.cat([self.outputs(x, piece) for piece in _chunks(inputs, targets.ndim)], 1)
        if targets.is_floating_point():
            return ((outputs.squeeze(-1) > 0) == (targets > 0.5)).float().mean(1)
        return (outputs.argmax(-1) == targets).float().mean(1)

    def outputs(self, x: Tree, inputs: Tensor) -> Tensor:
        """Return what every network makes of inputs (n, …), or of its own (batch, n, …): (batch, n, …)."""
        own = 0 if self.batch is not None else None
        run = vmap(lambda parameters, data: functional_call(self.model, parameters, (data,)), in_dims=(0, own))
        return cast(Tensor, run(x, inputs))

    def initial(self, seeds: Iterable[int] | Tensor) -> Networks:
        """Draw one network of every seed as PyTorch initialises it."""
        like = self.inputs
        return {name: leaf.to(like) for name, leaf in default_networks(self.model, seeds).items()}

    def check(self, x: Tree, name: str = "x0") -> None:
        """Raise unless x is a finite batch of networks of this architecture."""
        wanted = {key: tuple(parameter.shape) for key, parameter in self.model.named_parameters()}
        if not isinstance(x, dict) or x.keys() != wanted.keys():
            raise TypeError(f"{name} must be a dict with the parameters {', '.join(wanted)}")
        super().check(x, name)
        if self.batch is not None and batch_size(x) != self.batch:
            raise ValueError(f"{name} has {batch_size(x)} networks, but there are data for {self.batch}")
        for key, leaf in x.items():
            if tuple(leaf.shape[1:]) != wanted[key]:
                raise ValueError(f"{key} of {name} has shape {tuple(leaf.shape)}, not (batch, …) = (…, {wanted[key]})")

    def _first(self, count: int | None) -> tuple[Tensor, Tensor]:
        dimension, count = self.targets.ndim - 1, count or self.terms
        return self.inputs.narrow(dimension, 0, count), self.targets.narrow(dimension, 0, count)

    def _grad_over(self, x: Tree, inputs: Tensor, targets: Tensor) -> Tree:
        return Function(lambda networks: self._losses(networks, inputs, targets).mean(1)).grad(x)

    def _losses(self, x: Networks, inputs: Tensor, targets: Tensor) -> Tensor:
        """ℓ of every network on every data point: (batch, n)."""
        outputs = self.outputs(x, inputs)
        shape = outputs.shape[:2]
        return self.loss(outputs.flatten(0, 1), targets.expand(shape).flatten()).reshape(shape)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(outputs)[target]: (m, classes), (m,) → (m,)."""
    return F.cross_entropy(outputs, targets, reduction="none")


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """−b log σ(s) − (1 − b) log(1 − σ(s)) of logits s and probabilities b: (m, 1), (m,) → (m,)."""
    return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets, reduction="none")


def default_networks(model: nn.Module, seeds: Iterable[int] | Tensor) -> Networks:
    """Draw one network of every seed, with entries from U(−1/√fan_in, 1/√fan_in): PyTorch's default.

    That is so for dense and convolutional layers; a model with other parameters is refused.

    >>> from torch import nn
    >>> networks = default_networks(nn.Linear(4, 3), seeds=[0, 1])
    >>> networks["weight"].shape, bool(networks["weight"].abs().max() <= 1 / 2)
    (torch.Size([2, 3, 4]), True)
    """
    bounds: dict[str, float] = {}
    for name, part in model.named_modules():
        if isinstance(part, (nn.Linear, nn.modules.conv._ConvNd)):
            fan_in = part.weight[0].numel()
            bounds |= {f"{name}.{own}".lstrip("."): fan_in**-0.5 for own, _ in part.named_parameters(recurse=False)}
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    if unknown := shapes.keys() - bounds.keys():
        raise TypeError(f"no default initialisation is known for {', '.join(sorted(unknown))}: draw x0 yourself")
    drawn = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(int(seed))
        drawn.append(
            {name: torch.empty(shape).uniform_(-bounds[name], bounds[name], generator=generator)
             for name, shape in shapes.items()}
        )  # fmt: skip
    return {name: torch.stack([network[name] for network in drawn]) for name in shapes}


def repeat(network: dict[str, Tensor], count: int) -> Networks:
    """Return one network ``count`` times, as a batch."""
    return {name: leaf.expand(count, *leaf.shape).clone() for name, leaf in network.items()}


def _chunks(data: Tensor, data_dimensions: int) -> tuple[Tensor, ...]:
    """Cut data along the dimension that counts data points, the first or, where networks have their own, the second."""
    return torch.split(data, CHUNK, data_dimensions - 1)


def _check_data(inputs: Tensor, targets: Tensor, evaluation: int | None) -> None:
    if targets.ndim not in (1, 2) or 0 in targets.shape:
        raise ValueError(f"targets must be (n,) or (batch, n), not empty, got {tuple(targets.shape)}")
    if inputs.shape[: targets.ndim] != targets.shape:
        raise ValueError(f"inputs {tuple(inputs.shape)} do not go with targets {tuple(targets.shape)}")
    if inputs.device != targets.device:
        raise TypeError(f"inputs are on {inputs.device}, but targets on {targets.device}")
    if evaluation is not None and not 1 <= evaluation <= targets.shape[-1]:
        raise ValueError(f"evaluation must be between 1 and the {targets.shape[-1]} data points, got {evaluation}")


class Initialisation(Part, nn.Module):
    """The parameters of one network, name → tensor, as something that can be stored."""

    kind = "initialisation"

    def __init__(self, network: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = list(network)
        self.tensors = nn.ParameterList([nn.Parameter(leaf, requires_grad=False) for leaf in network.values()])

    @property
    def network(self) -> dict[str, Tensor]:
        """The parameters by their names."""
        return {name: leaf.detach() for name, leaf in zip(self.names, self.tensors, strict=True)}

    def config(self) -> Config:
        """Return the parameters by their names."""
        return {"network": dict(zip(self.names, self.tensors, strict=True))}
