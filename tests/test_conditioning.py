"""Methods that depend on features of the problem."""

import math

import pytest
import torch
from torch import nn

import mirrordescent as md
from mirrordescent import kernels, zoo
from mirrordescent.conditioning import ConditionalLaws, Within, given
from mirrordescent.execution import fast_run, steps_for
from mirrordescent.methods import Conditioned, Equipped
from mirrordescent.mirrors import Stencil
from mirrordescent.oracles import Default, Rounded
from mirrordescent.problems import Blur, TVInpainting, gaussian_kernel

NAMES = ["weight", "faint", "light", "strong", "observed", "depth", "rough", "noisy"]


def method(dtype=torch.float64, seed=0):
    """Return a method in which everything depends on every feature."""
    laws = {"features": NAMES, "slope_counts": [1, 10]}
    curvature = ConditionalLaws([1, 10], [0.5, 20.0], -1.0, exponents={"unit": 1.0}, **laws)
    unit = ConditionalLaws([1], [1.0], exponents={"unit": 1.0})
    mirror = Stencil(ConditionalLaws([1], [0.6], bound=1.0, features=NAMES))
    amd = md.AMD(
        mirror,
        Within(ConditionalLaws([1], [0.6], **laws), curvature, unit, rough=1.5),
        regulariser=mirror,
        storage="primal",
        mixing=ConditionalLaws([1, 10], [0.8, 0.3], 1.0, 1.0, **laws),
        dual_weight=ConditionalLaws([1, 10], [1.5, 6.0], -1.0, **laws),
    )
    made = Conditioned(Equipped(amd, Rounded(curvature))).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for part in made.modules():
        if isinstance(part, ConditionalLaws):
            part.slopes.data.copy_(
                0.2 * torch.randn(part.slopes.shape, generator=generator, dtype=torch.float64)
            )
    return made.requires_grad_(False)


def damaged(shape=(3, 2, 12, 12), dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    y = torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)
    mask = torch.rand(shape[0], 1, *shape[-2:], generator=generator) > 0.3
    return y, mask.to(dtype), torch.tensor([0.05, 0.2, 1.5][: shape[0]], dtype=dtype)


def run(problem, steps=15, plain=None, fill=True):
    plain = plain or method()
    state = plain.init(problem.start(fill=fill), problem)
    for _ in range(steps):
        state = plain.step(problem, state, Default())
    return plain.answer(state)


def test_laws_are_log_linear_in_features_and_linear_in_log_k_between_counts():
    laws = ConditionalLaws(
        [1, 100], [2.0, 0.2], features=["a", "b"], slope_counts=[1, 100]
    ).double()
    laws.slopes.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    a = torch.tensor([0.0, 0.3, -1.0])
    b = torch.tensor([0.0, 0.5, 0.2])
    bound = laws.given({"a": a.double(), "b": b.double()})
    expected = [
        2 / math.sqrt(10) * math.exp(0.5 * u + 0.5 * 2 * v) for u, v in zip(a, b, strict=True)
    ]  # at k = 10
    assert bound(10).tolist() == pytest.approx(expected)
    assert laws(10).item() == pytest.approx(
        expected[0]
    )  # without features, as with those that are 0
    torch.testing.assert_close(bound.sequence(9, 3)[1], bound(10).detach().double())


def test_an_exponent_is_fixed_and_a_bound_holds():
    laws = ConditionalLaws([1], [2.0], exponents={"unit": -1.0})
    assert laws.given({"unit": torch.tensor([3.0]).log()})(7).item() == pytest.approx(2 / 3)
    bounded = ConditionalLaws([1], [0.5], bound=1.0, features=["a"])
    bounded.slopes.data.fill_(1.0)
    assert bounded.given({"a": torch.tensor([math.log(3.0)])})(1).item() == pytest.approx(0.75)


def test_given_replaces_what_is_conditional_and_shares_the_rest():
    conditional = ConditionalLaws([1], [1.0], features=["a"])
    other = nn.Linear(2, 2)
    module = nn.ModuleDict({"one": nn.Sequential(conditional), "two": conditional, "other": other})
    found = given(module, {"a": torch.ones(2)})
    assert found["two"] is not conditional
    assert found["one"][0] is found["two"]
    assert found["other"] is other
    assert module["two"] is conditional
    assert module["one"][0] is conditional
    assert found["two"].slopes is conditional.slopes  # learned together
    assert given(other, {"a": torch.ones(2)}) is other


