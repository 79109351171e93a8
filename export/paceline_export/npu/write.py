"""Writes the graphs for a neural processor into a bundle: measured in float32, then as integers of those ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

from paceline.errors import InputError
from paceline.manifest import GraphFiles
from paceline.npu.profile import PROFILE_FILE, NpuProfile
from paceline.npu.scales import BITS, Scale
from paceline.npu.signatures import ROWS
from paceline.text import encode, load_tokenizer
from paceline_export.checkpoint import Drafter, Target
from paceline_export.npu.graphs import NpuModel, drafter_graphs, target_graphs
from paceline_export.npu.measure import measure, rotations
from paceline_export.npu.numbers import Integers
from paceline_export.recipes import RECIPES, Recipe
from paceline_export.rounding import Rounding

TARGET, DRAFTER = "target.npu.tflite", "drafter.npu.tflite"
MOST_UNROLLED = 8
Report = Callable[[str, str, int], None]  # stage, tensor or text, bytes


@dataclass(frozen=True)
class NpuRecipe:
    """Names say bits of activations and of weights.

    Attributes:
        dtype: of activations and KV rows.
        target, drafter: recipes of the matrices, each row with a scale of its own.
    """

    name: str
    dtype: str
    target: Recipe
    drafter: Recipe


NPU_RECIPES = {
    recipe.name: recipe
    for recipe in (
        NpuRecipe("a16w8", "int16", RECIPES["wi8c"], RECIPES["wi8c"]),
        NpuRecipe("a16w4", "int16", RECIPES["wi8c"], RECIPES["mixed-wi4c"]),  # int4 is the drafter's alone
        NpuRecipe("a8w8", "int8", RECIPES["wi8c"], RECIPES["wi8c"]),
    )
}


@dataclass(frozen=True)
class NpuOptions:
    """What of the graphs is the user's choice.

    Attributes:
        contexts: slots of the full caches, of each size that the graphs have.
        unrolled: steps of a second drafter signature, with the token table inside; 1 is none.
        prompts: texts that the ranges are measured on.
    """

    prompts: tuple[str, ...]
    recipe: str = "a16w8"
    contexts: tuple[int, ...] = (1024, 4096)
    unrolled: int = 1

    def __post_init__(self) -> None:
        if self.recipe not in NPU_RECIPES:
            raise InputError(f"the NPU recipe is {self.recipe!r}; allowed are {', '.join(NPU_RECIPES)}.")
        if not self.contexts or list(self.contexts) != sorted({size for size in self.contexts if size >= max(ROWS)}):
            raise InputError(f"the NPU contexts are {list(self.contexts)}; give rising numbers of at least {max(ROWS)} tokens.")
        if not 1 <= self.unrolled <= MOST_UNROLLED:
            raise InputError(f"the NPU drafter has {self.unrolled} steps; allowed are 1 to {MOST_UNROLLED}.")

    @property
    def steps(self) -> tuple[int, ...]:
        """Of the drafter's signatures."""
        return (1,) if self.unrolled == 1 else (1, self.unrolled)

    def within(self, max_positions: int) -> NpuOptions:
        """The same for a model of a given limit: no context is longer."""
        contexts = tuple(sorted({min(size, max_positions) for size in self.contexts}))
        return NpuOptions(self.prompts, self.recipe, contexts, self.unrolled)

    def written_bytes(self, target: Target, drafter: Drafter) -> int:
        """Of weights: as float32, which are gone afterwards, and as integers; for progress and free space."""
        matrices = [prod(w.shape) for model in (target, drafter) for w in model.weights.values() if len(w.shape) == 2]
        table = prod(target.weights["model.embed_tokens.weight"].shape) if self.unrolled > 1 else 0
        return sum(matrices) * 5 + table * BITS[NPU_RECIPES[self.recipe].dtype] // 8


def write_npu(folder: Path, target: Target, drafter: Drafter, options: NpuOptions, report: Report) -> GraphFiles:
    """Writes the graphs and npu.json into `folder`.

    Raises:
        InputError: a prompt cannot be made into tokens.
    """
    options = options.within(target.config.max_positions)
    recipe, tokenizer = NPU_RECIPES[options.recipe], load_tokenizer(target.folder)
    prompts = [encode(tokenizer, prompt) for prompt in options.prompts]
    ranges = measure(
        folder, target, drafter, prompts, partial(report, "npu: float32"), lambda text: report("npu: measuring", text, 0)
    )
    numbers = {"target": Integers(recipe.dtype, ranges.target), "drafter": Integers(recipe.dtype, ranges.drafter)}
    roundings = Rounding(recipe.target.target(target.weights)), Rounding(recipe.drafter.drafter(drafter.weights))
    contexts, steps = options.contexts, options.steps
    models = {
        "target": target_graphs(target, numbers["target"], roundings[0], contexts),
        "drafter": drafter_graphs(target, drafter, numbers["drafter"], roundings[1], contexts, steps),
    }
    files = {"target": TARGET, "drafter": DRAFTER}
    for part, model in models.items():
        model.tflite.save(folder / files[part], partial(report, f"npu: {recipe.dtype}"))
    clusters = drafter.config.head.top_k if drafter.config.head else 0
    scales = {part: _scales(model, numbers[part]) for part, model in models.items()}
    profile = NpuProfile(recipe.name, recipe.dtype, contexts, ROWS, steps, clusters, rotations(target), scales)
    (folder / PROFILE_FILE).write_text(profile.to_json(), encoding="utf-8")
    described = {files[part]: {name: s.to_json() for name, s in model.signatures.items()} for part, model in models.items()}
    return GraphFiles(files, described)


def _scales(model: NpuModel, numbers: Integers) -> dict[str, Scale]:
    """Of the signatures' inputs and outputs, by name; outputs of later steps are not named."""
    ports = {port.name: port for s in model.signatures.values() for port in (*s.inputs, *s.outputs)}
    integers = [name for name, port in ports.items() if port.dtype == numbers.dtype and name in numbers.ranges]
    return {name: numbers.scale(name) for name in sorted(integers)}
