"""Recipes: which weights are stored as which integers. A recipe is data; the same name means the same values everywhere.

Names say bits and scales: `wi4c` is int4 with a scale for each output channel, `wi4b32` one for each block of 32,
`wi8c` int8; `wi4b32s` has scales with a sign, as q4_0 has them. `mixed-wi4c` and `mixed-wi4b32` keep int8 where int4
costs most for the few bytes it saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import InputError
from paceline_export.quantize import Scheme
from paceline_export.weights import Weights

Schemes = Mapping[str, Scheme]  # of the weights that are not float32, by name
INT8, INT4 = Scheme(8), Scheme(4)
# Small matrices on the residual stream: the per-layer gates of a target, the drafter's projections around its MLP.
KEPT_INT8 = ("per_layer_input_gate", "per_layer_projection", "per_layer_model_projection")
KEPT_INT8_OF_DRAFTER = ("q_proj", "o_proj", "pre_projection", "post_projection", "centroids")


@dataclass(frozen=True)
class Recipe:
    """How the matrices and tables of a pair are stored; norms and scalars are float32 in all.

    Attributes:
        default: of every matrix and table; None is float32.
        kept: of the matrices that a mixed recipe treats apart; None treats none apart.
    """

    name: str
    default: Scheme | None = None
    kept: Scheme | None = None

    def target(self, weights: Weights) -> Schemes:
        """Schemes of a target's weights."""
        return self._schemes(weights, KEPT_INT8)

    def drafter(self, weights: Weights) -> Schemes:
        """Schemes of a drafter's weights."""
        return self._schemes(weights, KEPT_INT8_OF_DRAFTER)

    def _schemes(self, weights: Weights, apart: tuple[str, ...]) -> Schemes:
        chosen: dict[str, Scheme] = {}
        for name, weight in weights.items():
            if self.default is None or len(weight.shape) != 2:
                continue
            scheme = self.kept if self.kept and any(part in name for part in apart) else self.default
            columns = weight.shape[1]
            # A row that is no whole number of blocks has one scale; one of an odd number of int4 would not end on a byte.
            fits = columns % scheme.group(columns) == 0
            chosen[name] = INT8 if columns % 2 else scheme if fits else Scheme(scheme.bits)
        return chosen


F32 = Recipe("f32")
RECIPES = {
    recipe.name: recipe
    for recipe in (
        F32,
        *(Recipe(scheme.name, scheme) for scheme in (INT8, INT4, *(Scheme(4, size) for size in (32, 64, 128, 256)))),
        Recipe("mixed-wi4c", INT4, INT8),
        Recipe("mixed-wi4b32", Scheme(4, 32), INT8),
        Recipe("wi4b32s", Scheme(4, 32, signed=True)),
    )
}
# By the name that weights.json calls them.
SCHEMES = {
    scheme.name: scheme
    for scheme in (INT8, INT4, *(Scheme(4, size) for size in (32, 64, 128, 256)), Scheme(4, 32, signed=True))
}
DEFAULT_RECIPE = RECIPES["mixed-wi4c"]


def recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        InputError: there is none; the text lists those there are.
    """
    if name not in RECIPES:
        raise InputError(f"recipe is {name!r}; allowed are {', '.join(RECIPES)}.")
    return RECIPES[name]
