"""Writes a bundle: everything goes into a temporary directory that is renamed when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from importlib.metadata import version
from math import prod
from pathlib import Path

from paceline.backends.names import ONNXRUNTIME
from paceline.bundle import MANIFEST, GraphFiles, Manifest, StoredFile, sha256
from paceline.errors import InputError
from paceline.text import TOKENIZER_FILE
from paceline_export.checkpoint import Drafter, Target, open_pair, read_json
from paceline_export.fields import Fields
from paceline_export.lower import onnx

Progress = Callable[[str, str, int], None]  # stage, tensor or file, bytes
COPIED = (TOKENIZER_FILE, "chat_template.jinja", "generation_config.json")
README = "README.md"


def export(target_folder: Path, drafter_folder: Path, out: Path, progress: Progress) -> Manifest:
    """Exports a pair to a new bundle at `out`.

    Args:
        progress: called after every tensor written and every piece hashed.

    Raises:
        InputError: a checkpoint is refused, or `out` exists. Nothing is written then.
    """
    if out.exists():
        raise InputError(f"{out} exists already; choose another output directory, or remove it first.")
    target, drafter = open_pair(target_folder, drafter_folder)
    if not (target_folder / TOKENIZER_FILE).is_file():
        raise InputError(f"{target_folder / TOKENIZER_FILE} is missing; a bundle carries its target's tokenizer.")
    stop_ids = _stop_ids(target)
    with _complete_or_nothing(out) as folder:
        signatures = onnx.write_pair(folder, target, drafter, lambda name, size: progress("graphs", name, size))
        for name in COPIED:
            if (target_folder / name).is_file():
                shutil.copyfile(target_folder / name, folder / name)
        (folder / README).write_text(_readme(target, drafter, folder), encoding="utf-8")
        files = {
            file.name: StoredFile(file.stat().st_size, sha256(file, lambda name, size: progress("hashes", name, size)))
            for file in sorted(folder.iterdir())
        }
        manifest = Manifest(
            made_by=f"paceline {version('paceline')}",
            recipe="f32",
            vocab_size=target.config.vocab_size,
            hidden_size=target.config.hidden_size,
            window=target.config.window,
            max_positions=target.config.max_positions,
            bos_id=target.config.bos_id,
            stop_ids=stop_ids,
            draft_position_offset=0,
            caches=onnx.cache_specs(target.config),
            drafter_layers=tuple(spec.layer for spec in onnx.drafter_caches(target.config, drafter)),
            vocabulary_sha256=files[TOKENIZER_FILE].sha256,
            graphs={
                ONNXRUNTIME: GraphFiles(
                    onnx.TARGET_FILE, onnx.DRAFTER_FILE, {name: s.to_json() for name, s in signatures.items()}
                )
            },
            files=files,
        )
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def export_bytes(target_folder: Path, drafter_folder: Path) -> int:
    """Bytes of weights that an export of this pair writes; for progress."""
    target, drafter = open_pair(target_folder, drafter_folder)
    return sum(4 * prod(w.shape) for w in (*target.weights.values(), *drafter.weights.values()))


@contextmanager
def _complete_or_nothing(out: Path) -> Iterator[Path]:
    """A temporary directory beside `out` that takes its name on success and is removed on any failure."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for leftover in out.parent.glob(f".{escape(out.name)}.partial-*"):
        if _abandoned(leftover.name.rpartition("-")[2]):  # an export that was killed
            shutil.rmtree(leftover)
    folder = out.parent / f".{out.name}.partial-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _abandoned(pid: str) -> bool:
    """Whether the export with this process id is gone. One with our own id was: a container gives the same ids again."""
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(pid) == os.getpid()


def _stop_ids(target: Target) -> tuple[int, ...]:
    """The union of what config.json and generation_config.json call an end."""
    file = target.folder / "generation_config.json"
    more = Fields(read_json(file), str(file)).ids("eos_token_id") if file.is_file() else ()
    return tuple(sorted({*target.config.eos_ids, *more}))


def _readme(target: Target, drafter: Drafter, folder: Path) -> str:
    rows = "\n".join(f"| {f.name} | {f.stat().st_size:,} |" for f in sorted(folder.iterdir()))
    return f"""# paceline bundle

A Gemma 4 target ({len(target.config.layers)} layers, width {target.config.hidden_size}, vocabulary \
{target.config.vocab_size:,}) and its multi-token-prediction drafter ({len(drafter.config.layers)} layers, width \
{drafter.config.hidden_size}) as ONNX graphs that share the target's KV cache. Weights: float32.

Run it:

    paceline run THIS_DIRECTORY -p "Once upon a time" --stats

| file | bytes |
|---|---|
{rows}
"""
