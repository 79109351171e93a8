"""Qualcomm's HTP through onnxruntime-qnn: the chip itself where there is one, and on x86-64 its emulator."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime as ort

from paceline.backends.ports import require_signature
from paceline.errors import InputError
from paceline.npu.contexts import OnnxGraphs, kept_session
from paceline.npu.runners import Arrays
from paceline.signatures import Port, Signature

PROVIDER = "QNNExecutionProvider"
INSTALL = "pip install 'paceline[npu]'"
# onnxruntime-qnn's numbers of the chips, and of the HTP generation in them. Source: QNN's "Supported Snapdragon devices".
CHIPS = {
    "SM8450": ("36", "69"),
    "SM8550": ("43", "73"),
    "SM8650": ("57", "75"),
    "SM8750": ("69", "79"),
    "SM8850": ("87", "81"),
}
TYPES = {"tensor(int16)": "int16", "tensor(int8)": "int8", "tensor(int32)": "int32", "tensor(float)": "float32"}


def hexagon_session(model: bytes | Path, soc: str | None, **entries: str) -> ort.InferenceSession:
    """A session that runs every node of a model on the HTP, or on its emulator.

    Args:
        soc: of CHIPS; None is this machine's own.
        entries: onnxruntime's configuration.

    Raises:
        InputError: onnxruntime-qnn is missing, the chip is unknown, or a node would be left to the CPU.
    """
    package, devices = _provider()
    _require_known(soc)
    if not devices:
        raise InputError(f"onnxruntime-qnn {package.__version__} finds neither an HTP nor its emulator on this machine.")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    for name, value in {"session.disable_cpu_ep_fallback": "1", **entries}.items():
        options.add_session_config_entry(name, value)
    chosen = {"backend_path": package.get_qnn_htp_path(), "offload_graph_io_quantization": "0"}
    if soc is not None:
        chosen["soc_model"], chosen["htp_arch"] = CHIPS[soc]
    options.add_provider_for_devices(devices[:1], chosen)
    try:
        return ort.InferenceSession(model if isinstance(model, bytes) else str(model), options)
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        shown = "a model" if isinstance(model, bytes) else str(model)
        where = soc or "this machine's chip"
        raise InputError(f"{shown}: onnxruntime-qnn {package.__version__} cannot run it on {where} ({error}).") from None


def usable() -> str:
    """What onnxruntime-qnn offers here, or why it cannot be used: one sentence."""
    try:
        package, devices = _provider()
    except InputError as error:
        return f"not usable: {error}"
    if any(_is_npu(device) for device in devices):
        return f"onnxruntime-qnn {package.__version__}, a Qualcomm HTP"
    if devices:
        return f"onnxruntime-qnn {package.__version__}, an emulator of Qualcomm's HTP on this {platform.machine()} CPU"
    return f"not usable: onnxruntime-qnn {package.__version__} finds neither an HTP nor its emulator on this machine"


def require_chip() -> None:
    """Raises InputError, with the reason, where this machine has no NPU that onnxruntime-qnn can use; an emulator is none."""
    package, devices = _provider()
    if not any(_is_npu(device) for device in devices):
        emulated = "; it has an emulator of one, for: paceline npu emulate" if devices else ""
        raise InputError(f"onnxruntime-qnn {package.__version__} finds no NPU in this machine{emulated}.")


def _require_known(soc: str | None) -> None:
    if soc is not None and soc not in CHIPS:
        raise InputError(f"the chip is {soc!r}; allowed are {', '.join(CHIPS)}.")


def _provider() -> tuple[Any, list[Any]]:
    """The package, and the devices that its provider finds, the HTP first."""
    try:
        import onnxruntime_qnn
    except ImportError:
        raise InputError(f"onnxruntime-qnn is not installed, which runs graphs on Qualcomm's HTP; {INSTALL}.") from None
    if not _devices():
        try:
            ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
        except Exception as error:  # as above
            raise InputError(f"onnxruntime-qnn {onnxruntime_qnn.__version__} cannot be loaded ({error}); {INSTALL}.") from None
    return onnxruntime_qnn, sorted(_devices(), key=_is_npu, reverse=True)


def _devices() -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]


def _is_npu(device: Any) -> bool:
    return bool(device.device.type == ort.OrtHardwareDeviceType.NPU)


@dataclass
class QnnOnnx:
    """Runs the ONNX twins of the graphs on the HTP or its emulator. Implements `paceline.npu.runners.Runner`.

    Attributes:
        graphs: by part.
        soc: of CHIPS; None is this machine's own.
        keep: whether what the chip's compiler makes is kept in the user's cache directory.
    """

    graphs: Mapping[str, OnnxGraphs]
    soc: str | None
    keep: bool = True
    _sessions: dict[tuple[str, str], ort.InferenceSession] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_known(self.soc)  # it becomes a part of files' names

    def bind(self, part: str, signature: str, arrays: Arrays) -> Callable[[], None]:
        """See `Runner`.

        Raises:
            InputError: the part lacks the signature, it cannot run whole on the chip, or has other inputs and outputs.
        """
        session = self._session(part, signature)
        inputs, outputs = ([_port(each) for each in held] for held in (session.get_inputs(), session.get_outputs()))
        file = self.graphs[part].files[signature]
        wanted = [Port(name, str(array.dtype), array.shape) for name, array in arrays.items()]
        given = {port.name for port in inputs}
        split = (tuple(port for port in wanted if (port.name in given) == side) for side in (True, False))
        require_signature(file, signature, Signature(*split), inputs, outputs)
        io = session.io_binding()
        for bind, ports in ((io.bind_input, inputs), (io.bind_output, outputs)):
            for port in ports:
                array = arrays[port.name]
                bind(port.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        held = dict(arrays)

        def run() -> None:
            assert held  # the memory that is bound lives as long as this
            session.run_with_iobinding(io)

        return run

    def describe(self) -> str:
        """See `Runner`."""
        return usable() if self.soc is None else f"{usable()}, as {self.soc}"

    def _session(self, part: str, signature: str) -> ort.InferenceSession:
        if (part, signature) not in self._sessions:
            graphs = self.graphs[part]
            if signature not in graphs.files:
                raise InputError(f"the ONNX graphs of the {part} have no signature {signature}; export the bundle again.")
            if self.keep:
                version = str(_provider()[0].__version__)
                made = kept_session(graphs, signature, f"{version}-{self.soc or 'own'}", self.open)
            else:
                made = self.open(graphs.files[signature])
            self._sessions[part, signature] = made
        return self._sessions[part, signature]

    def open(self, file: Path, **entries: str) -> ort.InferenceSession:
        """A session of a model or of a kept program."""
        return hexagon_session(file, self.soc, **entries)


def _port(held: ort.NodeArg) -> Port:
    return Port(held.name, TYPES.get(held.type, held.type), tuple(held.shape))
