"""What the loop will ask of a part's signatures, and whether a file has it."""

from __future__ import annotations

from pathlib import Path

from paceline import signatures
from paceline.backends.litert.model import CompiledModel
from paceline.backends.ports import require_signature
from paceline.errors import InputError
from paceline.manifest import Manifest
from paceline.signatures import SIGNATURES, Port, Signature


def require_parts(manifest: Manifest, parts: dict[str, str]) -> None:
    """Refuses parts that the loop cannot do without, or does not know.

    Raises:
        InputError: with the part's name.
    """
    wanted = {"target", "drafter", "embedder"} | ({"per_layer_embedder"} if manifest.per_layer_size else set())
    if set(parts) != wanted:
        raise InputError(
            f"the bundle's TFLite graphs are {', '.join(sorted(parts))}; this model needs {', '.join(sorted(wanted))}; "
            "export the bundle again."
        )


def expected_signatures(manifest: Manifest, part: str) -> dict[str, Signature]:
    """The signatures that a part must have for the model that the manifest describes."""
    window, hidden = manifest.window, manifest.hidden_size
    per_layer = (manifest.layers, manifest.per_layer_size) if manifest.per_layer_size else None
    if part == "drafter":
        scored = manifest.scored_tokens, manifest.vocab_size
        return {signatures.DRAFT: signatures.tflite_drafter(manifest.drafter_caches, window, hidden, *scored)}

    def made(rows: int) -> Signature:
        if part == "embedder":
            return signatures.tflite_embedder(signatures.EMBEDDINGS, rows, (hidden,))
        if part == "per_layer_embedder":
            return signatures.tflite_embedder(signatures.PER_LAYER_EMBEDDINGS, rows, per_layer or ())
        return signatures.tflite_target(manifest.caches, window, hidden, manifest.vocab_size, per_layer, rows)

    return {name: made(rows) for rows, name in SIGNATURES.items()}


def require_signatures(file: Path, model: CompiledModel, expected: dict[str, Signature]) -> None:
    """Compares what a file holds with what the loop will ask of it.

    Raises:
        InputError: a signature, or a tensor of one, is missing or has another shape; the text names it.
    """
    for name, signature in expected.items():
        if name not in model.signatures:
            found = ", ".join(sorted(model.signatures)) or "none"
            raise InputError(f"{file} has no signature {name} (it has {found}); export the bundle again.")
        info = model.signatures[name]
        inputs, outputs = ([Port(t.name, t.dtype, t.shape) for t in tensors] for tensors in (info.inputs, info.outputs))
        require_signature(file, name, signature, inputs, outputs)
