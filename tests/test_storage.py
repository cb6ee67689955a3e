"""Whatever is data can be stored and comes back the same, bit for bit; what is not says why."""

from __future__ import annotations

import importlib
import json
import pkgutil

import pytest
import torch
from torch import nn

import mirrordescent as md
from mirrordescent import GD, SMD, Function, zoo
from mirrordescent.conditioning import ConditionalLaws, Within
from mirrordescent.domains import Box, NegativeOrthant, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.methods import (
    ADMM,
    AdaptivePreconditioned,
    Conditioned,
    DampedPreconditioned,
    Equipped,
    NeverWorse,
    Preconditioned,
    ProjectedNesterov,
    RidgeMomentum,
    Safeguarded,
    ScheduledPrimalDual,
    Switch,
    TangentBound,
    TautString,
    TrendInteriorPoint,
    WithinRange,
)
from mirrordescent.methods.accelerated import AreaMixing, AreaWeight, DualWeight, Mixing
from mirrordescent.methods.fista import ProximalNesterov
from mirrordescent.mirrors import Diagonal, Euclidean, SimplexEntropy, SoftSign, Stencil
from mirrordescent.mirrors.singular_values import SpectralBall
from mirrordescent.oracles import (
    Default,
    Epochs,
    Exact,
    FirstOrder,
    InTurn,
    Minibatch,
    Noisy,
    Relative,
    Rounded,
    Scaled,
    Smoothed,
)
from mirrordescent.parts import Part, build, describe
from mirrordescent.problems import (
    L1,
    SVM,
    TV,
    Anchor,
    AreaMeans,
    Blur,
    Chain,
    Composite,
    Counts,
    EntropicTransport,
    Fourier,
    GridTV,
    Haar,
    LearnedRidges,
    LeastSquares,
    LogisticRegression,
    Matrix,
    MatrixGame,
    Multiple,
    NetworkTraining,
    ParallelBeam,
    PoissonTomography,
    Quadratic,
    Ridge,
    RidgeProfile,
    Roughness,
    Sampling,
    SparseMatrix,
    SquaredError,
    Trend,
    TrendFiltering,
    TVDenoising,
    TVInpainting,
    gaussian_kernel,
    radial_mask,
)
from mirrordescent.problems.grid_tv import WindowTV
from mirrordescent.problems.network_training import Initialisation
from mirrordescent.restore.noise_network import NoiseNetwork
from mirrordescent.schedules import (
    Constant,
    Interpolated,
    OpenEnded,
    OverRun,
    Polynomial,
    PowerLaws,
    Prefix,
    Reciprocal,
    RootReciprocal,
    as_schedule,
)

DOUBLE = torch.float64


def random(*shape, seed=0, dtype=torch.float32):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(n=7):
    return torch.tensor([1.0, -1.0]).repeat(n)[:n]


