"""Matrix games on the simplex."""

from torch import Tensor

from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.rounding import rounded_down, sum_error
from mirrordescent.domains import Simplex
from mirrordescent.problems.base import Problem
from mirrordescent.problems.quadratics import known_norm, matvec
from mirrordescent.problems.saddle import SaddlePoint


class MatrixGame(Problem, SaddlePoint):
    """f(x) = maxᵢ (Ax)ᵢ on the simplex: the loss of a mixed strategy x against the best reply.

    The saddle-point form is min_x max_u ⟨Ax, u⟩, with the mixed reply u on a simplex too.

    f is non-smooth, and its subgradients are bounded by max|A| in ℓ_∞. This is the classical
    example where entropic mirror descent beats the projected subgradient method by a factor of
    √(n/log n).

    Args:
        A: Payoff matrix, (m, n) or (batch, m, n).
    """

    convex = True
    domain = Simplex()

    A: Tensor

    def __init__(self, A: Tensor) -> None:
        A = as_tensor(A, "A")
        if A.ndim not in (2, 3) or 0 in A.shape[-2:]:
            raise ValueError(
                f"A must be (m, n) or (batch, m, n) and not empty, got {tuple(A.shape)}"
            )
        super().__init__(A.shape[0] if A.ndim == 3 else None, (A.shape[-1],), A=A)

    def value(self, x: Tensor) -> Tensor:
        return matvec(self.A, x).amax(-1)

    def grad(self, x: Tensor) -> Tensor:
        """Return the row of A that is the best reply."""
        reply = matvec(self.A, x).argmax(-1)
        if self.A.ndim == 2:
            return self.A[reply]
        return self.A.gather(1, reply[:, None, None].expand(-1, 1, self.A.shape[-1])).squeeze(1)

    def smoothed_grad(self, x: Tensor, width: float | Tensor) -> Tensor:
        """Return the gradient of width · log Σ exp((Ax)ᵢ / width)."""
        replies = (matvec(self.A, x) / width).softmax(-1)
        return matvec(self.A.mT, replies)

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the error of max (Ax)ᵢ by the largest error of an entry."""
        return sum_error(matvec(self.A.abs(), x.abs()), self.A.shape[-1]).amax(-1)

    # The saddle-point form.

    @property
    def K_norm(self) -> float:
        """‖A‖."""
        return known_norm(self, self.A)

    @property
    def ratio(self) -> float:
        """1, because both players are treated alike."""
        return 1.0

    def K(self, x: Tensor) -> Tensor:
        return matvec(self.A, x)

    def K_adjoint(self, u: Tensor) -> Tensor:
        return matvec(self.A.mT, u)

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        return self.domain._project(x)

    def prox_G_conjugate(self, u: Tensor, sigma: float | Tensor) -> Tensor:
        return self.domain._project(u)

    def lower_bound(self, u: Tensor) -> Tensor:
        """minⱼ (Aᵀu)ⱼ, the payoff that a mixed reply u guarantees, rounded down.

        u is projected onto the simplex and divided by its sum, in double precision. The sum of the
        quotients, and Aᵀu, have rounding errors of at most n units of maxⱼ Σᵢ|Aᵢⱼ|uᵢ.
        """
        A = self.A.double()
        reply = self.domain._project(u.double())
        reply = reply / reply.sum(-1, keepdim=True)
        payoff = matvec(A.mT, reply)
        size = matvec(A.mT.abs(), reply.detach())
        lowest = (payoff - sum_error(size, 2 * A.shape[-2])).amin(-1)
        return rounded_down(lowest, u.dtype)
