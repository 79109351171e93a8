"""What a chip's compiler made of an ONNX graph, kept in the user's cache directory, so that it is compiled once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from paceline.bundle import cache_folder
from paceline.errors import InputError
from paceline.partial import partial_name
from paceline.sealed import complete, hint, is_sealed, remove_stale

if TYPE_CHECKING:
    import onnxruntime as ort

MOST_EMBEDDED = (1 << 31) - (64 << 20)  # bytes of weights: a program lies in an ONNX model, and protobuf ends at 2 GiB
BUILDING = Lock()  # two threads of a process would build the same one
Open = Callable[..., "ort.InferenceSession"]  # given a file, and onnxruntime's configuration by its names


@dataclass(frozen=True)
class OnnxGraphs:
    """The ONNX models of one part.

    Attributes:
        files: signature -> its model.
        sha256: stands for all that they hold, weights as well.
        weight_bytes: the size of the file with their weights.
    """

    files: Mapping[str, Path]
    sha256: str
    weight_bytes: int


def kept_session(graphs: OnnxGraphs, signature: str, where: str, build: Open) -> ort.InferenceSession:
    """A session of a signature, of the kept program if there is one; else it is compiled, and kept.

    Args:
        where: the compiler's version and the chip, as a part of a file's name.
        build: opens a model, or a kept program.

    Raises:
        InputError: the model cannot be opened.
    """
    source, folder = graphs.files[signature].resolve(), cache_folder() / "qnn"
    key = sha256(f"{graphs.sha256} {signature}".encode()).hexdigest()[:24]
    file = folder / f"{key}-{where}.onnx"
    with BUILDING:
        if is_sealed(file):
            with suppress(InputError):  # the library refuses it, and so it is built again
                return build(file)
        partial = _begun(file, source, where) if graphs.weight_bytes <= MOST_EMBEDDED else None
        if partial is None:
            return build(source)
        try:
            options = {"ep.context_enable": "1", "ep.context_embed_mode": "1", "ep.context_file_path": str(partial)}
            session = build(source, **options)
            complete(partial, file, source)
            return session
        finally:
            partial.unlink(missing_ok=True)


def _begun(file: Path, source: Path, where: str) -> Path | None:
    """A name for a new file, which onnxruntime wants to create itself; None where nothing can be written."""
    partial = partial_name(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(file.parent, f"*-{where}.onnx", source)
        partial.touch(exist_ok=False)
        partial.unlink()
    except OSError as error:
        hint(
            f"the cache directory {file.parent} cannot be written ({error.strerror}), so graphs are compiled for the chip at "
            "every start; choose another one with XDG_CACHE_HOME."
        )
        return None
    return partial
