"""Verification of lower bounds: recompute them from a witness and the data of a problem.

The bounds are second implementations, independent of those that found the witness. They read the
data of a problem and call its ``value`` and its linear operators; gradients and adjoints are
derivatives that autograd computes. All numbers are in double precision, and a bound on the rounding
error is subtracted.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from mirrordescent._internal.eager import without_autocast
from mirrordescent.problems import (
    QP,
    SVM,
    Composite,
    EntropicTransport,
    MatrixGame,
    Problem,
    TVInpainting,
)
from mirrordescent.problems.grid_tv import WindowTV
from mirrordescent.problems.origin import user_definition
from mirrordescent.problems.statements import allowed_excess, in_words
from mirrordescent.references.composites import composite_bound, witness_shapes
from mirrordescent.references.dual_points import (
    game_bound,
    machine_bound,
    total_variation_bound,
    transport_bound,
)
from mirrordescent.references.program_bounds import program_bound
from mirrordescent.references.tangents import EPS, tangent_bound
from mirrordescent.trees import Tree, is_finite, tree_map

Kind = Literal["tangent", "dual point"]

PROOFS: dict[Kind, str] = {
    "tangent": (
        "f lies above its tangent, or above a parabola of curvature μ, at the point of the "
        "witness; the bound is the minimum of that function over the set"
    ),
    "dual point": (
        "for the dual point u of the witness, F(x) + ⟨Kx, u⟩ − G*(u) ≤ f(x) for every x; the bound "
        "is the minimum over x"
    ),
}
"""Methods of proof in words."""

CONTRADICTION = 1000
"""Excess of a bound over a value that can be due to rounding, in units of the last place."""


@dataclass(frozen=True)
class Witness:
    """Numbers from which a lower bound can be recomputed.

    Attributes:
        kind: "tangent" for a point x; "dual point" for blocks of a dual variable. Witnesses of
            composite problems and programs also contain a point x.
        tensors: The point or the blocks by name, each (batch, …).
    """

    kind: Kind
    tensors: dict[str, Tensor]


@dataclass(frozen=True, repr=False)
class Verification:
    """The outcome of a verification.

    Attributes:
        lower: Recomputed lower bounds, (batch,); None if the bound cannot be recomputed.
        confirmed: Whether the recomputed bounds are at least those of the certificate.
        words: The outcome in words.
    """

    lower: Tensor | None
    confirmed: bool
    words: str

    def __str__(self) -> str:
        return self.words

    def __repr__(self) -> str:
        return f"<Verification: {self.words}>"


@without_autocast
def verify(
    witness: Witness | None,
    problem: Problem,
    lower: Tensor,
    start_value: Tensor,
    x: Tree | None = None,
    conditions: Sequence[str] = (),
) -> Verification:
    """Recompute lower bounds from a witness, and compare them with those of a certificate.

    Args:
        witness: Witness, if there is one.
        problem: Batch of problems.
        lower: Lower bounds to verify, (batch,).
        start_value: Values at the start, which the size of differences is relative to.
        x: Points whose values the bounds must not exceed, if there are any.
        conditions: Statements of users' classes that the bounds rest on, in words.
    """
    if witness is None:
        return Verification(None, False, "cannot be checked: the certificate has no witness")
    expected = _expected_shapes(witness, problem)
    name = type(problem).__name__
    if expected is None:
        words = f"cannot be checked: there is no verification of a {witness.kind} for {name}"
        return Verification(None, False, words)
    given = {block: tuple(tensor.shape) for block, tensor in witness.tensors.items()}
    if given != expected or lower.shape != next(iter(expected.values()))[:1]:
        words = (
            f"not confirmed: the witness does not belong to this {name}, which needs {expected} "
            f"for {len(lower)} bounds; it has {given}"
        )
        return Verification(None, False, words)
    found = recompute(witness, problem)
    if found is None:
        words = f"cannot be checked: the {witness.kind} proves nothing about this {name}"
        return Verification(None, False, words)
    found = found.to(lower.device)
    if x is not None and _contradicted(problem, found, x):
        words = f"not confirmed: a recomputed bound exceeds a value of this {name}"
        return Verification(found, False, words)
    if bool((found >= lower).all()):
        suffix = f", {in_words(conditions)}" if conditions else ""
        return Verification(found, True, f"confirmed{suffix}: {PROOFS[witness.kind]}")
    missing = ((lower - found) / (start_value - lower).clamp(min=EPS)).max()
    words = (
        "not confirmed: the witness proves a bound that is lower by "
        f"{float(missing):.2g} of f(x₀) − lower"
    )
    return Verification(found, False, words)


@torch.no_grad()
def recompute(witness: Witness, problem: Problem) -> Tensor | None:
    """Return the lower bounds that a witness proves, (batch,); None if they are unknown.

    A witness that is not finite proves nothing, so that its bound is −∞.
    """
    precise = problem
    if any(b.is_floating_point() and b.dtype != torch.float64 for b in problem.buffers()):
        precise = copy.deepcopy(problem).double()
    device = next(problem.buffers(), next(iter(witness.tensors.values()))).device
    tensors = {}
    for name, tensor in witness.tensors.items():
        tensors[name] = tensor.detach().to(device, torch.float64)
    try:
        bound = _bound(witness.kind, precise, tensors)
    except RuntimeError:  # an operator of a user's refuses double precision or derivatives
        return None
    if bound is None:
        return None
    finite = bound.isfinite()
    for tensor in tensors.values():
        finite = finite & tensor.isfinite().flatten(1).all(1)
    return torch.where(finite, bound, -torch.inf)


def _bound(kind: Kind, problem: Problem, tensors: dict[str, Tensor]) -> Tensor | None:
    """Return the bounds of a witness in double precision."""
    if kind == "tangent" and isinstance(problem, EntropicTransport):
        own = user_definition(problem, "value", "convex") is not None
        return None if own else transport_bound(problem, tensors["x"])
    if kind == "tangent":
        return tangent_bound(problem, tensors["x"])
    if isinstance(problem, MatrixGame):
        return game_bound(problem, tensors["u"])
    if isinstance(problem, SVM):
        return machine_bound(problem, tensors["alpha"])
    if isinstance(problem, QP):
        return program_bound(problem, tensors["x"], tensors["y"])
    if isinstance(problem, WindowTV):  # its differences are not those of its term
        return None
    if _is_plain_tv(problem):
        return total_variation_bound(problem, tensors)  # type: ignore[arg-type]
    return composite_bound(problem, tensors)  # type: ignore[arg-type]


def _expected_shapes(witness: Witness, problem: Problem) -> dict[str, tuple[int, ...]] | None:
    """Return the names and shapes of the tensors of a witness; None if there is no verification.

    Bounds of users' classes that change f are not recomputed from dual points.
    """
    first = next(iter(witness.tensors.values()))
    batch = problem.batch or len(first)
    if witness.kind == "tangent":
        shape = first.shape[1:] if problem.sample_shape is None else problem.sample_shape
        return {"x": (batch, *shape)}
    if user_definition(problem, "value") is not None:
        return None
    if isinstance(problem, MatrixGame):
        return {"u": (batch, problem.A.shape[-2])}
    if isinstance(problem, SVM):
        return {"alpha": (batch, problem.terms)}
    if isinstance(problem, QP):
        return {"x": (batch, *cast(Any, problem.sample_shape)), "y": (batch, problem.rows)}
    if not isinstance(problem, Composite):
        return None
    shapes = witness_shapes(problem)
    if _is_plain_tv(problem):
        plain = {}
        for name in ("vertical", "horizontal"):
            plain[name] = shapes[f"term 1 {name}"]
        shapes = plain
    return {name: (batch, *shape) for name, shape in shapes.items()}


def _is_plain_tv(problem: Problem) -> bool:
    """Tell whether a problem is a total variation without an operator."""
    return isinstance(problem, TVInpainting) and problem.operator is None


@torch.no_grad()
def _contradicted(problem: Problem, bound: Tensor, x: Tree) -> bool:
    """Tell whether a bound exceeds the value of f at x by more than rounding.

    Points that are not finite in the precision of the problem contradict nothing.
    """
    like = next(problem.buffers(), None)
    if like is not None:
        x = tree_map(lambda leaf: leaf.to(like), x)
    finite = is_finite(x).to(bound.device)
    value = problem.value(x)
    rounding = CONTRADICTION * torch.finfo(value.dtype).eps
    excess = allowed_excess(problem, x).to(bound)
    value = value.to(bound)
    excess = excess + rounding * (value.abs() + bound.abs())
    return not bool(((bound <= value + excess) | ~finite).all())