SCHEDULES = {
    "constant": lambda: Constant(0.1),
    "reciprocal": lambda: Reciprocal(0.1),
    "root": lambda: RootReciprocal(1 / 3),
    "polynomial": lambda: Polynomial(0.1, 0.75),
    "prefix": lambda: Prefix([0.4, 0.1], "root_reciprocal", 2.0, monotone=True),
    "prefix of double precision": lambda: Prefix(0.1 + random(5, dtype=DOUBLE), "last"),
    "interpolated": lambda: Interpolated([1, 3, 10], [0.1, 0.7, 0.3]),
    "interpolated, double": lambda: Interpolated([2, 5], 0.1 + random(2, dtype=DOUBLE)),
    "power laws": lambda: PowerLaws([1, 4, 20], [0.9, 0.3, 1.7], power=-1.0),
    "power laws with a bound": lambda: PowerLaws([1, 4], [0.9, 0.3], power=1.0, bound=1.0),
    "power laws at their bound": lambda: saturated(PowerLaws([1, 4], [0.9, 0.3], bound=1.0)),
    "over a run": lambda: OverRun(20, 0.1, 2.0, 0.3),
    "open-ended": lambda: OpenEnded(2.0, 0.3, 5),
    "mixing": lambda: Mixing(4.0, 7),
    "dual weight": lambda: DualWeight(3.0, 1, 9),
    "mixing by areas": AreaMixing,
    "weight by areas": AreaWeight,
    "conditional": lambda: learned(
        ConditionalLaws([1, 9], [0.3, 0.2], features=["weight"], exponents={"unit": -1.0})
    ),
    "within": lambda: Within(0.7, PowerLaws([1, 9], [0.3, 2.0]), Reciprocal(3.0), 2.0),
    "a learned number": lambda: as_schedule(nn.Parameter(torch.tensor(0.1)), "t"),
    "a number that is not learned": lambda: as_schedule(torch.tensor(0.1, dtype=DOUBLE), "t"),
}
ORACLES = {
    "default": Default,
    "exact": Exact,
    "minibatch": lambda: Minibatch(1),
    "epochs": lambda: Epochs(2),
    "share of the terms": lambda: Minibatch(0.5),
    "in turn": InTurn,
    "noisy minibatch": lambda: Noisy(0.1, Minibatch(0.3)),
    "relative": lambda: Relative(InTurn()),
    "relative noise": lambda: Relative(Noisy(0.3)),
    "smoothed": lambda: Smoothed(PowerLaws([1, 5], [0.5, 0.1])),
    "rounded": lambda: Rounded(Reciprocal(3.0)),
    "scaled": lambda: Scaled(random(2), Noisy(0.1)),
    "first order": lambda: FirstOrder(Rounded(nn.Parameter(torch.tensor(2.0)))),
}
PROBLEMS = {
    "diagonal quadratic": lambda: Quadratic(random(4), random(2, 4)),
    "quadratic": lambda: Quadratic(torch.eye(4, dtype=DOUBLE) + 0.1, random(4, dtype=DOUBLE)),
    "least squares": lambda: LeastSquares(random(5, 3), random(2, 5)),
    "least squares on a simplex": lambda: LeastSquares(random(2, 5, 3), random(5), Simplex()),
    "logistic regression": lambda: LogisticRegression(random(7, 3) - 0.5, labels(), ridge=0.1),
    "signal": lambda: GridTV(random(2, 3, 9), 0.1 + random(2), 0.7, axis_weights=(1.5,)),
    "volume": lambda: GridTV(random(2, 1, 3, 4, 5), 0.3, isotropic=True, huber=0.1),
    "window": lambda: WindowTV(random(2, 1, 4, 5), 0.3, held=(True, False)),
    "trend": lambda: TrendFiltering(random(2, 3, 9), 0.1 + random(2), 0.7, axis_weights=(1.5,)),
    "program": lambda: md.QP(
        torch.eye(2), torch.ones(2, 2), torch.eye(2), torch.zeros(2), torch.ones(2), 2.0
    ),
    "svm": lambda: SVM(random(7, 3) - 0.5, labels(), C=3.0),
    "svms": lambda: SVM(random(2, 7, 3, dtype=DOUBLE) - 0.5, labels().double()),
    "game": lambda: MatrixGame(random(4, 3) - 0.5),
    "transport": lambda: EntropicTransport(random(4, 3), random(4), random(3), 0.5),
    "denoising": lambda: TVDenoising(random(2, 3, 5, 4), weight=0.3, scale=1.0),
    "inpainting": lambda: TVInpainting(random(2, 3, 5, 4), random(5, 4, seed=1) > 0.2),
    "a mask each": lambda: TVInpainting(random(2, 1, 5, 4), random(2, 1, 5, 4, seed=1) > 0.2),
    "deblurring": lambda: TVInpainting(
        random(2, 3, 6, 5), random(6, 5, seed=1) > 0.2, 0.1, operator=Blur(gaussian_kernel(0.7))
    ),
    "tomography by total variation": lambda: TVInpainting(
        random(2, 1, 4, 9), None, operator=ParallelBeam(6, angles=4, detectors=9)
    ),
    "squared error": lambda: SquaredError(
        random(2, 3, 8, 8), Blur(random(3, 3)), random(8, 8) > 0.2, 2.0
    ),
    "counts": lambda: Counts(random(2, 5), background=0.5),
    "composite": lambda: Composite(
        SquaredError(random(2, 2, 8, 8), Fourier(radial_mask(8, 3))),
        [TV(0.1 + random(2)), L1(0.1, Haar(1))],
    ),
    "composite on a box": lambda: Composite(SquaredError(random(2, 5)), [L1(0.1), Box(-1.0, 2.0)]),
    "poisson tomography": lambda: PoissonTomography(
        random(2, 1, 4, 9) * 20, ParallelBeam(6, angles=4, detectors=9), 10.0, 1.5, 0.3, terms=2
    ),
    "poisson tomography, double": lambda: PoissonTomography(
        random(1, 1, 3, 11, dtype=DOUBLE) * 20, ParallelBeam(7, torch.tensor([0.1, 0.5, 2.0]), 11)
    ),
}
BOWLS = "diagonal quadratic"
PICTURES = "denoising"
METHODS = {  # with the problems they are tried on
    "GD": (lambda: GD(PowerLaws([1, 9], [0.2, 0.1], bound=0.5)), BOWLS),
    "MD": (lambda: md.MD(SimplexEntropy(), Reciprocal(0.3)), "least squares on a simplex"),
    "ProximalNesterov": (lambda: ProximalNesterov(Reciprocal(0.3)), "composite on a box"),
    "SMD": (lambda: learned(SMD(Diagonal(nn.Parameter(1 + random(4))), Prefix([0.1, 0.2]))), BOWLS),
    "AMD": (
        lambda: md.AMD(Euclidean(Simplex()), 0.1, cap=4, weight_offset=1),
        "least squares on a simplex",
    ),
    "ASMD": (lambda: md.ASMD(Euclidean(), RootReciprocal(0.1)), BOWLS),
    "Adam": (lambda: md.Adam(0.1, (0.8, 0.9), 1e-6, 0.01), BOWLS),
    "SGD": (lambda: md.SGD(0.1, 0.9), BOWLS),
    "Nesterov": (lambda: md.Nesterov(0.3), BOWLS),
    "ProjectedGradient": (
        lambda: md.ProjectedGradient(Simplex(), 0.1),
        "least squares on a simplex",
    ),
    "ProjectedNesterov": (lambda: ProjectedNesterov(Simplex(), 0.1), "least squares on a simplex"),
    "AdaptivePreconditioned": (
        lambda: AdaptivePreconditioned(SoftSign(0.1), 0.1, 0.5, 0.9, False, 0.1),
        BOWLS,
    ),
    "DampedPreconditioned": (
        lambda: DampedPreconditioned(SoftSign(0.1), 0.1, 0.5, 0.9, damping=0.5, memory=0.2),
        BOWLS,
    ),
    "Preconditioned": (
        lambda: Preconditioned(SoftSign(0.1), 0.1, 0.5, lookahead=False, decay=0.1),
        BOWLS,
    ),
    "FISTA": (lambda: md.FISTA(t=0.2), BOWLS),
    "LBFGS": (md.LBFGS, BOWLS),
    "PDHG": (lambda: md.PDHG(PowerLaws([1, 5], [0.3, 0.6])), PICTURES),
    "CondatVu": (lambda: md.CondatVu(0.4, Stencil(0.3)), PICTURES),
    "ScheduledPrimalDual": (
        lambda: ScheduledPrimalDual(
            0.4, PowerLaws([1, 5], [0.9, 1.2]), 0.8, Reciprocal(0.3), Stencil(0.3)
        ),
        PICTURES,
    ),
    "DualFISTA": (md.DualFISTA, PICTURES),
    "LPD": (lambda: learned(md.LPD()), PICTURES),
    "TautString": (TautString, "signal"),
    "TrendInteriorPoint": (TrendInteriorPoint, "trend"),
    "Averaged": (lambda: md.Averaged(GD(0.1)), BOWLS),
    "Certified": (lambda: md.Certified(GD(0.1)), PICTURES),
    "RidgeMomentum": (lambda: RidgeMomentum(Prefix([0.5, 0.2], "last"), 0.3), BOWLS),
    "TangentBound": (lambda: TangentBound(GD(0.1), first=2, every=3), BOWLS),
    "Safeguarded": (lambda: Safeguarded(GD(5.0), every=2, slack=0.1), BOWLS),
    "ADMM": (
        lambda: learned(ADMM(torch.tensor([0.5, 2.0]), PowerLaws([1, 5], [1.6, 1.2]))),
        "program",
    ),
    "WithinRange": (
        lambda: WithinRange(GD(0.1), md.FISTA(), {"curvature": [-9.0, 9.0]}),
        BOWLS,
    ),
    "NeverWorse": (lambda: NeverWorse(GD(5.0), every=2), BOWLS),
    "Equipped": (lambda: Equipped(GD(0.1), Smoothed(PowerLaws([1, 5], [0.5, 0.1]))), PICTURES),
    "Conditioned": (
        lambda: Conditioned(GD(ConditionalLaws([1], [0.5], exponents={"unit": -1.0}))),
        PICTURES,
    ),
    "Switch": (lambda: Switch(GD(0.1), 3, md.PDHG(0.2)), PICTURES),
}
OPERATORS = {
    "blur": lambda: Blur(random(3, 5)),
    "beam": lambda: ParallelBeam(6, torch.tensor([0.3, 1.1]), detectors=9, reach=1.2),
    "matrix": lambda: Matrix(random(2, 5, 36), (1, 6, 6)),
    "sparse matrix": lambda: SparseMatrix(random(5, 36).round().to_sparse(), (1, 6, 6)),
    "area means": lambda: AreaMeans(2),
    "sampling": lambda: Sampling(random(6, 6) > 0.5),
    "Fourier": lambda: Fourier(radial_mask(6, 2), real=True),
    "Haar": lambda: Haar(1),
    "chain": lambda: Chain(Blur(random(3, 5)), Multiple(3.0, Haar(1))),
    "multiple": lambda: Multiple(0.5, Blur(random(3, 3))),
}
TERMS = {
    "total variation": lambda: TV(0.1 + random(2), isotropic=True, huber=0.1),
    "coupled": lambda: TV(0.3, coupled=True),
    "roughness": lambda: Roughness(0.3),
    "weighted axes": lambda: TV(0.3, axis_weights=(0.5, 2.0)),
    "trend": lambda: Trend(0.3, axis_weights=(0.5, 2.0)),
    "l1": lambda: L1(0.1 + random(2), Haar(1), coupled=True),
    "ridge": lambda: Ridge(0.2),
    "anchor": lambda: Anchor(0.2, random(2, 2, 6, 6)),
    "learned ridges": lambda: LearnedRidges(
        random(4, 2, 3, 3) - random(4, 2, 3, 3).mean((-2, -1), keepdim=True),
        RidgeProfile(random(4, 5).abs().cumsum(-1) + 0.1, random(4, 5)),
        0.3,
    ),
}


