"""What the loop will ask of a part's signatures, and whether a file has it."""

from __future__ import annotations

from pathlib import Path

from paceline import signatures
from paceline.backends.litert.model import CompiledModel, TensorInfo
from paceline.bundle import Manifest
from paceline.errors import InputError
from paceline.signatures import PREFILL, VERIFY, Port, Signature


def expected_signatures(manifest: Manifest, part: str) -> dict[str, Signature]:
    """The signatures that a part must have for the model that the manifest describes."""
    read = tuple(spec for spec in manifest.caches if spec.layer in manifest.drafter_layers)
    per_layer = (manifest.layers, manifest.per_layer_size) if manifest.per_layer_size else None
    names = VERIFY | PREFILL
    match part:
        case "drafter":
            return {signatures.DRAFT: signatures.tflite_drafter(read, manifest.window, manifest.hidden_size)}
        case "embedder":
            width: tuple[int, ...] = (manifest.hidden_size,)
            return {name: signatures.tflite_embedder(signatures.EMBEDDINGS, rows, width) for rows, name in names.items()}
        case "per_layer_embedder":
            width = (manifest.layers, manifest.per_layer_size)
            output = signatures.PER_LAYER_EMBEDDINGS
            return {name: signatures.tflite_embedder(output, rows, width) for rows, name in names.items()}
    sizes = manifest.window, manifest.hidden_size, manifest.vocab_size, per_layer
    return {name: signatures.tflite_target(manifest.caches, *sizes, rows) for rows, name in names.items()}


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
        for wanted, held in ((signature.inputs, info.inputs), (signature.outputs, info.outputs)):
            tensors = {tensor.name: tensor for tensor in held}
            names = {port.name for port in wanted}
            for what, odd in (("lacks", names - set(tensors)), ("has the unknown tensor", set(tensors) - names)):
                if odd:
                    raise InputError(f"{file}: signature {name} {what} {min(odd)}; export the bundle again.")
            for port in wanted:
                _require_port(file, name, port, tensors[port.name])


def _require_port(file: Path, signature: str, port: Port, found: TensorInfo) -> None:
    shape = tuple(-1 if isinstance(size, str) else size for size in port.shape)
    if (found.dtype, found.shape) != (port.dtype, shape):
        raise InputError(
            f"{file}: {port.name} of signature {signature} is {found.dtype} {list(found.shape)}, and this bundle's target and "
            f"drafter have {port.dtype} {list(shape)}; it belongs to another pair; export the bundle again."
        )
