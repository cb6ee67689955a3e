"""Training networks: many of one architecture, side by side, as a batch of problems."""

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

# data points that a value is computed from at a time: more would not fit into the processor's cache
CHUNK = 1000
# data points of all networks together, from which on networks with convolutions are run one by one
MANY = 4096


class NetworkTraining(Problem):
    """f(w) = (1/n) Σᵢ ℓ(N(aᵢ; w), bᵢ), where N(·; w) is a network with parameters w and (aᵢ, bᵢ)
    are data.

    A point is a dict of the parameters of a batch of networks, ``name → (batch, *shape)``, which
    are all run together. Any ``nn.Module`` will do that has no state besides its parameters (no
    running averages) and is not random (no dropout).

    Args:
        model: the architecture; its own parameters are not used.
        inputs: (n, …), shared by all networks, or (batch, n, …), where every network has its own
            data.
        targets: (n,) or (batch, n), likewise. Whole numbers are classes, for the cross-entropy;
            floating-point numbers in [0, 1] are probabilities, for a network whose one output is a
            logit.
        loss: another ℓ, which maps outputs (m, …) and targets (m,) to one number each, (m,).
        evaluation: how many data points, the first ones, ``value`` looks at; gradients always use
            all.

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
                f"targets must be (n,) or (batch, n), not empty, got {tuple(targets.shape)}"
            )
        if inputs.shape[: targets.ndim] != targets.shape:
            raise ValueError(
                f"inputs {tuple(inputs.shape)} do not go with targets {tuple(targets.shape)}"
            )
        if inputs.device != targets.device:
            raise TypeError(f"inputs are on {inputs.device}, but targets on {targets.device}")
        if evaluation is not None and not 1 <= evaluation <= targets.shape[-1]:
            raise ValueError(
                f"evaluation must be between 1 and the {targets.shape[-1]} data points, got {evaluation}"
            )
        super().__init__(len(targets) if targets.ndim == 2 else None, None, inputs=inputs)
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.loss = loss or cross_entropy
        self.evaluation = evaluation
        self._convolves = any(
            isinstance(part, nn.modules.conv._ConvNd) for part in self.model.modules()
        )
        self.register_buffer("targets", targets)

    def value(self, x: Tree) -> Tensor:
        """Return the mean loss, over the data or the part of it chosen for evaluation."""
        return torch.cat(
            [self._losses(x, *piece) for piece in _pieces(*self._evaluated())], 1
        ).mean(1)

    def grad(self, x: Tree) -> Tree:
        """Return the gradient over all data; inside an autograd graph it can be differentiated
        again.
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
        """Return the share of the data of ``value``, or of other data, that each network classifies
        correctly.
        """
        if inputs is None or targets is None:
            inputs, targets = self._evaluated()
        outputs = torch.cat([self.outputs(x, piece) for piece, _ in _pieces(inputs, targets)], 1)
        if targets.is_floating_point():
            return ((outputs.squeeze(-1) > 0) == (targets > 0.5)).float().mean(1)
        return (outputs.argmax(-1) == targets).float().mean(1)

    def outputs(self, x: Tree, inputs: Tensor) -> Tensor:
        """Return the outputs of every network for inputs (n, …), or for its own (batch, n, …):
        (batch, n, …).
        """
        if self._by_themselves(x, inputs):
            return self._in_turn(cast(Networks, x), inputs)
        own = 0 if self.batch is not None else None
        run = vmap(
            lambda parameters, data: functional_call(self.model, parameters, (data,)),
            in_dims=(0, own),
        )
        return cast(Tensor, run(x, inputs))

    def _by_themselves(self, x: Tree, inputs: Tensor) -> bool:
        """Tell whether networks are faster one after the other: convolutions of many at once leave
        a CPU's caches.
        """
        if inputs.device.type != "cpu" or not self._convolves:
            return False
        points = (
            inputs.shape[0] * inputs.shape[1]
            if self.batch is not None
            else batch_size(x) * len(inputs)
        )
        return points > MANY

    def _in_turn(self, x: Networks, inputs: Tensor) -> Tensor:
        split = zip(
            *(leaf.unbind() for leaf in x.values()), strict=True
        )  # whose derivative is one stack a leaf
        each = [dict(zip(x, leaves, strict=True)) for leaves in split]
        data = inputs.unbind() if self.batch is not None else [inputs] * len(each)
        return torch.stack(
            [functional_call(self.model, p, (d,)) for p, d in zip(each, data, strict=True)]
        )

    def initial(self, seeds: Iterable[int] | Tensor) -> Networks:
        """Draw one network from every seed, as PyTorch initialises it."""
        return {
            name: leaf.to(self.inputs) for name, leaf in default_networks(self.model, seeds).items()
        }

    def check(self, x: Tree, name: str = "x0") -> None:
        """Raise unless x is a finite batch of networks of this architecture."""
        wanted = {key: tuple(parameter.shape) for key, parameter in self.model.named_parameters()}
        if not isinstance(x, dict) or x.keys() != wanted.keys():
            raise TypeError(f"{name} must be a dict with the parameters {', '.join(wanted)}")
        super().check(x, name)
        if self.batch is not None and batch_size(x) != self.batch:
            raise ValueError(
                f"{name} has {batch_size(x)} networks, but there are data for {self.batch}"
            )
        for key, leaf in x.items():
            if tuple(leaf.shape[1:]) != wanted[key]:
                raise ValueError(
                    f"{key} of {name} has shape {tuple(leaf.shape)}, not (batch, …) = (…, {wanted[key]})"
                )

    def _evaluated(self) -> tuple[Tensor, Tensor]:
        """Return the data that ``value`` looks at."""
        count = self.evaluation or self.terms
        return self.inputs.narrow(self.targets.ndim - 1, 0, count), self.targets[..., :count]

    def _grad_over(self, x: Tree, inputs: Tensor, targets: Tensor) -> Tree:
        return Function(lambda networks: self._losses(networks, inputs, targets).mean(1)).grad(x)

    def _losses(self, x: Tree, inputs: Tensor, targets: Tensor) -> Tensor:
        """ℓ of every network on every data point: (batch, n)."""
        outputs = self.outputs(x, inputs)
        shape = outputs.shape[:2]
        return self.loss(outputs.flatten(0, 1), targets.expand(shape).flatten()).reshape(shape)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(outputs)[target] of classes; −b log σ(s) − (1 − b) log(1 − σ(s)) of logits s and
    probabilities b.
    """
    if targets.is_floating_point():
        return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets, reduction="none")
    return F.cross_entropy(outputs, targets, reduction="none")


def default_networks(model: nn.Module, seeds: Iterable[int] | Tensor) -> Networks:
    """Draw one network from every seed, with entries from U(−1/√fan_in, 1/√fan_in).

    This is PyTorch's default for dense and convolutional layers; a model with other parameters is
    refused.

    >>> from torch import nn
    >>> networks = default_networks(nn.Linear(4, 3), seeds=[0, 1])
    >>> networks["weight"].shape, bool(networks["weight"].abs().max() <= 1 / 2)
    (torch.Size([2, 3, 4]), True)
    """
    bounds: dict[str, float] = {}
    for name, part in model.named_modules():
        if isinstance(part, (nn.Linear, nn.modules.conv._ConvNd)):
            fan_in = part.weight[0].numel()
            bounds |= {
                f"{name}.{own}".lstrip("."): fan_in**-0.5
                for own, _ in part.named_parameters(recurse=False)
            }
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    if unknown := shapes.keys() - bounds.keys():
        raise TypeError(
            f"no default initialisation is known for {', '.join(sorted(unknown))}: draw x0 yourself"
        )
    generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    def draw(name: str) -> list[Tensor]:
        return [
            torch.empty(shapes[name]).uniform_(-bounds[name], bounds[name], generator=g)
            for g in generators
        ]

    return {name: torch.stack(draw(name)) for name in shapes}


def repeat(network: dict[str, Tensor], count: int) -> Networks:
    """Return one network ``count`` times, as a batch."""
    return {name: leaf.expand(count, *leaf.shape).clone() for name, leaf in network.items()}


def _pieces(inputs: Tensor, targets: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Cut data along the dimension of the data points: the first or, where networks have their own
    data, the second.
    """
    return zip(
        *(torch.split(data, CHUNK, targets.ndim - 1) for data in (inputs, targets)), strict=True
    )


class Initialisation(Part, nn.Module):
    """The parameters of one network, name → tensor, as a part that can be stored."""

    kind = "initialisation"

    def __init__(self, network: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = list(network)
        self.tensors = nn.ParameterList(
            [nn.Parameter(leaf, requires_grad=False) for leaf in network.values()]
        )

    @property
    def network(self) -> dict[str, Tensor]:
        """The parameters by their names."""
        return {name: leaf.detach() for name, leaf in zip(self.names, self.tensors, strict=True)}

    def config(self) -> Config:
        return {"network": dict(zip(self.names, self.tensors, strict=True))}
