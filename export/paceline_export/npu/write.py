"""Writes the graphs for a neural processor into a bundle: measured in float32, then as integers of those ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from paceline.backends.names import NNAPI, NPU, NPU_ONNX
from paceline.errors import InputError
from paceline.manifest import GraphFiles
from paceline.npu.profile import MOST_SIZES, NpuProfile, profile_file
from paceline.npu.scales import Scale
from paceline.npu.signatures import ROWS
from paceline.text import encode, load_tokenizer
from paceline_export.checkpoint import Drafter, Target
from paceline_export.lower.flatbuffer import Subgraph
from paceline_export.model.target import TABLE
from paceline_export.npu.graphs import NpuModel, drafter_graphs, target_graphs
from paceline_export.npu.measure import Measured, measure, rotations
from paceline_export.npu.nnapi import PROMISED_LEVEL, lint
from paceline_export.npu.nnapi_ops import NnapiOps
from paceline_export.npu.numbers import Integers, Ranges
from paceline_export.npu.qdq import write_twin
from paceline_export.recipes import RECIPES, Recipe
from paceline_export.rounding import Rounding

NNAPI_RECIPE = "int8 products"
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
        profiles: NPU, NNAPI or both.
        recipe: of the profile NPU.
        contexts: slots of the full caches, of each size that the graphs have.
        unrolled: steps of a second drafter signature, with the token table inside; 1 is none.
        prompts: texts that the ranges are measured on.
        onnx: whether the profile NPU has an ONNX twin.
    """

    prompts: tuple[str, ...]
    profiles: tuple[str, ...] = (NPU,)
    recipe: str = "a16w8"
    contexts: tuple[int, ...] = (1024, 4096)
    unrolled: int = 1
    onnx: bool = False

    def __post_init__(self) -> None:
        if self.recipe not in NPU_RECIPES:
            raise InputError(f"the NPU recipe is {self.recipe!r}; allowed are {', '.join(NPU_RECIPES)}.")
        rising = sorted({size for size in self.contexts if size >= max(ROWS)})
        if list(self.contexts) != rising or not 1 <= len(rising) <= MOST_SIZES:
            raise InputError(
                f"the NPU contexts are {list(self.contexts)}; give rising numbers of at least {max(ROWS)} tokens, "
                f"at most {MOST_SIZES} of them."
            )
        if not 1 <= self.unrolled <= MOST_UNROLLED:
            raise InputError(f"the NPU drafter has {self.unrolled} steps; allowed are 1 to {MOST_UNROLLED}.")

    @property
    def steps(self) -> tuple[int, ...]:
        """Of the drafter's signatures."""
        return (1,) if self.unrolled == 1 else (1, self.unrolled)

    def within(self, max_positions: int) -> NpuOptions:
        """The same for a model of a given limit: no context is longer."""
        contexts = tuple(sorted({min(size, max_positions) for size in self.contexts}))
        return replace(self, contexts=contexts)

    def written_bytes(self, target: Target, drafter: Drafter) -> int:
        """Of weights: as float32, which are gone afterwards, and as integers; for progress and free space."""
        matrices = [prod(w.shape) for model in (target, drafter) for w in model.weights.values() if len(w.shape) == 2]
        table = prod(target.weights[TABLE].shape) if self.unrolled > 1 else 0
        per_profile = sum(matrices) + 4 * table
        return 4 * sum(matrices) + (len(self.profiles) + self.onnx) * per_profile


