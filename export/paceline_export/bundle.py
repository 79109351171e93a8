"""Writes a bundle: everything goes into a temporary directory that is renamed when it is complete."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Protocol

from paceline.backends.names import LITERT, ONNXRUNTIME
from paceline.bundle import (
    CHAT_TEMPLATE,
    DRAFTER_CONFIG,
    GENERATION_CONFIG,
    MANIFEST,
    TARGET_CONFIG,
    Bundle,
    sha256,
)
from paceline.errors import InputError
from paceline.manifest import GraphFiles, Manifest, StoredFile
from paceline.partial import remove_abandoned
from paceline.stored_weights import StoredWeight, write_weights
from paceline.text import TOKENIZER_FILE
from paceline_export import weights
from paceline_export.card import LITERTLM, PACKED, model_card
from paceline_export.checkpoint import CONFIG, Drafter, Target, open_pair, stop_ids
from paceline_export.complete import complete_or_nothing
from paceline_export.lower import onnx, tflite
from paceline_export.lower.caches import cache_specs, drafter_caches
from paceline_export.lower.litertlm_signatures import LiteRtLmProfile
from paceline_export.model.target import TABLE
from paceline_export.npu.write import NpuOptions, write_static
from paceline_export.preflight import require_room
from paceline_export.quantize import Scheme
from paceline_export.recipes import DEFAULT_RECIPE, F32, RECIPES, Recipe
from paceline_export.rounding import Rounding
from paceline_export.tokenizer import TOKENIZER_BINARY, tokenizer_binary
from paceline_export.turns import chat_turns

Progress = Callable[[str, str, int], None]  # stage, tensor or file, bytes
COPIED = (TOKENIZER_FILE, CHAT_TEMPLATE, GENERATION_CONFIG)
README = "README.md"


class Writer(Protocol):
    """Writes a pair's graphs in one format."""

    def __call__(
        self,
        folder: Path,
        target: Target,
        drafter: Drafter,
        target_rounding: Rounding,
        drafter_rounding: Rounding,
        progress: weights.Progress,
    ) -> GraphFiles: ...


@dataclass(frozen=True)
class Format:
    """A format of the graphs: the backend that runs them, the recipes that it can hold, and what writes them."""

    backend: str
    recipes: tuple[str, ...]
    write_pair: Writer


# XNNPACK takes no negative scales.
UNSIGNED = tuple(name for name, recipe in RECIPES.items() if not (recipe.default and recipe.default.signed))
FORMATS = {
    "tflite": Format(LITERT, UNSIGNED, tflite.write_pair),
    "onnx": Format(ONNXRUNTIME, tuple(RECIPES), onnx.write_pair),
}
ALL_FORMATS = (*FORMATS, LITERTLM)
DEFAULT_FORMATS = ("tflite",)