def learned(part):
    """The part with its parameters changed."""
    with torch.no_grad():
        for p in part.parameters():
            p.add_(0.1 * random(*p.shape))
    return part


def saturated(schedule):
    """A learned value so close to its bound that rounding would put it there."""
    with torch.no_grad():
        schedule.raw.fill_(40.0)
    return schedule


def stored(part, tmp_path):
    """Save and load, and check all tensors and the description."""
    again = zoo.load(zoo.save(part, tmp_path / "entry"))
    assert type(again) is type(part)
    state = part.state_dict()
    same = again.state_dict()
    assert list(state) == list(same)
    for name, tensor in state.items():
        assert tensor.dtype == same[name].dtype
        assert torch.equal(tensor, same[name])
    assert json.dumps(describe(again.requires_grad_(False))) == json.dumps(
        describe(part.requires_grad_(False))
    )
    assert repr(again) == repr(part)
    return again


def both(parts):
    return pytest.mark.parametrize("make", parts.values(), ids=parts.keys())


@both(SCHEDULES)
def test_schedules(make, tmp_path):
    schedule = make()
    again = stored(schedule, tmp_path)
    assert [schedule(k) for k in range(1, 40)] == [again(k) for k in range(1, 40)]


@both(ORACLES)
def test_oracles(make, tmp_path):
    oracle = make()
    again = stored(oracle, tmp_path)
    problem = (
        TVDenoising(random(2, 1, 5, 4))
        if oracle_of_kinks(oracle)
        else PROBLEMS["poisson tomography"]()
    )
    x = problem.start() + 0.1
    first, second = (
        each(problem, x, 3, torch.Generator().manual_seed(5)) for each in (oracle, again)
    )
    assert torch.equal(first, second)
    assert oracle.stochastic == again.stochastic


