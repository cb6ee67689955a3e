"""What a diagnosis found. Its page, with tables and figures, is made in the laboratory."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mirrordescent.methods import Method
from mirrordescent.methods.base import Storage
from mirrordescent.solving import Solution
from mirrordescent.theory.assumptions import Verdict
from mirrordescent.theory.constants import Constant, Likeness, MapConstants, ProblemConstants
from mirrordescent.theory.energies import Record
from mirrordescent.theory.equivariance import Defects
from mirrordescent.theory.geometry import Coupling
from mirrordescent.theory.inconsistency import Inconsistency, UpdateErrors
from mirrordescent.theory.recommend import Advice


@dataclass(frozen=True)
class Bounded:
    """What a theorem bounds along a run, its bounds, and the slack of each step: (K, batch) each,
    for k = 1, …, K.

    ``bound`` is the a-priori one, by which the run is judged: its constants are known, or were
    sampled, before the run. ``pathwise`` is computed with what was met along the run, so that a run
    which goes astray takes it along: it tells whether the inequality holds, not whether the run is
    a good one. ``further`` are other forms of the theorem, by name, or why there is none.
    """

    what: str
    theorem: str
    measured: Tensor
    bound: Tensor
    pathwise: Tensor
    slack: Tensor | None = None
    further: dict[str, Tensor | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Geometry:
    """The exact geometry that primal-stored, or dual-stored, runs are held against: its constants,
    and what holds.

    ``alpha`` is the one that bounds are computed with: that of the constants or, if it is 0, that
    of sampled points. ``likeness`` tells how near the map is to a multiple of the identity.
    """

    coupling: Coupling
    constants: MapConstants
    alpha: Constant
    verdicts: list[Verdict]
    likeness: Likeness


@dataclass(frozen=True)
class Run:
    """One method on the problem: what was measured, and which assumptions of its theorem hold.

    Without a theorem there are no bound and no advice, and the record has only the gap.
    """

    method: Method[Any]
    solution: Solution
    record: Record
    verdicts: list[Verdict]
    bounded: Bounded | None = None
    advice: Advice | None = None
    updates: UpdateErrors | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found about a map or a method on a problem."""

    name: str
    problem: str
    settings: dict[str, str]
    of_problem: ProblemConstants
    problem_verdicts: list[Verdict]
    inconsistency: dict[str, Inconsistency]
    geometries: dict[Storage, Geometry]
    runs: dict[str, Run]
    equivariance: Defects | None = None

    @property
    def judged(self) -> dict[str, list[Verdict]]:
        """The verdicts on the problem, on the map as each storage uses it, and on each run."""
        maps = {
            f"the map, {storage}-stored": geometry.verdicts
            for storage, geometry in self.geometries.items()
        }
        return {
            "the problem": self.problem_verdicts,
            **maps,
            **{name: run.verdicts for name, run in self.runs.items()},
        }

    @property
    def verdicts(self) -> list[Verdict]:
        return [verdict for part in self.judged.values() for verdict in part]

    def __str__(self) -> str:
        parts = (
            (part, *(f"  {verdict}" for verdict in verdicts))
            for part, verdicts in self.judged.items()
        )
        alike = [
            f"{geometry.likeness} ({storage}-stored)"
            for storage, geometry in self.geometries.items()
        ]
        return "\n".join(
            [f"{self.name} on {self.problem}", *alike, *(line for part in parts for line in part)]
        )
