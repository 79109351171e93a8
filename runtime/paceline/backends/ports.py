"""Whether a graph has the inputs and outputs that the loop will give and read, before memory is taken for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.errors import InputError
from paceline.signatures import Port, Signature


def require_signature(file: Path, name: str, wanted: Signature, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    """Compares a signature that a file holds with what the loop will ask of it.

    Raises:
        InputError: a tensor is missing, unknown, or has another shape; the text names it.
    """
    for ports, held in ((wanted.inputs, inputs), (wanted.outputs, outputs)):
        tensors = {port.name: port for port in held}
        names = {port.name for port in ports}
        for what, odd in (("lacks", names - set(tensors)), ("has the unknown tensor", set(tensors) - names)):
            if odd:
                raise InputError(f"{file}: signature {name} {what} {min(odd)}; export the bundle again.")
        for port in ports:
            _require_port(file, name, port, tensors[port.name])


def _require_port(file: Path, signature: str, port: Port, found: Port) -> None:
    if (found.dtype, found.sizes) != (port.dtype, port.sizes):
        raise InputError(
            f"{file}: {port.name} of signature {signature} is {found.dtype} {list(found.sizes)}, and this bundle's target and "
            f"drafter have {port.dtype} {list(port.sizes)}; it belongs to another pair; export the bundle again."
        )