def oracle_of_kinks(oracle):
    return any(isinstance(each, Smoothed | Rounded) for each in oracle.modules())


@both(PROBLEMS)
def test_problems(make, tmp_path):
    problem = make()
    again = stored(problem, tmp_path)
    assert (again.batch, again.sample_shape) == (problem.batch, problem.sample_shape)
    assert type(again.domain) is type(problem.domain)
    x = problem.start()
    assert torch.equal(again.start(), x)
    assert torch.equal(again.value(x), problem.value(x))
    assert torch.equal(again.grad(x), problem.grad(x))
    if problem.terms:
        subset = torch.tensor([1])
        assert torch.equal(again.grad_of_terms(x, subset), problem.grad_of_terms(x, subset))


@both(OPERATORS)
def test_operators(make, tmp_path):
    operator = make()
    again = stored(operator, tmp_path)
    x = random(2, 1, 6, 6)
    assert torch.equal(again.A_adjoint(again.A(x)), operator.A_adjoint(operator.A(x)))


@both(TERMS)
def test_terms(make, tmp_path):
    term = make()
    again = stored(term, tmp_path)
    x = random(2, 2, 6, 6)
    assert torch.equal(again.value(x), term.value(x))


DOMAINS = [
    WholeSpace(),
    PositiveOrthant(),
    NegativeOrthant(),
    Box(-1, 0.3),
    Simplex(),
    SpectralBall(2.0),
]


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: type(domain).__name__)
def test_domains(domain, tmp_path):
    again = build(json.loads(json.dumps(describe(domain))), {})
    assert type(again) is type(domain)
    assert vars(again) == vars(domain)
    problem = stored(LeastSquares(random(3, 2), random(3), domain), tmp_path)
    assert vars(problem.domain) == vars(domain)


