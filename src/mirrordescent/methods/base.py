"""The interface of every method, and of methods that wrap others."""

from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Generator, Tensor, nn

from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.oracles import Exact, Oracle
from mirrordescent.parts import Part
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree, leaves, tree_map

Storage: TypeAlias = Literal["primal", "dual"]
Theorem: TypeAlias = Literal["descent", "accelerated", "accelerated stochastic"]


class State(Protocol):
    """The state of a method: a NamedTuple with at least these two fields."""

    @property
    def k(self) -> int:
        """Number of steps taken."""

    @property
    def x(self) -> Tree:
        """Point of the next gradient."""


S = TypeVar("S", bound=State)


class Method(Part, nn.Module, Generic[S]):
    """An iteration: ``init`` returns the state before the first step, ``step`` the next state.

    A method owns its map and its schedules. Iterates live in states, which are values: a step does
    not change the state it is given. Methods that use only gradients are :class:`GradientMethod`;
    other methods use more of a problem, such as proximal operators.

    To add a method, write ``init``, ``step``, and ``answer`` if it is not ``state.x``. The other
    members have defaults.
    """

    kind = "method"

    cli_names: ClassVar[tuple[str, ...]] = ()
    """Names on the command line. A name that begins with an l is for a learned map."""

    theorem: ClassVar[Theorem | None] = None
    """Convergence theorem about the method, if there is one."""

    mirror: MirrorMap | None
    """Mirror map of the method, if it has one."""

    def __init__(self, mirror: MirrorMap | None = None) -> None:
        super().__init__()
        self.mirror = mirror

    def init(self, x0: Tree, problem: Problem | None = None) -> S:
        """Return the state before the first step. Some methods need the problem for this."""
        raise NotImplementedError

    def step(
        self, problem: Problem, state: S, oracle: Oracle, generator: Generator | None = None
    ) -> S:
        """Return the state after one more step."""
        raise NotImplementedError

    def answer(self, state: S) -> Tree:
        """Return the current approximate solution."""
        return state.x

    def resume(self, x0: Tree, problem: Problem, k: int) -> S:
        """Return a new state at another point, with k steps counted as taken.

        Rounding may have put the point on the boundary, where a map need not be defined. Then it is
        moved inside, by √eps of the way to a point well inside.
        """
        return self.init(self._move_inside(x0), problem)._replace(k=k)  # type: ignore[attr-defined]

    def _move_inside(self, x: Tree) -> Tree:
        mirror = self.mirror
        if mirror is None or mirror.defined_on_boundary:
            return x
        domain = mirror.primal_domain
        if bool(domain.contains(x).all()):
            return x
        eps = torch.finfo(next(leaves(x)).dtype).eps ** 0.5
        return tree_map(lambda a, b: a + eps * (b - a), x, domain.inner_point(x))

    def warm_start(self, state: S, problem: Problem) -> S:
        """Return a first state on a problem, given the last state on a similar problem.

        By default a new state at the answer. Primal-dual methods keep the dual variable too.
        """
        return self.init(self.answer(state), problem)

    def inside(self, state: S) -> Tensor | None:
        """Return the samples whose state lies in the domain of the method, (batch,) bool.

        None stands for all samples.
        """
        return None

    def excluded(self, problem: Problem, state: S) -> tuple[Tensor, Tensor] | None:
        """Return the samples without a feasible point, and those without a minimum, (batch,) bool.

        None if the method cannot tell. It must have a certificate for these samples.
        """
        return None

    @property
    def certifies(self) -> bool:
        """Whether the method proves lower bounds on the optimal value."""
        return type(self).lower_bound is not Method.lower_bound

    def lower_bound(self, problem: Problem, state: S) -> Tensor | None:
        """Return a proven lower bound on the optimal value of every sample, or None."""
        return None

    def tight_bound(self, problem: Problem, state: S) -> Tensor | None:
        """Return the best lower bound that can be computed, even slowly, for the end of a run."""
        return self.lower_bound(problem, state)

    @property
    def oracle(self) -> Oracle | None:
        """Oracle that belongs to the method, if there is one."""
        return None

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        """Return the oracle that a step with the given oracle uses.

        Raises:
            TypeError: If the method cannot use the given oracle.
        """
        if not isinstance(oracle, Exact):
            raise TypeError(
                f"{type(self).__name__} uses no gradients, and cannot use {type(oracle).__name__}"
            )
        return oracle