def write_static(
    folder: Path, target: Target, drafter: Drafter, options: NpuOptions, report: Report, note: Callable[[str], None]
) -> dict[str, GraphFiles]:
    """Writes the graphs of every profile, and a file that describes each, into `folder`.

    Args:
        note: called with a sentence on what a user should know of the bundle.

    Returns:
        profile -> its graphs.

    Raises:
        InputError: a prompt cannot be made into tokens.
    """
    options = options.within(target.config.max_positions)
    tokenizer = load_tokenizer(target.folder)
    begin = [] if target.config.bos_id is None else [target.config.bos_id]
    encoded = (encode(tokenizer, prompt) for prompt in options.prompts)
    prompts = [tokens if tokens[:1] == begin else begin + tokens for tokens in encoded]
    ranges = measure(folder, target, drafter, prompts, partial(report, "float32"), lambda text: report("ranges", text, 0))
    written = {}
    for profile in options.profiles:
        recipe = options.recipe if profile == NPU else NNAPI_RECIPE
        models, scales, dtype = _empty(profile, NPU_RECIPES[options.recipe], target, drafter, ranges)
        target_graphs(models["target"], target, options.contexts)
        drafter_graphs(models["drafter"], target, drafter, options.contexts, options.steps)
        files = {part: f"{part}.{profile}.tflite" for part in models}
        for part, model in models.items():
            model.tflite.save(folder / files[part], partial(report, profile))
        ports = {part: _ports(model) for part, model in models.items()}
        described = NpuProfile(
            recipe,
            dtype,
            options.contexts,
            ROWS,
            options.steps,
            drafter.config.head.top_k if drafter.config.head else 0,
            rotations(target),
            {part: {name: scale for name, scale in scales[part].items() if name in ports[part]} for part in models},
        )
        (folder / profile_file(profile)).write_text(described.to_json(), encoding="utf-8")
        signatures = {
            files[part]: {name: s.to_json() for name, s in model.signatures.items()} for part, model in models.items()
        }
        written[profile] = GraphFiles(files, signatures)
        if profile == NPU and options.onnx:
            written[NPU_ONNX] = _twins(folder, models, files, report)
        if profile == NNAPI:
            for file in files.values():
                if broken := len(lint(folder / file).findings):
                    note(f"{file} breaks {broken} of NNAPI's rules at feature level {PROMISED_LEVEL}; see paceline npu lint.")
    return written


def _twins(folder: Path, models: dict[str, NpuModel], files: dict[str, str], report: Report) -> GraphFiles:
    """The same graphs as ONNX: a part is the part's name, a dot and a signature, for a model has only one."""
    parts, described = dict[str, str](), dict[str, dict[str, Any]]()
    for part, model in models.items():
        for name, file in write_twin(folder, part, folder / files[part], partial(report, NPU_ONNX)).items():
            parts[f"{part}.{name}"], described[file] = file, {name: model.signatures[name].to_json()}
    return GraphFiles(parts, described)


def _empty(
    profile: str, recipe: NpuRecipe, target: Target, drafter: Drafter, ranges: Measured
) -> tuple[dict[str, NpuModel], dict[str, dict[str, Scale]], str]:
    """Models without signatures, the scale of every tensor that has one, and the dtype."""
    if profile == NNAPI:
        made = {part: NpuModel(partial(_nnapi_ops, found), "float32") for part, found in ranges.parts.items()}
        return made, {part: {} for part in made}, "float32"
    roundings = {
        "target": Rounding(recipe.target.target(target.weights)),
        "drafter": Rounding(recipe.drafter.drafter(drafter.weights)),
    }
    numbers = {part: Integers(recipe.dtype, found) for part, found in ranges.parts.items()}
    models = {part: NpuModel.of(numbers[part], roundings[part]) for part in numbers}
    scales = {part: {name: numbers[part].scale(name) for name in sorted(found)} for part, found in ranges.parts.items()}
    return models, scales, recipe.dtype


def _nnapi_ops(ranges: Ranges, graph: Subgraph) -> NnapiOps:
    return NnapiOps(graph, Rounding({}), {}, ranges=ranges)


def _ports(model: NpuModel) -> set[str]:
    """Names of the signatures' inputs and outputs."""
    return {port.name for signature in model.signatures.values() for port in (*signature.inputs, *signature.outputs)}