def test_initial_networks(tmp_path):
    network = dict(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).state_dict())
    again = stored(Initialisation(network), tmp_path).network
    assert list(again) == list(network)
    assert all(torch.equal(again[name], leaf) for name, leaf in network.items())


@pytest.mark.parametrize(("make", "name"), METHODS.values(), ids=METHODS)
def test_methods(make, name, tmp_path):
    method = make()
    assert type(method).__name__ == next(key for key, value in METHODS.items() if value[0] is make)
    again = stored(method, tmp_path)
    problem = PROBLEMS[name]()
    first, second = (md.solve(problem, each, iterations=9, fused=False) for each in (method, again))
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.trace.values, second.trace.values)


# what others subclass, what holds code of users, what theory and optimisers make for themselves
UNSTORED = {
    "GridDenoising",
    "SignalMethod",
    "DifferenceTerm",
    "Domain",
    "Fit",
    "GradientMethod",
    "Method",
    "Oracle",
    "PrimalDual",
    "Problem",
    "Schedule",
    "StatefulWrapper",
    "Term",
    "WrappedOracle",
    "Wrapper",
    "Function",
    "NetworkTraining",
    "SmallCNNTraining",
    "StepRecorder",
    "LearningRate",
}


def test_every_public_part_is_stored_by_some_test():
    """Maps and potentials, by tests/mirrors/test_storage.py; everything else, here."""
    for module in pkgutil.walk_packages(md.__path__, "mirrordescent."):
        importlib.import_module(module.name)
    waiting = [Part]
    public = set()
    while waiting:
        found = waiting.pop().__subclasses__()
        waiting += found
        public |= {each for each in found if each.__module__.partition(".")[0] == "mirrordescent"}
    public = {
        each
        for each in public
        if not each.__name__.startswith("_") and each.kind not in ("map", "potential")
    }
    tables = (SCHEDULES, ORACLES, PROBLEMS, OPERATORS, TERMS)
    tried = {type(make()).__name__ for table in tables for make in table.values()} | set(METHODS)
    tried |= {type(domain).__name__ for domain in DOMAINS} | {"Initialisation"}
    tried |= {"NoiseNetwork"}  # the next test
    tried |= {"RidgePrior", "RidgeProfile", "RidgeTable"}  # tests/problems/test_learned_ridges.py
    assert {each.__name__ for each in public} - UNSTORED == tried