def test_a_problem_that_does_not_describe_itself_is_told_so():
    problem = md.Quadratic(torch.eye(2)[None], torch.ones(1, 2))
    with pytest.raises(
        TypeError, match=r"feature 'weight', but the problem has no features.*features\(\)"
    ):
        md.solve(
            problem,
            Conditioned(md.GD(ConditionalLaws([1], [0.1], features=["weight"]))),
            iterations=2,
        )
    with pytest.raises(TypeError, match="needs the problem from the start"):
        method().init(torch.zeros(1, 1, 4, 4))


def test_every_sample_has_its_own_steps():
    y, mask, weight = damaged()
    together = run(TVInpainting(y, mask, weight))
    for i in range(len(y)):
        alone = run(TVInpainting(y[i : i + 1], mask[i : i + 1], weight[i : i + 1]))
        torch.testing.assert_close(together[i : i + 1], alone)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_takes_the_same_steps(dtype):
    y, mask, weight = damaged(dtype=dtype)
    problem = TVInpainting(y, mask, weight)
    plain = method(dtype)
    kernel = fast_run(plain, problem, Default())
    assert kernel is not None
    fused = kernel(plain.init(problem.start(fill=True), problem), 15)
    assert fused.k == 15
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(
        plain.answer(fused), run(problem, plain=plain), atol=tolerance, rtol=tolerance
    )


SYMMETRIES = {
    "brightness": (lambda y: y + 0.7, lambda w: w, 1.0),
    "contrast": (lambda y: 255 * y, lambda w: 255 * w, 1.0),
    "both": (lambda y: 3 - 0.1 * y, lambda w: 0.1 * w, 1.0),
    "scale of f": (lambda y: y, lambda w: w, 10.0),
    "transposition": (lambda y: y.mT, lambda w: w, 1.0),
    "flip": (lambda y: y.flip(-1), lambda w: w, 1.0),
    "channels": (lambda y: y.flip(1), lambda w: w, 1.0),
}


@pytest.mark.parametrize("name", SYMMETRIES)
def test_exact_symmetries_of_the_problem_are_those_of_the_method(name):
    act, weigh, scale = SYMMETRIES[name]
    y, mask, weight = damaged()
    moved_mask = {"transposition": mask.mT, "flip": mask.flip(-1)}.get(name, mask)
    one = run(TVInpainting(y, mask, weight))
    other = run(TVInpainting(act(y), moved_mask, weigh(weight), 0.5 * scale))
    torch.testing.assert_close(act(one), other, atol=1e-10 * float(other.abs().max()), rtol=0)


def test_it_is_stored_and_learned(tmp_path):
    y, mask, weight = damaged()
    problem = TVInpainting(y, mask, weight)
    plain = method()
    loaded = zoo.load(zoo.save(plain, tmp_path / "entry.safetensors"))
    assert torch.equal(run(problem, plain=plain), run(problem, plain=loaded))
    loaded.requires_grad_(True)
    problem.value(run(problem, 4, loaded)).sum().backward()
    slopes = [
        part.slopes.grad
        for part in loaded.modules()
        if isinstance(part, ConditionalLaws) and part.features
    ]
    assert len(slopes) == 5
    assert all(bool((grad != 0).any()) for grad in slopes)


def test_features_of_images():
    y = torch.zeros(2, 1, 9, 9)
    y[:, :, ::2] = 1.0
    mask = torch.ones(2, 1, 9, 9)
    mask[1, :, 3:6, 3:6] = 0
    found = TVInpainting(y, mask, torch.tensor([0.1, 0.2]), scale=2.0).features()
    assert found["unit"].exp().tolist() == pytest.approx([4.0, 4.0])
    assert float(found["weight"][1] - found["weight"][0]) == pytest.approx(math.log(2), abs=0.02)
    assert found["observed"].exp().tolist() == pytest.approx([1.0, 72 / 81])
    assert found["depth"].exp().tolist() == pytest.approx(
        [1.0, (9 + 1) / 9]
    )  # one pixel is two away
    flat = TVInpainting(torch.ones(1, 1, 3, 3), None, 0.1).features()
    assert all(bool(value.isfinite().all()) for value in flat.values())


