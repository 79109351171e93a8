"""Writes a bundle: everything goes into a temporary directory that is renamed when it is complete."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from math import prod
from pathlib import Path

from paceline.backends.names import LITERT, ONNXRUNTIME
from paceline.bundle import MANIFEST, GraphFiles, Manifest, StoredFile, sha256
from paceline.errors import InputError
from paceline.partial import partial_name, remove_abandoned
from paceline.text import TOKENIZER_FILE
from paceline_export import weights
from paceline_export.checkpoint import Drafter, Target, open_pair, read_json
from paceline_export.fields import Fields
from paceline_export.lower import onnx, tflite
from paceline_export.lower.caches import cache_specs, drafter_caches
from paceline_export.model.target import TABLE
from paceline_export.quantize import Scheme
from paceline_export.recipes import F32, RECIPES, Recipe

Progress = Callable[[str, str, int], None]  # stage, tensor or file, bytes
COPIED = (TOKENIZER_FILE, "chat_template.jinja", "generation_config.json")
README = "README.md"


@dataclass(frozen=True)
class Format:
    """A format of the graphs: the backend that runs them, the recipes that it can hold, and what writes them."""

    backend: str
    recipes: tuple[str, ...]
    write_pair: Callable[[Path, Target, Drafter, Recipe, weights.Progress], GraphFiles]


FORMATS = {
    "tflite": Format(LITERT, tuple(RECIPES), tflite.write_pair),
    "onnx": Format(
        ONNXRUNTIME,
        (F32.name,),
        lambda folder, target, drafter, _, progress: onnx.write_pair(folder, target, drafter, progress),
    ),
}
DEFAULT_FORMATS = ("tflite",)


def export(
    target_folder: Path,
    drafter_folder: Path,
    out: Path,
    progress: Progress,
    formats: Sequence[str] = DEFAULT_FORMATS,
    recipe: Recipe = F32,
) -> Manifest:
    """Exports a pair to a new bundle at `out`.

    Args:
        formats: keys of FORMATS, one or more.
        recipe: what the weights are stored as.
        progress: called after every tensor written and every piece hashed.

    Raises:
        InputError: a checkpoint is refused, or `out` exists. Nothing is written then.
    """
    if out.exists():
        raise InputError(f"{out} exists already; choose another output directory, or remove it first.")
    for name in formats:
        if recipe.name not in FORMATS[name].recipes:
            held = ", ".join(FORMATS[name].recipes)
            raise InputError(f"the format {name} cannot hold the recipe {recipe.name} yet; it holds {held}.")
    target, drafter = open_pair(target_folder, drafter_folder)
    if not (target_folder / TOKENIZER_FILE).is_file():
        raise InputError(f"{target_folder / TOKENIZER_FILE} is missing; a bundle carries its target's tokenizer.")
    stop_ids = _stop_ids(target)
    with _complete_or_nothing(out) as folder:
        graphs = {}
        for name in formats:
            graphs[FORMATS[name].backend] = FORMATS[name].write_pair(folder, target, drafter, recipe, partial(progress, name))
        for name in COPIED:
            if (target_folder / name).is_file():
                shutil.copyfile(target_folder / name, folder / name)
        (folder / README).write_text(_readme(target, drafter, folder, formats, recipe.name), encoding="utf-8")
        files = {
            file.name: StoredFile(file.stat().st_size, sha256(file, lambda name, size: progress("hashes", name, size)))
            for file in sorted(folder.iterdir())
        }
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
            stop_ids=stop_ids,
            draft_position_offset=0,
            caches=cache_specs(target.config),
            drafter_layers=tuple(spec.layer for spec in drafter_caches(target.config, drafter.config)),
            vocabulary_sha256=files[TOKENIZER_FILE].sha256,
            graphs=graphs,
            files=files,
        )
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def export_bytes(
    target_folder: Path, drafter_folder: Path, formats: Sequence[str] = DEFAULT_FORMATS, recipe: Recipe = F32
) -> int:
    """Bytes of weights that an export of this pair writes; for progress."""
    target, drafter = open_pair(target_folder, drafter_folder)
    schemes = [(target.weights, recipe.target(target.weights)), (drafter.weights, recipe.drafter(drafter.weights))]
    written = sum(_stored_bytes(weight, chosen.get(name)) for handles, chosen in schemes for name, weight in handles.items())
    # TFLite has the token table twice: for lookups in a file of its own, and as the target's head.
    twice = _stored_bytes(target.weights[TABLE], schemes[0][1].get(TABLE)) if "tflite" in formats else 0
    return len(formats) * written + twice


def _stored_bytes(weight: weights.Weight, scheme: Scheme | None) -> int:
    rows, *others = weight.shape
    return scheme.stored_bytes((rows, prod(others))) if scheme else 4 * prod(weight.shape)


@contextmanager
def _complete_or_nothing(out: Path) -> Iterator[Path]:
    """A temporary directory beside `out` that takes its name on success and is removed on any failure."""
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(out.parent, out.name)
    folder = partial_name(out)
    folder.mkdir()
    try:
        yield folder
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _stop_ids(target: Target) -> tuple[int, ...]:
    """The union of what config.json and generation_config.json call an end."""
    file = target.folder / "generation_config.json"
    more = Fields(read_json(file), str(file)).ids("eos_token_id") if file.is_file() else ()
    return tuple(sorted({*target.config.eos_ids, *more}))


def _readme(target: Target, drafter: Drafter, folder: Path, formats: Sequence[str], recipe: str) -> str:
    rows = "\n".join(f"| {f.name} | {f.stat().st_size:,} |" for f in sorted(folder.iterdir()))
    return f"""# paceline bundle

A Gemma 4 target ({len(target.config.layers)} layers, width {target.config.hidden_size}, vocabulary \
{target.config.vocab_size:,}) and its multi-token-prediction drafter ({len(drafter.config.layers)} layers, width \
{drafter.config.hidden_size}) as {" and ".join(formats)} graphs that share the target's KV cache. Weights: {recipe}.

Run it:

    paceline run THIS_DIRECTORY -p "Once upon a time" --stats

| file | bytes |
|---|---|
{rows}
"""
