"""The results of a diagnosis, which :mod:`mirrordescent.diagnosis` writes as a page."""

from dataclasses import dataclass, field
from html import escape
from typing import Any

from torch import Tensor

from mirrordescent._internal import html
from mirrordescent._internal.deprecation import renamed_property
from mirrordescent.methods import Method
from mirrordescent.methods.base import Storage
from mirrordescent.solving import Solution
from mirrordescent.theory.assumptions import Verdict
from mirrordescent.theory.constants import (
    IdentityComparison,
    KnownConstant,
    MapConstants,
    ProblemConstants,
)
from mirrordescent.theory.energies import Record
from mirrordescent.theory.equivariance import Defects
from mirrordescent.theory.geometry import Coupling
from mirrordescent.theory.inverse_consistency import Inconsistency, UpdateErrors
from mirrordescent.theory.recommendation import Advice


@dataclass(frozen=True)
class BoundCheck:
    """The quantity that a theorem bounds along a run, and its bounds: (K, batch), k = 1, …, K.

    Attributes:
        quantity: Name of the bounded quantity.
        theorem: Name of the theorem.
        measured: The quantity along the run.
        bound: The a-priori bound, by which the run is judged. Its constants are known, or sampled,
            before the run.
        pathwise: The bound with constants measured along the run. It grows with a run that
            diverges: it shows whether the inequality holds, not whether the run is good.
        slack: Bound minus change of the energy in each step, if the theorem has an energy.
        other_bounds: Bounds by other forms of the theorem, by name; a text that says why if one
            does not apply.
    """

    quantity: str
    theorem: str
    measured: Tensor
    bound: Tensor
    pathwise: Tensor
    slack: Tensor | None = None
    other_bounds: dict[str, Tensor | str] = field(default_factory=dict)

    what = renamed_property("what", "quantity")
    further = renamed_property("further", "other_bounds")


@dataclass(frozen=True)
class Geometry:
    """The exact geometry that primal-stored or dual-stored runs are compared with.

    Attributes:
        coupling: The geometry, with the point u that runs are compared with.
        constants: α and L_ψ.
        alpha: Strong convexity α for the bounds: from the constants or, if that is 0, from sampled
            points.
        verdicts: Verdicts on the assumptions on the map.
        identity_comparison: Comparison of the map with a multiple of the identity.
    """

    coupling: Coupling
    constants: MapConstants
    alpha: KnownConstant
    verdicts: list[Verdict]
    identity_comparison: IdentityComparison

    likeness = renamed_property("likeness", "identity_comparison")


@dataclass(frozen=True)
class Run:
    """One method on the problem: its measurements and the verdicts on its theorem's assumptions.

    If no theorem covers the method, there is no bound and no advice, and the record has only the
    gap.
    """

    method: Method[Any]
    solution: Solution
    record: Record
    verdicts: list[Verdict]
    bound_check: BoundCheck | None = None
    advice: Advice | None = None
    updates: UpdateErrors | None = None

    bounded = renamed_property("bounded", "bound_check")


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The results of :func:`~mirrordescent.theory.diagnose`; ``print`` shows all verdicts.

    Attributes:
        name: Name of the map or the method.
        problem: Name of the problem.
        settings: Settings of the diagnosis, in words.
        problem_constants: L_f and μ.
        problem_verdicts: Verdicts on the assumptions on the problem.
        inconsistency: Errors of the inverse map, by the place where they were measured.
        geometries: The map as primal-stored and dual-stored methods use it.
        runs: Runs by name.
        equivariance: Equivariance defects of a learned map on images.
    """

    name: str
    problem: str
    settings: dict[str, str]
    problem_constants: ProblemConstants
    problem_verdicts: list[Verdict]
    inconsistency: dict[str, Inconsistency]
    geometries: dict[Storage, Geometry]
    runs: dict[str, Run]
    equivariance: Defects | None = None

    of_problem = renamed_property("of_problem", "problem_constants")
    judged = renamed_property("judged", "verdicts_by_subject")

    @property
    def verdicts_by_subject(self) -> dict[str, list[Verdict]]:
        """The verdicts on the problem, on the map as each storage uses it, and on each run."""
        subjects = {"the problem": self.problem_verdicts}
        for storage, geometry in self.geometries.items():
            subjects[f"the map, {storage}-stored"] = geometry.verdicts
        for name, run in self.runs.items():
            subjects[name] = run.verdicts
        return subjects

    @property
    def verdicts(self) -> list[Verdict]:
        """All verdicts in one list."""
        return [verdict for group in self.verdicts_by_subject.values() for verdict in group]

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.problem}"]
        for storage, geometry in self.geometries.items():
            lines.append(f"{geometry.identity_comparison} ({storage}-stored)")
        for subject, verdicts in self.verdicts_by_subject.items():
            lines.append(subject)
            lines.extend(f"  {verdict}" for verdict in verdicts)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.name} on {self.problem}: {len(self.verdicts)} verdicts>"

    def _repr_html_(self) -> str:
        """Return all verdicts as tables, for notebooks."""
        parts = [f"<p>{escape(self.name)} on {escape(self.problem)}</p>"]
        for subject, verdicts in self.verdicts_by_subject.items():
            rows = [(each.assumption, f"{each.answer}. {each.reason}") for each in verdicts]
            parts.append(f"<p>{escape(subject)}</p>{html.table(rows)}")
        return f"<div>{''.join(parts)}</div>"
