"""A switch from one method to another after a number of steps."""

from typing import Any

import torch
from torch import Generator, Tensor

from mirrordescent.conditioning import ConditionalLaws
from mirrordescent.methods.base import GradientMethod, Method, StatefulWrapper, Wrapped
from mirrordescent.methods.certified import Certified
from mirrordescent.methods.conditioned import Conditioned
from mirrordescent.methods.equipped import overrides_step
from mirrordescent.methods.primal_dual import PDHG, CondatVu, PrimalDual
from mirrordescent.mirrors import Stencil
from mirrordescent.oracles import Default, Oracle, Rounded
from mirrordescent.parts import Config
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import Schedule
from mirrordescent.trees import Tree

SWITCH_AFTER = 20
"""Steps of a learned method on images before a primal-dual method takes over."""

PDHG_RATIO = 0.3
"""Ratio of the step sizes of PDHG as the second method."""

STENCIL_RATIO = 0.2
"""Ratio of the step sizes of Condat and Vũ's method with a stencil, chosen on photographs."""

STENCIL_RELAXATION = 1.7
"""Relaxation of that method, chosen with the ratio for the fewest steps to a proof."""

STENCIL_DAMPING = 0.6
"""Damping of that stencil."""

WEIGHT_EXPONENT = -0.5
"""Exponent of λ/λ₀ in the ratio, for methods that know λ."""


class Switch(StatefulWrapper):
    """One method for the first ``after`` steps, then another.

    The second method begins at the answer of the first, and its schedules go on at the count that
    the first has reached. A primal-dual method begins with the dual variable that belongs to this
    point, u = prox_{aG*}(aKx), where a is the curvature that the oracle of the first method has
    reached, or σ. Oracles that are given to a solve are for the first method. The second uses its
    own oracle or exact gradients.

    Learned methods are ahead in the first tens of steps. A primal-dual method proves the result
    and is good at the last digits. A classical method finishes the problems on which a learned one
    is slow.

    Args:
        first: Method of the first steps.
        after: Number of these steps.
        then: Method of the other steps; PDHG by default.
        certified: Whether the first method is :class:`Certified` too, at the price of a mean of
            gradients. By default if ``then`` is a primal-dual method, which proves bounds, and the
            gradients of ``first`` can be used.
        dual_start: Whether a primal-dual ``then`` begins with the dual variable that belongs to x,
            instead of u = 0.

    >>> import torch
    >>> from mirrordescent import TVDenoising, gap, solve, zoo
    >>> problem = TVDenoising(torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)))
    >>> method = Switch(zoo.load("ellipse-denoise-conjugate"), after=10)
    >>> solve(problem, method, iterations=2000, stop=gap(1e-4), check_every=10).statuses
    [<Status.CONVERGED: 1>]

    >>> from mirrordescent import GD, LBFGS, Quadratic
    >>> bowl = Quadratic(torch.tensor([1.0, 100.0]), centre=torch.ones(1, 2))
    >>> bool(solve(bowl, Switch(GD(0.01), 5, LBFGS()), iterations=25).value < 1e-6)
    True
    """

    def __init__(
        self,
        first: Method[Any],
        after: int,
        then: Method[Any] | None = None,
        certified: bool | None = None,
        dual_start: bool = True,
    ) -> None:
        if after < 1:
            raise ValueError(f"Switch needs after ≥ 1, got {after}")
        then = then or PDHG(PDHG_RATIO)
        if certified is None:
            certified = isinstance(then, PrimalDual) and _can_be_certified(first)
        super().__init__(Certified(first) if certified else first)
        self.after = int(after)
        self.then = then
        self.certified = certified
        self.dual_start = dual_start

    @property
    def first(self) -> Method[Any]:
        """The method of the first steps."""
        if self.certified and isinstance(self.method, Certified):
            return self.method.method
        return self.method

    def config(self) -> Config:
        return {
            "first": self.first,
            "after": self.after,
            "then": self.then,
            "certified": self.certified,
            "dual_start": self.dual_start,
        }

    def active_method(self, state: Wrapped) -> Method[Any]:
        return self.then if state.own else self.method

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        """Return the oracle of the first method.

        A primal-dual second method raises an error for an oracle that it cannot use.
        """
        if isinstance(self.then, PrimalDual):
            self.then.resolve_oracle(oracle)
        return super().resolve_oracle(oracle)

    def init(self, x0: Tree, problem: Problem | None = None) -> Wrapped:
        return Wrapped(self.method.init(x0, problem), False)

    def step(
        self, problem: Problem, state: Wrapped, oracle: Oracle, generator: Generator | None = None
    ) -> Wrapped:
        state = self.switch(problem, state)
        active = self.active_method(state)
        asked = Default() if state.own else oracle
        return Wrapped(active.step(problem, state.inner, asked, generator), state.own)

    def switch(self, problem: Problem, state: Wrapped) -> Wrapped:
        """Return the first state of the second method if it is time to switch, else the state."""
        if state.own or state.k < self.after:
            return state
        x = self.method.answer(state.inner)
        if isinstance(self.then, PrimalDual) and self.dual_start:
            begun = self.then.init(x, problem, self._curvature(self.then, problem))
            return Wrapped(begun._replace(k=state.k), True)
        return Wrapped(self.then.resume(x, problem, state.k), True)

    @torch.no_grad()
    def _curvature(self, then: PrimalDual[Any], problem: Problem) -> float | Tensor:
        oracle = self.first.oracle
        if isinstance(oracle, Rounded):
            return oracle.curvature(self.after)
        return then.dual_step(problem)


