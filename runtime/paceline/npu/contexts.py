"""What a chip's compiler made of an ONNX graph, kept in the user's cache directory, so that it is compiled once.

Such a file is a program that the chip's library takes as it is. So a seal beside it holds what the file system says of the
file when it was complete; a file that does not fit its seal, or that the library refuses, is made again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import onnxruntime as ort

from paceline.bundle import cache_folder, file_state
from paceline.errors import InputError
from paceline.partial import partial_name, remove_abandoned, write_whole
from paceline.reading import read_json

MOST_EMBEDDED = (1 << 31) - (64 << 20)  # bytes of weights: a context lies in an ONNX model, and protobuf ends at 2 GiB
BUILDING = Lock()  # two threads of a process would build the same one
Open = Callable[..., ort.InferenceSession]  # a file, and onnxruntime's configuration


@dataclass(frozen=True)
class OnnxGraphs:
    """The ONNX models of one part.

    Attributes:
        files: signature -> its model.
        sha256: of all that they hold, weights as well.
        weight_bytes: the size of the file with their weights.
    """

    files: Mapping[str, Path]
    sha256: str
    weight_bytes: int = 0


def kept_context(graphs: OnnxGraphs, signature: str, where: str, build: Open) -> ort.InferenceSession:
    """A session of a signature, from the kept program if there is one; else it is compiled, and kept.

    Args:
        where: the compiler's version and the chip, as a part of a file's name.
        build: opens a model.

    Raises:
        InputError: the model cannot be opened.
    """
    source = graphs.files[signature].resolve()
    key = sha256(f"{graphs.sha256} {signature}".encode()).hexdigest()[:24]
    folder = cache_folder() / "qnn"
    file = folder / f"{key}-{where}.onnx"
    with BUILDING:
        if _sealed(file):
            with suppress(InputError):
                return build(file)
        if graphs.weight_bytes > MOST_EMBEDDED:
            return build(source)
        partial = partial_name(file)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_stale(folder, file, source, where)
            partial.touch(exist_ok=False)
            partial.unlink()  # onnxruntime starts a new file only where there is none
        except OSError as error:
            _hint(
                f"the cache directory {folder} cannot be written ({error.strerror}), so graphs are compiled for the chip at "
                "every start; choose another one with XDG_CACHE_HOME."
            )
            return build(source)
        try:
            options = {"ep.context_enable": "1", "ep.context_embed_mode": "1", "ep.context_file_path": str(partial)}
            session = build(source, **options)
            with suppress(OSError):  # without a seal it is only built again
                partial.replace(file)
                shown = os.fsencode(source).decode(errors="replace")  # a path need not be text
                write_whole(_seal_of(file), json.dumps({"source": shown, "state": file_state(file)}))
            return session
        finally:
            partial.unlink(missing_ok=True)


def _sealed(file: Path) -> bool:
    """Whether the file is the one that was completed, and nobody touched it since."""
    try:
        return bool(_read_seal(file).get("state") == file_state(file))
    except OSError:  # it is not there
        return False


def _remove_stale(folder: Path, own: Path, source: Path, where: str) -> None:
    """Removes our own file, which is damaged if it is there, and those of models that are gone or have changed since."""
    remove_abandoned(folder)
    for file in folder.glob(f"*-{where}.onnx"):
        of = Path(str(_read_seal(file).get("source", source)))
        if file == own or of == source or not _exists(of):
            _seal_of(file).unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def _seal_of(file: Path) -> Path:
    return file.with_suffix(".json")


def _read_seal(file: Path) -> dict[str, Any]:
    """Empty where there is none that can be read."""
    try:
        seal = read_json(_seal_of(file))
    except (OSError, ValueError):
        return {}
    return seal if isinstance(seal, dict) else {}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # of a name that no file can have
        return False


@cache
def _hint(text: str) -> None:
    logging.getLogger("paceline").warning(text)
