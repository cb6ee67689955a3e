"""Recipes: how every entry of the zoo was learned."""

from mirrordescent_lab.recipes.imaging import RECIPES, train
from mirrordescent_lab.recipes.networks import NETWORK_RECIPES

__all__ = ["NETWORK_RECIPES", "RECIPES", "train"]