def restarting_switch(first: Method[Any], after: int, then: Method[Any]) -> Switch:
    """Return a switch to a method that starts afresh: the old ``Relay``."""
    return Switch(first, after, then, certified=False, dual_start=False)


def _can_be_certified(method: Method[Any]) -> bool:
    return isinstance(method, GradientMethod) and not overrides_step(method)


def first_part(method: Method[Any]) -> GradientMethod[Any] | None:
    """Return the gradient method that takes the first steps, or None if there is none."""
    if isinstance(method, Conditioned):
        method = method.method
    if isinstance(method, Switch):
        method = method.first
    return method if isinstance(method, GradientMethod) else None


def stencil_condat_vu(
    ratio: float | Schedule = STENCIL_RATIO, relaxation: float = STENCIL_RELAXATION
) -> CondatVu:
    """Return Condat and Vũ's method in the geometry of a stencil, the fastest to a proof on images.

    Args:
        ratio: Ratio of its step sizes.
        relaxation: Its relaxation.
    """
    return CondatVu(ratio, Stencil(STENCIL_DAMPING), relaxation)


def proven(
    method: Method[Any], after: int = SWITCH_AFTER, then: PrimalDual[Any] | None = None
) -> Method[Any]:
    """Return a method that proves early how good its answer is.

    It is certified, and switches to a primal-dual method after a few steps. If the method is
    :class:`Conditioned` and so knows λ, the ratio of the step sizes of the default second method is
    0.2·(λ/λ₀)^−½.

    Args:
        method: Gradient method. It may be :class:`Conditioned`, or a :class:`Switch` already.
        after: Number of steps before the switch.
        then: Primal-dual method. By default Condat and Vũ's in the geometry of a stencil.

    >>> import mirrordescent as md
    >>> type(proven(md.zoo.load("image-tv")))
    <class 'mirrordescent.methods.conditioned.Conditioned'>
    """
    first = first_part(method)
    if first is None:
        raise TypeError(
            f"proven needs a method that uses gradients; {type(method).__name__} does not"
        )
    if not isinstance(method, Conditioned):
        return Switch(first, after, then or stencil_condat_vu(), certified=True)
    if then is None:
        exponents = {"unit": -1.0, "weight": WEIGHT_EXPONENT}
        ratio = ConditionalLaws([1], [STENCIL_RATIO], exponents=exponents)
        then = stencil_condat_vu(ratio.requires_grad_(False))
    return Conditioned(Switch(first, after, then, certified=True))
