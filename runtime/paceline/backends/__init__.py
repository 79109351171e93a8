"""What can run a bundle's graphs. A backend's package is imported only when it is the one that runs."""

from __future__ import annotations

from paceline.backends.base import Backend
from paceline.backends.names import LITERT, NPU, ONNXRUNTIME
from paceline.bundle import Bundle
from paceline.errors import InputError

BACKENDS = (LITERT, ONNXRUNTIME)  # in order of preference


def open_backend(bundle: Bundle, name: str | None, threads: int | None, weight_cache: bool) -> Backend:
    """Loads a bundle's graphs into one of the BACKENDS.

    Args:
        name: None takes the first that the bundle has graphs for.
        threads: for the target; None leaves it to the backend.
        weight_cache: whether litert may keep packed weights in the user's cache directory.

    Raises:
        InputError: the name is unknown, the bundle has no such graphs, or they cannot be loaded.
    """
    if name is None:
        name = next((known for known in BACKENDS if known in bundle.manifest.graphs), None)
        if name is None:
            held = ", ".join(bundle.manifest.graphs) or "nothing"
            raise InputError(f"{bundle.folder} has graphs for {held}; this paceline runs {' and '.join(BACKENDS)}.")
    if name == LITERT:
        from paceline.backends.litert.backend import LiteRtBackend

        return LiteRtBackend(bundle, threads, weight_cache)
    if name == ONNXRUNTIME:
        from paceline.backends.ort import OrtBackend

        return OrtBackend(bundle, threads)
    raise InputError(f"backend is {name!r}; allowed are {' and '.join(BACKENDS)}.")


def usable(name: str) -> str:
    """What one of the BACKENDS, or an NPU, is here, or why it cannot be used."""
    try:
        if name == NPU:
            from paceline.npu import qnn

            return qnn.usable()
        if name == LITERT:
            from paceline.backends.litert.model import Environment

            return f"LiteRT {Environment().library.version}, XNNPACK on the CPU"
        import onnxruntime

        return (
            f"onnxruntime {onnxruntime.__version__}, {', '.join(onnxruntime.get_available_providers())}; paceline uses the CPU"
        )
    except (InputError, ImportError, OSError) as error:
        return f"not usable: {error}"
