"""Network training: many networks of one architecture, as a batch of problems."""

import copy
from collections.abc import Callable, Iterable
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from mirrordescent.parts import Config, Part
from mirrordescent.problems.base import Function, Problem
from mirrordescent.trees import Tree, batch_size

Networks: TypeAlias = dict[str, Tensor]
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

CHUNK = 1000
"""Number of data points per evaluation; larger chunks do not fit into the cache."""

SEQUENTIAL_FROM = 4096
"""Number of data points of all networks from which on convolutions are run sequentially."""


class NetworkTraining(Problem):
    """f(w) = (1/n) Σᵢ ℓ(N(aᵢ; w), bᵢ), for a network N(·; w) with parameters w and data (aᵢ, bᵢ).

    A point is a dict with the parameters of a batch of networks, ``name → (batch, *shape)``. The
    model must have no state besides its parameters (no running averages) and must not be random
    (no dropout).

    Args:
        model: Architecture; its own parameters are not used.
        inputs: Inputs aᵢ, (n, …), shared by all networks; or (batch, n, …), one data set per
            network.
        targets: Targets bᵢ, (n,) or (batch, n). Integers are classes for the cross-entropy.
            Floating-point numbers in [0, 1] are probabilities for a network whose single output is
            a logit.
        loss: Loss ℓ, which maps outputs (m, …) and targets (m,) to losses (m,); cross-entropy by
            default.
        evaluation: Number of data points, from the first, that ``value`` uses; gradients use all.

    >>> import torch
    >>> from torch import nn
    >>> problem = NetworkTraining(nn.Linear(2, 3), torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))
    >>> networks = {"weight": torch.zeros(1, 3, 2), "bias": torch.zeros(1, 3)}
    >>> problem.value(networks).exp()  # three classes, equally likely
    tensor([3.])
    """

    never_below = 0.0

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
        if targets.ndim not in (1, 2) or 0 in targets.shape:
            raise ValueError(
                f"targets must be (n,) or (batch, n) and not empty, got {tuple(targets.shape)}"
            )
        if inputs.shape[: targets.ndim] != targets.shape:
            raise ValueError(
                f"inputs must start with the shape of targets, {tuple(targets.shape)}, "
                f"got {tuple(inputs.shape)}"
            )
        if inputs.device != targets.device:
            raise TypeError(
                "inputs and targets must be on one device, "
                f"got {inputs.device} and {targets.device}"
            )
        if evaluation is not None and not 1 <= evaluation <= targets.shape[-1]:
            raise ValueError(
                f"evaluation must be between 1 and the number of data points, "
                f"{targets.shape[-1]}, got {evaluation}"
            )
        super().__init__(len(targets) if targets.ndim == 2 else None, None, inputs=inputs)
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.loss = loss or cross_entropy
        self.evaluation = evaluation
        self._has_convolutions = any(
            isinstance(part, nn.modules.conv._ConvNd) for part in self.model.modules()
        )
        self.register_buffer("targets", targets)

    def value(self, x: Tree) -> Tensor:
        """Return the mean loss over the data points chosen for evaluation."""
        losses = [self._losses(x, *chunk) for chunk in _chunks(*self._evaluation_data())]
        return torch.cat(losses, 1).mean(1)

    def grad(self, x: Tree) -> Tree:
        """Return the gradient over all data points.

        If x requires a gradient, the result can be differentiated again.
        """
        return self._grad_over(x, self.inputs, self.targets)

    @property
    def terms(self) -> int:
        return self.targets.shape[-1]

    def grad_of_terms(self, x: Tree, subset: Tensor) -> Tree:
        """Return the gradient of the mean loss over some data points."""
        subset = subset.to(self.targets.device)
        inputs = self.inputs.index_select(self.targets.ndim - 1, subset)
        return self._grad_over(x, inputs, self.targets[..., subset])

    @torch.no_grad()
    def accuracy(
        self, x: Tree, inputs: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """Return the share of correctly classified data points of every network: (batch,).

        Args:
            x: Networks.
            inputs: Inputs; those of ``value`` by default.
            targets: Targets; those of ``value`` by default.
        """
        if inputs is None or targets is None:
            inputs, targets = self._evaluation_data()
        outputs = torch.cat([self.outputs(x, chunk) for chunk, _ in _chunks(inputs, targets)], 1)
        if targets.is_floating_point():
            return ((outputs.squeeze(-1) > 0) == (targets > 0.5)).float().mean(1)
        return (outputs.argmax(-1) == targets).float().mean(1)

    def outputs(self, x: Tree, inputs: Tensor) -> Tensor:
        """Return the outputs of every network: (batch, n, …).

        Args:
            x: Networks.
            inputs: Inputs, (n, …); or (batch, n, …) if every network has its own data.
        """
        if self._prefers_sequential(x, inputs):
            return self._sequential_outputs(cast(Networks, x), inputs)
        input_dim = 0 if self.batch is not None else None
        run = vmap(
            lambda parameters, data: functional_call(self.model, parameters, (data,)),
            in_dims=(0, input_dim),
        )
        return cast(Tensor, run(x, inputs))

    def _prefers_sequential(self, x: Tree, inputs: Tensor) -> bool:
        """Tell whether it is faster to run one network after the other.

        On a CPU, convolutions of many networks at once do not fit into the cache.
        """
        if inputs.device.type != "cpu" or not self._has_convolutions:
            return False
        if self.batch is not None:
            points = inputs.shape[0] * inputs.shape[1]
        else:
            points = batch_size(x) * len(inputs)
        return points > SEQUENTIAL_FROM

    def _sequential_outputs(self, x: Networks, inputs: Tensor) -> Tensor:
        # The derivative of unbind is a single stack per leaf.
        split = zip(*(leaf.unbind() for leaf in x.values()), strict=True)
        networks = [dict(zip(x, leaves, strict=True)) for leaves in split]
        data = inputs.unbind() if self.batch is not None else [inputs] * len(networks)
        outputs = []
        for parameters, own_inputs in zip(networks, data, strict=True):
            outputs.append(functional_call(self.model, parameters, (own_inputs,)))
        return torch.stack(outputs)

    def initial(self, seeds: Iterable[int] | Tensor) -> Networks:
        """Draw one network per seed with PyTorch's default initialisation."""
        networks = default_networks(self.model, seeds)
        return {name: leaf.to(self.inputs) for name, leaf in networks.items()}

    def check(self, x: Tree, name: str = "x0") -> None:
        """Raise an error unless x is a finite batch of networks of this architecture."""
        expected = {key: tuple(parameter.shape) for key, parameter in self.model.named_parameters()}
        if not isinstance(x, dict) or x.keys() != expected.keys():
            raise TypeError(f"{name} must be a dict with the parameters {', '.join(expected)}")
        super().check(x, name)
        if self.batch is not None and batch_size(x) != self.batch:
            raise ValueError(
                f"{name} has {batch_size(x)} networks, but there are data for {self.batch}"
            )
        for key, leaf in x.items():
            if tuple(leaf.shape[1:]) != expected[key]:
                raise ValueError(
                    f"{key} of {name} must have shape (batch, …) = (…, {expected[key]}), "
                    f"got {tuple(leaf.shape)}"
                )

    def _evaluation_data(self) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets that ``value`` uses."""
        count = self.evaluation or self.terms
        return self.inputs.narrow(self.targets.ndim - 1, 0, count), self.targets[..., :count]

    def _grad_over(self, x: Tree, inputs: Tensor, targets: Tensor) -> Tree:
        return Function(lambda networks: self._losses(networks, inputs, targets).mean(1)).grad(x)

    def _losses(self, x: Tree, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return ℓ of every network on every data point: (batch, n)."""
        outputs = self.outputs(x, inputs)
        shape = outputs.shape[:2]
        return self.loss(outputs.flatten(0, 1), targets.expand(shape).flatten()).reshape(shape)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every data point: (m,).

    For integer targets (classes) it is −log softmax(outputs)[target]. For floating-point targets
    (probabilities b) and logits s it is −b log σ(s) − (1 − b) log(1 − σ(s)).
    """
    if targets.is_floating_point():
        return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets, reduction="none")
    return F.cross_entropy(outputs, targets, reduction="none")


def default_networks(model: nn.Module, seeds: Iterable[int] | Tensor) -> Networks:
    """Draw one network per seed, with entries from U(−1/√fan_in, 1/√fan_in).

    This is PyTorch's default for dense and convolutional layers. A model with other layers raises a
    TypeError.

    >>> from torch import nn
    >>> networks = default_networks(nn.Linear(4, 3), seeds=[0, 1])
    >>> networks["weight"].shape, bool(networks["weight"].abs().max() <= 1 / 2)
    (torch.Size([2, 3, 4]), True)
    """
    bounds: dict[str, float] = {}
    for name, part in model.named_modules():
        if isinstance(part, (nn.Linear, nn.modules.conv._ConvNd)):
            fan_in = part.weight[0].numel()
            for parameter, _ in part.named_parameters(recurse=False):
                bounds[f"{name}.{parameter}".lstrip(".")] = fan_in**-0.5
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    if unknown := shapes.keys() - bounds.keys():
        raise TypeError(
            f"no default initialisation is known for {', '.join(sorted(unknown))}: give x0"
        )
    generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    def draw(name: str) -> list[Tensor]:
        return [
            torch.empty(shapes[name]).uniform_(-bounds[name], bounds[name], generator=g)
            for g in generators
        ]

    return {name: torch.stack(draw(name)) for name in shapes}


def repeat(network: dict[str, Tensor], count: int) -> Networks:
    """Return a batch of ``count`` copies of one network."""
    return {name: leaf.expand(count, *leaf.shape).clone() for name, leaf in network.items()}


def _chunks(inputs: Tensor, targets: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Split data along the dimension of the data points, which is the last one of the targets."""
    dim = targets.ndim - 1
    return zip(torch.split(inputs, CHUNK, dim), torch.split(targets, CHUNK, dim), strict=True)


class Initialisation(Part, nn.Module):
    """The parameters of one network as a part that can be stored.

    Args:
        network: Parameters by name.
    """

    kind = "initialisation"

    def __init__(self, network: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = list(network)
        self.tensors = nn.ParameterList(
            [nn.Parameter(leaf, requires_grad=False) for leaf in network.values()]
        )

    @property
    def network(self) -> dict[str, Tensor]:
        """The parameters by name."""
        return {name: leaf.detach() for name, leaf in zip(self.names, self.tensors, strict=True)}

    def config(self) -> Config:
        return {"network": dict(zip(self.names, self.tensors, strict=True))}