def export(
    target_folder: Path,
    drafter_folder: Path,
    out: Path,
    progress: Progress,
    formats: Sequence[str] = DEFAULT_FORMATS,
    recipe: Recipe = DEFAULT_RECIPE,
    note: Callable[[str], None] = lambda _: None,
    npu: NpuOptions | None = None,
) -> Manifest:
    """Exports a pair to a new bundle at `out`.

    Args:
        formats: of ALL_FORMATS, one or more; LITERTLM brings the TFLite graphs along.
        recipe: what the weights are stored as.
        progress: called after every tensor written and every piece hashed.
        note: called with a sentence on what a user should know of the bundle.
        npu: graphs for neural processors, beside the TFLite ones; None writes none.

    Raises:
        InputError: a checkpoint is refused, `out` exists, or disk or memory will not do. Nothing is written then.
    """
    if out.exists():
        raise InputError(f"{out} exists already; choose another output directory, or remove it first.")
    graph_formats = _graph_formats(formats)
    if npu and "tflite" not in graph_formats:
        raise InputError(f"graphs for an NPU stand beside TFLite ones, and the formats are {', '.join(formats)}; add tflite.")
    for name in graph_formats:
        if recipe.name not in FORMATS[name].recipes:
            held = ", ".join(FORMATS[name].recipes)
            raise InputError(f"the format {name} cannot hold the recipe {recipe.name}; it holds {held}.")
    pack = _packer() if LITERTLM in formats else None
    target, drafter = open_pair(target_folder, drafter_folder)
    if not (target_folder / TOKENIZER_FILE).is_file():
        raise InputError(f"{target_folder / TOKENIZER_FILE} is missing; a bundle carries its target's tokenizer.")
    ends = stop_ids(target)
    remove_abandoned(out.parent, out.name)
    table = prod(drafter.weights[TABLE].shape)
    require_room(out, _written_bytes(target, drafter, formats, recipe, npu), 4 * table)
    roundings = Rounding(recipe.target(target.weights)), Rounding(recipe.drafter(drafter.weights))
    with complete_or_nothing(out) as folder:
        graphs = {}
        for name in graph_formats:
            graphs[FORMATS[name].backend] = FORMATS[name].write_pair(
                folder, target, drafter, *roundings, partial(progress, name)
            )
        if npu:
            graphs |= write_static(folder, target, drafter, npu, progress, note)
        shutil.copyfile(target_folder / CONFIG, folder / TARGET_CONFIG)
        shutil.copyfile(drafter_folder / CONFIG, folder / DRAFTER_CONFIG)
        for name in COPIED:
            if (target_folder / name).is_file():
                shutil.copyfile(target_folder / name, folder / name)
        try:
            (folder / TOKENIZER_BINARY).write_bytes(tokenizer_binary(target_folder / TOKENIZER_FILE))
        except InputError as error:
            note(f"the bundle has no {TOKENIZER_BINARY}, which apps need, while the command line does not: {error}")
        write_weights(folder, [*_stored("target", target, roundings[0]), *_stored("drafter", drafter, roundings[1])])
        manifest = Manifest(
            made_by=f"paceline {version('paceline')}",
            recipe=recipe.name,
            vocab_size=target.config.vocab_size,
            hidden_size=target.config.hidden_size,
            layers=len(target.config.layers),
            per_layer_size=target.config.per_layer_size,
            window=target.config.window,
            max_positions=target.config.max_positions,
            bos_id=target.config.bos_id,
            stop_ids=ends,
            draft_position_offset=0,
            caches=cache_specs(target.config),
            drafter_layers=tuple(spec.layer for spec in drafter_caches(target.config, drafter.config)),
            scored_tokens=drafter.config.scored_tokens,
            vocabulary_sha256=sha256(folder / TOKENIZER_FILE),
            graphs=graphs,
            files={file.name: StoredFile(file.stat().st_size, "") for file in folder.iterdir()},  # hashed when all are there
        )
        if pack:
            pack(Bundle(folder, manifest), folder / PACKED, LiteRtLmProfile(), partial(progress, LITERTLM))
        (folder / README).write_text(model_card(target, drafter, folder, formats, recipe.name), encoding="utf-8")
        files = {
            file.name: StoredFile(file.stat().st_size, sha256(file, lambda name, size: progress("hashes", name, size)))
            for file in sorted(folder.iterdir())
        }
        manifest = replace(manifest, files=files)
        manifest = replace(manifest, chat_turns=chat_turns(folder, manifest))
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def export_bytes(
    target_folder: Path,
    drafter_folder: Path,
    formats: Sequence[str] = DEFAULT_FORMATS,
    recipe: Recipe = DEFAULT_RECIPE,
    npu: NpuOptions | None = None,
) -> int:
    """Bytes of weights that an export of this pair writes; for progress."""
    return _written_bytes(*open_pair(target_folder, drafter_folder), formats, recipe, npu)


def _packer() -> Callable[[Bundle, Path, LiteRtLmProfile, weights.Progress], None]:
    """What makes a .litertlm, which needs a package that other formats do not."""
    try:
        from paceline_export.litertlm import pack
    except ModuleNotFoundError as error:
        raise InputError(
            f"the format {LITERTLM} needs the package {error.name}; install it with: pip install 'paceline[litertlm]'"
        ) from None
    return pack


def _graph_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Those of our own graphs."""
    brought = ["tflite"] if LITERTLM in formats else []
    return tuple(dict.fromkeys(name for name in (*brought, *formats) if name != LITERTLM))


def _written_bytes(target: Target, drafter: Drafter, formats: Sequence[str], recipe: Recipe, npu: NpuOptions | None) -> int:
    schemes = [(target.weights, recipe.target(target.weights)), (drafter.weights, recipe.drafter(drafter.weights))]
    written = sum(_stored_bytes(weight, chosen.get(name)) for handles, chosen in schemes for name, weight in handles.items())
    # TFLite has the token table twice: for lookups in a file of its own, and as the target's head.
    twice = _stored_bytes(target.weights[TABLE], schemes[0][1].get(TABLE))
    tflite = "tflite" in _graph_formats(formats)
    ours = len(_graph_formats(formats)) * written + tflite * twice + (LITERTLM in formats) * (written + twice)
    return ours + (npu.written_bytes(target, drafter) if npu else 0)


def _stored_bytes(weight: weights.Weight, scheme: Scheme | None) -> int:
    rows, *others = weight.shape
    return scheme.stored_bytes((rows, prod(others))) if scheme else 4 * prod(weight.shape)


def _stored(model: str, checkpoint: Target | Drafter, rounding: Rounding) -> Iterator[StoredWeight]:
    """What became of every weight; the errors are known once the graphs are written."""
    for name, weight in checkpoint.weights.items():
        scheme = rounding.scheme(name)
        error = float(f"{rounding.errors[name]:.4g}") if scheme else 0.0
        stored_as = scheme.name if scheme else F32.name
        yield StoredWeight(model, name, weight.shape, stored_as, _stored_bytes(weight, scheme), error)