def test_the_estimator_of_noise_is_stored(tmp_path):
    network = NoiseNetwork(8)
    features = random(3, network.means.numel())
    torch.testing.assert_close(stored(network, tmp_path)(features), network(features))


def test_two_precisions_in_one_method(tmp_path):
    steps = Interpolated([1, 3], 0.1 + random(2, dtype=DOUBLE))
    again = stored(SMD(Diagonal(random(3)), steps), tmp_path)
    assert again.t.log_values.dtype == DOUBLE
    assert again.mirror.d.dtype == torch.float32


class Mirrored:
    """An operator that is only a pair of functions."""

    norm = 1.0

    def A(self, x):
        return x.flip(-1)

    A_adjoint = A


UNSTORABLE = [
    (
        lambda: Function(lambda x: x.sum(-1)),
        "function of Function cannot be stored: a function is neither data nor",
    ),
    (lambda: Function(torch.Tensor.sum), "function of Function cannot be stored"),
    (
        lambda: NetworkTraining(nn.Linear(2, 3), torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])),
        "model of NetworkTraining cannot be stored: a Linear is neither data nor a part",
    ),
    (
        lambda: GD(lambda k: 0.1 / k),
        "t.function of GD cannot be stored: a function is .* as a subclass, such as of Sched",
    ),
    (lambda: Smoothed(lambda k: 0.1), "width.function of Smoothed cannot be stored"),
    (
        lambda: TVInpainting(random(1, 1, 3, 3), None, operator=Mirrored()),
        "operator of TVInpainting cannot be stored: a Mirrored is neither data nor a part",
    ),
    (lambda: nn.Linear(2, 3), "Linear cannot be stored: it is not a map, method"),
]


@pytest.mark.parametrize(("make", "message"), UNSTORABLE)
def test_what_cannot_be_stored_says_why(make, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        zoo.save(make(), tmp_path / "entry")
    assert list(tmp_path.glob("entry*")) == []


def test_a_part_that_hides_its_arguments_says_which(tmp_path):
    class Forgetful(Exact):
        def __init__(self, strength):
            super().__init__()

    with pytest.raises(
        TypeError, match="its constructor takes 'strength', but it has no attribute of that name"
    ):
        zoo.save(Forgetful(1.0), tmp_path / "entry")


def test_descriptions_with_old_names_of_switches_are_built():
    """Without a warning, which the tests would turn into an error."""
    plain = describe(Switch(GD(0.1), 3, md.PDHG(0.2)))
    del plain["dual_start"]
    handed = build({**plain, "type": "HandOver"}, {})
    assert type(handed) is Switch
    assert (handed.after, handed.certified, handed.dual_start) == (3, True, True)
    del plain["certified"]
    relay = build({**plain, "type": "Relay"}, {})
    assert type(relay) is Switch
    assert (relay.after, relay.certified, relay.dual_start) == (3, False, False)


def test_old_names_of_switches_warn():
    with pytest.warns(DeprecationWarning, match="HandOver was renamed to .*Switch"):
        assert md.methods.HandOver is Switch
    with pytest.warns(DeprecationWarning, match=r"Relay was renamed to .*Switch.*dual_start=False"):
        relay = md.methods.Relay
    switch = relay(GD(0.1), 3, md.PDHG(0.2))
    assert type(switch) is Switch
    assert not switch.certified
    assert not switch.dual_start