class GradientMethod(Method[S]):
    """An iteration that uses only gradients: ``update`` takes a step along a given gradient.

    The caller provides the gradient at ``state.x``: of a batch of problems to solve them, inside an
    autograd graph to learn the method, or from ``p.grad`` to train a network. To add a method,
    write ``init`` and ``update``.

    >>> import torch
    >>> from mirrordescent.methods import GD
    >>> method = GD(0.5)
    >>> state = method.init(torch.ones(1, 2))
    >>> state = method.update(state, grad=state.x)  # ∇ of ½‖x‖²
    >>> state.k, state.x
    (1, tensor([[0.5000, 0.5000]]))
    """

    carried: ClassVar[tuple[str, ...] | None] = None
    """Fields of a state besides k and x that the next step depends on. None stands for all."""

    needs_x: ClassVar[bool] = True
    """Whether the next step depends on x. If not, it can be computed from the carried fields."""

    maps_points: ClassVar[bool] = True
    """Whether the map is applied to points, which must lie in its domain, or only to gradients."""

    @property
    def adjustable_momentum(self) -> float | None:
        """Momentum in [0, 1) that schedulers of torch may change between steps, if there is one."""
        return None

    def set_momentum(self, momentum: float) -> None:
        """Set the momentum of all further steps."""
        raise NotImplementedError

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        return oracle

    def update(self, state: S, grad: Tree) -> S:
        """Return the state after a step, given the gradient at ``state.x``."""
        raise NotImplementedError

    def gradient(
        self, problem: Problem, state: S, oracle: Oracle, generator: Generator | None = None
    ) -> Tree:
        """Return the oracle's gradient at ``state.x``."""
        return oracle(problem, state.x, state.k, generator)

    def step(
        self, problem: Problem, state: S, oracle: Oracle, generator: Generator | None = None
    ) -> S:
        return self.update(state, self.gradient(problem, state, oracle, generator))


class Wrapper(Method[S]):
    """A method around another, to which it delegates everything that a subclass does not override.

    A wrapper that carries data of its own from step to step is a :class:`StatefulWrapper`.

    Args:
        method: Inner method.
    """

    method: Method[Any]

    def __init__(self, method: Method[Any]) -> None:
        nn.Module.__init__(self)  # no map of its own: mirror is a property
        self.method = method

    @property
    def mirror(self) -> MirrorMap | None:  # type: ignore[override]
        return self.method.mirror

    @property
    def oracle(self) -> Oracle | None:
        return self.method.oracle

    @property
    def certifies(self) -> bool:
        return type(self).lower_bound is not Wrapper.lower_bound or self.method.certifies

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        return self.method.resolve_oracle(oracle)

    def active_method(self, state: S) -> Method[Any]:
        """Return the inner method that takes the next step."""
        return self.method

    def inner(self, state: S) -> Any:
        """Return the state of the active method."""
        return state

    def init(self, x0: Tree, problem: Problem | None = None) -> S:
        return self.method.init(x0, problem)

    def resume(self, x0: Tree, problem: Problem, k: int) -> S:
        return self.method.resume(x0, problem, k)

    def step(
        self, problem: Problem, state: S, oracle: Oracle, generator: Generator | None = None
    ) -> S:
        return self.method.step(problem, self.inner(state), oracle, generator)

    def answer(self, state: S) -> Tree:
        return self.active_method(state).answer(self.inner(state))

    def inside(self, state: S) -> Tensor | None:
        return self.active_method(state).inside(self.inner(state))

    def excluded(self, problem: Problem, state: S) -> tuple[Tensor, Tensor] | None:
        return self.active_method(state).excluded(problem, self.inner(state))

    def lower_bound(self, problem: Problem, state: S) -> Tensor | None:
        """Return the bound of the active method, which holds whatever the wrapper does."""
        return self.active_method(state).lower_bound(problem, self.inner(state))

    def tight_bound(self, problem: Problem, state: S) -> Tensor | None:
        return self.active_method(state).tight_bound(problem, self.inner(state))


class Wrapped(NamedTuple):
    """The state of a wrapper: the state of the inner method, and the wrapper's own data."""

    inner: Any
    own: Any

    @property
    def k(self) -> int:
        """Number of steps taken."""
        return self.inner.k

    @property
    def x(self) -> Tree:
        """Point of the inner method's next gradient."""
        return self.inner.x


class StatefulWrapper(Wrapper[Wrapped]):
    """A method around another that carries data of its own: its states are :class:`Wrapped`."""

    def inner(self, state: Wrapped) -> Any:
        return state.inner

    def resume(self, x0: Tree, problem: Problem, k: int) -> Wrapped:
        """Resume the inner method; the wrapper's own data are as at the start."""
        return self.init(x0, problem)._replace(inner=self.method.resume(x0, problem, k))
