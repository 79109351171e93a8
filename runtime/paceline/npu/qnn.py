"""Qualcomm's HTP through onnxruntime-qnn: the chip itself where there is one, and on x86-64 its emulator."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

PROVIDER = "QNNExecutionProvider"
# onnxruntime-qnn's numbers of the chips, and of the HTP generation in them. Source: QNN's "Supported Snapdragon devices".
CHIPS = {
    "SM8450": ("36", "69"),
    "SM8550": ("43", "73"),
    "SM8650": ("57", "75"),
    "SM8750": ("69", "79"),
    "SM8850": ("87", "81"),
}


def hexagon_session(model: bytes | Path, soc: str, **entries: str) -> ort.InferenceSession:
    """A session that runs every node of a model on the HTP, or on its emulator.

    Args:
        soc: of CHIPS.
        entries: onnxruntime's configuration.

    Raises:
        InputError: onnxruntime-qnn is missing, or a node would be left to the CPU.
    """
    import onnxruntime_qnn

    if not any(device.ep_name == PROVIDER for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    chip, generation = CHIPS[soc]
    options = ort.SessionOptions()
    options.log_severity_level = 3
    for name, value in {"session.disable_cpu_ep_fallback": "1", **entries}.items():
        options.add_session_config_entry(name, value)
    chosen = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": chip,
        "htp_arch": generation,
        "offload_graph_io_quantization": "0",
    }
    options.add_provider_for_devices(devices[:1], chosen)
    return ort.InferenceSession(model if isinstance(model, bytes) else str(model), options)
