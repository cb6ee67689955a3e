"""Methods by name."""

from __future__ import annotations

import pytest

import mirrordescent as md
from mirrordescent.methods import named, names
from mirrordescent.mirrors import Euclidean, Logit


@pytest.mark.parametrize(
    ("name", "kind"),
    [("md", md.MD), ("smd", md.SMD), ("amd", md.AMD), ("asmd", md.ASMD), ("LAMD", md.AMD)],
)
def test_the_papers_names_are_the_same_methods_with_a_map(name, kind):
    method = named(name, Logit(), 0.1)
    assert type(method) is kind
    assert isinstance(method.mirror, Logit)
    if not name.startswith("L"):
        assert type(named(f"l{name}", Logit(), 0.1)) is kind
        assert isinstance(named(name, t=0.1).mirror, Euclidean)


def test_every_name_makes_a_method():
    for name in (
        name for name, kind in names().items() if kind.__module__.startswith("mirrordescent.")
    ):
        takes_no_steps = name in ("pdhg", "dual-fista", "taut-string", "trend-interior-point")
        arguments = {} if takes_no_steps else {"t": 0.1}
        if name.startswith("l"):
            arguments["mirror"] = Euclidean()
        assert isinstance(named(name, **arguments), md.methods.Method)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lamdd", Euclidean(), 0.1), "did you mean 'lamd'"),
        (("pdgh",), "did you mean 'pdhg'"),
        (("lamd", None, 0.1), "lamd needs a learned mirror map; without one, use amd"),
        (("amd", Euclidean()), "amd needs step sizes"),
        (("adam", Euclidean(), 0.1), "adam takes no mirror map"),
        (("pdhg", None, 0.1), "pdhg takes no step sizes"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        named(*arguments)


def test_a_method_of_a_user_s_own_is_known_by_its_name():
    class Halving(md.MD):
        cli_names = ("halving",)

    assert type(named("halving", t=0.1)) is Halving
    assert type(named("md", t=0.1)) is md.MD


def test_the_old_name_of_the_names_warns():
    class Doubling(md.MD):
        called = ("doubling",)

    with pytest.warns(DeprecationWarning, match="Doubling.called was renamed to cli_names"):
        assert names()["doubling"] is Doubling
    Doubling.cli_names = Doubling.called
    del Doubling.called
