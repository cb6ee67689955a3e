"""Recipes: the settings with which every entry of the zoo was learned."""

import warnings

from mirrordescent import zoo
from mirrordescent._internal.suggestions import require_known
from mirrordescent.learn import Recipe
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.recipes.image_maps import IMAGING_RECIPES
from mirrordescent.recipes.network_maps import NETWORK_RECIPES, REPTILE_RECIPES
from mirrordescent.recipes.printed_maps import PRINTED_RECIPES, PRINTED_REPTILE_RECIPES
from mirrordescent.recipes.prior_recipes import PRIOR_RECIPES
from mirrordescent.recipes.restoration_maps import RESTORATION_RECIPES
from mirrordescent.recipes.ridge_steps import RIDGE_STEP_RECIPES
from mirrordescent.recipes.spectral_maps import SPECTRAL_RECIPES
from mirrordescent.recipes.tomography_maps import TOMOGRAPHY_RECIPES

RECIPES: dict[str, Recipe] = {
    **IMAGING_RECIPES,
    **RESTORATION_RECIPES,
    **PRIOR_RECIPES,
    **RIDGE_STEP_RECIPES,
    **TOMOGRAPHY_RECIPES,
    **NETWORK_RECIPES,
    **REPTILE_RECIPES,
    **SPECTRAL_RECIPES,
    **PRINTED_RECIPES,
    **PRINTED_REPTILE_RECIPES,
}

__all__ = ["RECIPES", "recipe"]


def recipe(name: str) -> Recipe:
    """Return the recipe of an entry.

    The recipe of the control of an entry is called NAME-control.
    """
    if name in zoo.RENAMED:
        warnings.warn(
            f"the entry {name} is called {zoo.RENAMED[name]} now", FutureWarning, stacklevel=2
        )
        name = zoo.RENAMED[name]
    of = name.removesuffix(CONTROL)
    if name not in RECIPES and of in RECIPES:
        return RECIPES[of].control()
    require_known(name, RECIPES, "recipe")
    return RECIPES[name]