def test_within_is_a_share_of_the_longest_step():
    curvature = ConditionalLaws([1], [4.0], features=["a"]).double()
    curvature.slopes.data.fill_(1.0)
    t = Within(0.5, curvature, smooth=2.0, rough=3.0)
    bound = given(t, {"a": torch.tensor([0.0, math.log(2.0)]).double()})
    assert bound(3).tolist() == pytest.approx([0.5 / 14, 0.5 / 26])
    assert bound.sequence(3, 2)[0].tolist() == pytest.approx([0.5 / 14, 0.5 / 26])
    assert kernels.numbers(1.0, bound.sequence(1, 2)).shape == (2, 2, 2)


def test_a_stencil_may_be_another_one_for_every_sample():
    law = ConditionalLaws([1], [0.6], bound=1.0, features=["a"]).double()
    law.slopes.data.fill_(1.0)
    both = given(Stencil(law), {"a": torch.tensor([-0.5, 1.0]).double()})
    x = torch.rand(2, 2, 7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for i, q in enumerate(both.damping.tolist()):
        alone = Stencil(q).double()
        for way in ("to_primal", "to_dual", "potential"):
            torch.testing.assert_close(
                getattr(both, way)(x)[i], getattr(alone, way)(x[i : i + 1])[0]
            )
    torch.testing.assert_close(both.to_dual(both.to_primal(x)), x)
    problem = TVInpainting(x, None, 0.1)
    norms = [problem.K_norm_in(Stencil(q).double()) for q in both.damping.tolist()]
    assert problem.K_norm_in(both) == pytest.approx(max(norms), rel=1e-6)


def test_a_sequence_follows_its_parameters():
    laws = ConditionalLaws([1, 4], [1.0, 2.0], features=["a"]).given({"a": torch.tensor([0.5])})
    before = laws.sequence(1, 3)
    assert laws.sequence(1, 3) is before
    with torch.no_grad():
        laws.raw.add_(1.0)
    torch.testing.assert_close(laws.sequence(1, 3), before * math.e)


def ratios(dtype=torch.float64):
    law = ConditionalLaws([1], [0.3], features=["weight"], exponents={"unit": -1.0}).to(dtype)
    law.slopes.data.fill_(-0.5)
    return law.requires_grad_(False)


@pytest.mark.parametrize("blurred", [False, True], ids=["pixels", "blur"])
@pytest.mark.parametrize(
    "kind", [md.PDHG, md.CondatVu, lambda ratio: md.CondatVu(ratio, Stencil(0.6).double())]
)
def test_the_ratio_of_primal_dual_steps_may_be_another_one_for_every_sample(kind, blurred):
    y, mask, weight = damaged()
    operator = Blur(gaussian_kernel(0.8).double()) if blurred else None
    together = Conditioned(kind(ratios()))
    batch = TVInpainting(y, mask, weight, operator=operator)
    x0 = batch.start()
    found = ratios().given(batch.features())(1).tolist()
    assert len(set(found)) == 3
    runs = [steps_for(together, batch, Default(), fused=False)]
    if not blurred:
        runs.append(steps_for(together, batch, Default(), fused=True))
    for steps in runs:
        state = steps(together.init(x0, batch), 12)
        for i, ratio in enumerate(found):
            alone = TVInpainting(y[i : i + 1], mask[i : i + 1], float(weight[i]), operator=operator)
            method = kind(ratio)
            one = steps_for(method, alone, Default(), fused=False)(
                method.init(x0[i : i + 1], alone), 12
            )
            torch.testing.assert_close(together.answer(state)[i], one.x[0])


def test_a_ratio_that_is_a_law_is_stored_and_loaded(tmp_path):
    y, mask, weight = damaged()
    problem = TVInpainting(y, mask, weight)
    method = Conditioned(
        md.Switch(md.GD(0.1), 3, md.CondatVu(ratios(), Stencil(0.6)), certified=False)
    ).double()
    zoo.save(method, tmp_path / "own.safetensors", zoo.Card("own", "a method"))
    loaded = zoo.load(tmp_path / "own.safetensors")
    results = [md.solve(problem, each, iterations=9, progress=False).x for each in (method, loaded)]
    assert torch.equal(*results)


def test_the_scale_of_f_does_not_change_the_iterates_of_a_conditioned_primal_dual_method():
    y, mask, weight = damaged()
    results = [
        run(TVInpainting(y, mask, weight, scale=s), plain=Conditioned(md.PDHG(ratios())))
        for s in (0.5, 3.0)
    ]
    torch.testing.assert_close(*results)
