"""Picking: a model in, its fastest engine that is right out, and what else was tried."""

from attngraft.pick.fastest import PickResult, pick_fastest
from attngraft.pick.recipe import Recipe, make_recipe

__all__ = ["PickResult", "Recipe", "make_recipe", "pick_fastest"]
