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
Tensors: TypeAlias = list[Tensor]


class State(Protocol):
    """What a method carries from step to step: a NamedTuple with at least these two fields."""

    @property
    def k(self) -> int:
        """Steps taken."""

    @property
    def x(self) -> Tree:
        """The point at which the next gradient is wanted."""


S = TypeVar("S", bound=State)


class Method(Part, nn.Module, Generic[S]):
    """An iteration. It owns its map and its schedules and holds no iterates: those live in a state.

    ``init`` makes the state before the first step and ``step`` turns a state into the next one, out
    of place. Methods that need nothing but gradients are :class:`GradientMethod`; the others use
    more of a problem.
    """

    kind = "method"

    called: ClassVar[tuple[str, ...]] = ()
    """Its names on the command line; one that begins with an l is for a learned map."""

    theorem: ClassVar[Theorem | None] = None
    """Which of the theorems is about the method, if one is."""

    mirror: MirrorMap | None

    def __init__(self, mirror: MirrorMap | None = None) -> None:
        super().__init__()
        self.mirror = mirror

    @property
    def oracle(self) -> Oracle | None:
        """The oracle that the method brings, if it brings one."""
        return None

    @property
    def certifies(self) -> bool:
        """Whether the method proves lower bounds on the way."""
        return type(self).lower_bound is not Method.lower_bound

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        """Return the oracle that the method will ask when given this one, or raise if it cannot
        honour it.
        """
        if not isinstance(oracle, Exact):
            raise TypeError(
                f"{type(self).__name__} asks for no gradients, and cannot use {type(oracle).__name__}"
            )
        return oracle

    def init(self, x0: Tree, problem: Problem | None = None) -> S:
        """Return the state before the first step. Some methods need the problem for this."""
        raise NotImplementedError

    def resume(self, x0: Tree, problem: Problem, k: int) -> S:
        """Return a fresh state at another point, with k steps counted as taken.

        Rounding may have put the point on the boundary, where a map is not defined: it is moved
        inside, by √eps of the way to a point well inside.
        """
        return self.init(self._moved_inside(x0), problem)._replace(k=k)  # type: ignore[attr-defined]

    def _moved_inside(self, x: Tree) -> Tree:
        mirror = self.mirror
        if (
            mirror is None
            or mirror.defined_on_boundary
            or bool(mirror.primal_domain.contains(x).all())
        ):
            return x
        eps = torch.finfo(next(leaves(x)).dtype).eps ** 0.5
        return tree_map(lambda a, b: a + eps * (b - a), x, mirror.primal_domain.inner_point(x))

    def warm(self, state: S, problem: Problem) -> S:
        """Return the state to begin with on a problem that is near the one this state was reached
        on.

        A fresh one at the answer, unless the method carries something that stays useful, such as a
        dual variable.
        """
        return self.init(self.answer(state), problem)

    def step(
        self, problem: Problem, state: S, oracle: Oracle, generator: Generator | None = None
    ) -> S:
        """Return the state after a step."""
        raise NotImplementedError

    def answer(self, state: S) -> Tree:
        """Return what the method would return now."""
        return state.x

    def inside(self, state: S) -> Tensor | None:
        """Tell per sample whether the state still lies where the method is defined; None:
        always.
        """
        return None

    def lower_bound(self, problem: Problem, state: S) -> Tensor | None:
        """Return a proven lower bound on the optimal value per sample, if the method has one."""
        return None

    def tight_bound(self, problem: Problem, state: S) -> Tensor | None:
        """Return the best lower bound that can be had with some patience, for the end of a run."""
        return self.lower_bound(problem, state)


class GradientMethod(Method[S]):
    """An iteration that is told gradients: ask for one at ``state.x``, tell it, move.

    The caller provides the gradient: from a batch of problems to solve them, inside an autograd
    graph to learn the method, from ``p.grad`` to train a network. To add a method, write ``init``
    and ``update``.

    >>> import torch
    >>> from mirrordescent.methods import GD
    >>> method = GD(0.5)
    >>> state = method.init(torch.ones(1, 2))
    >>> state = method.update(state, grad=state.x)  # ∇ of ½‖x‖²
    >>> state.k, state.x
    (1, tensor([[0.5000, 0.5000]]))
    """

    carried: ClassVar[tuple[str, ...] | None] = None
    """The fields of a state besides k and x that the next step depends on; None: all of them."""

    needs_x: ClassVar[bool] = True
    """Whether the next step depends on x; if not, every step computes x from what is carried alone.
    """

    maps_points: ClassVar[bool] = True
    """Whether the map acts on points, which then have to lie in its domain, or on gradients alone.
    """

    @property
    def changing_momentum(self) -> float | None:
        """A momentum in [0, 1), if the method has one that may be changed between steps, as
        schedulers of torch do.
        """
        return None

    def change_momentum(self, momentum: float) -> None:
        """Take further steps with another momentum."""
        raise NotImplementedError

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        return oracle

    def update(self, state: S, grad: Tree) -> S:
        """Return the state after a step along the gradient at ``state.x``."""
        raise NotImplementedError

    def gradient(
        self, problem: Problem, state: S, oracle: Oracle, generator: Generator | None = None
    ) -> Tree:
        """Ask the oracle for the gradient at ``state.x``."""
        return oracle(problem, state.x, state.k, generator)

    def step(
        self, problem: Problem, state: S, oracle: Oracle, generator: Generator | None = None
    ) -> S:
        return self.update(state, self.gradient(problem, state, oracle, generator))


class Wrapper(Method[S]):
    """A method around another: everything is as in the inner method, except what a subclass
    overrides.

    A wrapper that carries something from step to step is a :class:`StatefulWrapper`.
    """

    method: Method[Any]

    def __init__(self, method: Method[Any]) -> None:
        nn.Module.__init__(self)  # the map is the inner method's, not a second one
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

    def inner(self, state: S) -> Any:
        """Return the state of the method at work inside."""
        return state

    def active_method(self, state: S) -> Method[Any]:
        """Return the method whose state this is."""
        return self.method

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

    def lower_bound(self, problem: Problem, state: S) -> Tensor | None:
        """Return the bound of the method at work, which holds whatever the wrapper does."""
        return self.active_method(state).lower_bound(problem, self.inner(state))

    def tight_bound(self, problem: Problem, state: S) -> Tensor | None:
        return self.active_method(state).tight_bound(problem, self.inner(state))


class Wrapped(NamedTuple):
    """The state of a method around another that carries something of its own along."""

    inner: Any
    own: Any

    @property
    def k(self) -> int:
        return self.inner.k

    @property
    def x(self) -> Tree:
        """The inner method's query point."""
        return self.inner.x


class StatefulWrapper(Wrapper[Wrapped]):
    """A method around another whose states are :class:`Wrapped`."""

    def inner(self, state: Wrapped) -> Any:
        return state.inner

    def resume(self, x0: Tree, problem: Problem, k: int) -> Wrapped:
        """Resume the inner method; what the wrapper carries is as at the start."""
        return self.init(x0, problem)._replace(inner=self.method.resume(x0, problem, k))
