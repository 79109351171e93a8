"""LiteRT's objects: an environment, models compiled for the CPU, and tensor buffers over our own memory."""

from __future__ import annotations

import mmap
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from ctypes import CFUNCTYPE, byref, c_char_p, c_int, c_size_t, c_void_p, create_string_buffer
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.litert.c_api import AnyValue, EnvironmentOption, Handle, Library, LiteRtError, ProfilerEvent, TensorType
from paceline.backends.litert.captured import captured_stderr
from paceline.errors import InputError

CPU = 1  # a bit of the accelerators that may be used
INTEGER = 2  # of LiteRtAny
ENVIRONMENT = (
    (24, CPU),  # which accelerators register themselves; without it LiteRT looks for GPUs
    (25, 3),  # the least severe message that is printed: errors
)
# QS8, QU8, dynamic FULLY_CONNECTED and the newest operators of XNNPACK, as LiteRT-LM asks for them.
XNNPACK_FLAGS = 0x4B
KEEP = CFUNCTYPE(None, c_void_p)(lambda _: None)  # a destructor for what is ours
# Runs with new buffers in which LiteRT may say on stderr what it cannot do: it resizes its tensors in the first, and finds
# them resized in the second.
WATCHED_RUNS = 2
SAID = 2  # lines of LiteRT's own errors that we pass on; the first ones name the cause
OWN_KERNEL, DELEGATED = 2, 8  # kinds of profiler events: an operator outside XNNPACK, and one inside


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a signature; -1 stands for a size that varies."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SignatureInfo:
    """One signature of a model."""

    index: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


class Environment:
    """One for a process is enough; models and buffers of an environment work together."""

    def __init__(self) -> None:
        """Loads the library.

        Raises:
            InputError: see `Library`.
        """
        self.library = Library()
        options = [EnvironmentOption(tag, AnyValue(INTEGER, value)) for tag, value in ENVIRONMENT]
        array = (EnvironmentOption * len(options))(*options)
        self.handle = self.library.created("LiteRtCreateEnvironment", len(options), array)
        _free_with(self, self.library, "Environment", self.handle)


class TensorBuffer:
    """A tensor in memory of ours: [..] C-contiguous and at a multiple of 64 bytes, which LiteRT reads and writes in place."""

    def __init__(self, environment: Environment, array: NDArray[Any]):
        assert array.flags.c_contiguous
        self.array, library = array, environment.library
        kind = TensorType.of(str(array.dtype), array.shape)
        address = array.ctypes.data
        self.handle = library.created("LiteRtCreateTensorBufferFromHostMemory", byref(kind), address, array.nbytes, None)
        _free_with(self, library, "TensorBuffer", self.handle)


class CompiledModel:
    """A .tflite file with all its signatures, ready to run.

    Attributes:
        signatures: name -> its inputs and outputs.
        content: uint8 [bytes], the mapped file; what nobody uses of it is not in memory.
    """

    def __init__(
        self,
        environment: Environment,
        file: Path,
        threads: int,
        weight_cache: Path | None = None,
        only: str | None = None,
        profiled: bool = False,
    ):
        """Maps the file and prepares its signatures.

        Args:
            weight_cache: where XNNPACK keeps the weights in its own layout, once for all signatures; written if absent.
            only: the one signature to prepare; None prepares all.
            profiled: for `BoundCall.profile`; every operator then takes a little longer.

        Raises:
            InputError: LiteRT refuses the file.
        """
        self.environment, self.library = environment, environment.library
        with captured_stderr() as said:
            try:
                self.content = _mapped(file)
                # LiteRT checks a graph in memory for consistency, and one that it opens itself it does not.
                memory = self.content.ctypes.data, self.content.nbytes
                self._model = self.library.created("LiteRtCreateModelFromBuffer", environment.handle, *memory)
                _free_with(self, self.library, "Model", self._model)
                self.handle = self._compile(threads, weight_cache, only, profiled)
            except (LiteRtError, ValueError) as error:  # an empty file cannot be mapped
                detail = "; ".join([str(error), *said()[:SAID]])
                raise InputError(f"{file}: LiteRT cannot load it ({detail}); export the bundle again.") from None
        _free_with(self, self.library, "CompiledModel", self.handle)
        self.signatures = dict(self._signatures())

    def _compile(self, threads: int, weight_cache: Path | None, only: str | None, profiled: bool) -> Handle:
        xnnpack = f"num_threads = {threads}\nflags = {XNNPACK_FLAGS}\n"
        if weight_cache:
            xnnpack += f"weight_cache_file_path = {_toml_string(str(weight_cache))}\n"
        runtime = "enable_profiling = true\n" if profiled else ""
        if only:
            runtime += f"selected_signature_keys = [{_toml_string(only)}]\n"
        texts = {b"xnnpack": xnnpack} | ({b"runtime_options_string": runtime} if runtime else {})
        # The library reads these when it compiles, and frees nothing of ours.
        kept = {name: create_string_buffer(text.encode()) for name, text in texts.items()}
        options = self.library.created("LiteRtCreateOptions")
        self.library.call("LiteRtSetOptionsHardwareAccelerators", options, CPU)
        for name, text in kept.items():
            self.library.call("LiteRtAddOpaqueOptions", options, self._opaque(name, text))
        try:
            return self.library.created("LiteRtCreateCompiledModel", self.environment.handle, self._model, options)
        finally:
            self.library.destroy("Options", options)

    def _opaque(self, name: bytes, text: Any) -> Handle:
        return self.library.created("LiteRtCreateOpaqueOptions", name, text, KEEP)

    def _signatures(self) -> Iterator[tuple[str, SignatureInfo]]:
        count = c_size_t()
        self.library.call("LiteRtGetNumModelSignatures", self._model, byref(count))
        for index in range(count.value):
            handle, key = self.library.created("LiteRtGetModelSignature", self._model, index), c_char_p()
            self.library.call("LiteRtGetSignatureKey", handle, byref(key))
            yield _text(key), SignatureInfo(index, self._tensors(handle, "Input"), self._tensors(handle, "Output"))

    def _tensors(self, signature: Handle, direction: str) -> tuple[TensorInfo, ...]:
        count, found = c_size_t(), []
        self.library.call(f"LiteRtGetNumSignature{direction}s", signature, byref(count))
        for index in range(count.value):
            name, kind = c_char_p(), TensorType()
            self.library.call(f"LiteRtGetSignature{direction}Name", signature, index, byref(name))
            tensor = self.library.created(f"LiteRtGetSignature{direction}TensorByIndex", signature, index)
            self.library.call("LiteRtGetRankedTensorType", tensor, byref(kind))
            found.append(TensorInfo(_text(name), kind.dtype, kind.shape))
        return tuple(found)

    def bind(self, signature: str) -> BoundCall:
        """A call of one signature, to be given its buffers."""
        return BoundCall(self, signature)


class BoundCall:
    """A signature and the buffers of its inputs and outputs."""

    def __init__(self, model: CompiledModel, signature: str):
        self.model, self.info = model, model.signatures[signature]
        self._run = model.library.function("LiteRtRunCompiledModel")

    def set_buffers(self, buffers: Mapping[str, TensorBuffer]) -> None:
        """Takes buffers by tensor name. A size that varies is that of the buffer: LiteRT resizes when it runs."""
        self._kept = [[buffers[tensor.name] for tensor in tensors] for tensors in (self.info.inputs, self.info.outputs)]
        inputs, outputs = ((Handle * len(kept))(*(buffer.handle.value for buffer in kept)) for kept in self._kept)
        self._arguments = (self.model.handle, self.info.index, len(inputs), inputs, len(outputs), outputs)
        self._watched = WATCHED_RUNS

    def run(self) -> None:
        """Runs the signature on its buffers.

        Raises:
            LiteRtError: with LiteRT's status.
        """
        if self._watched:
            with captured_stderr() as errors:
                status, said = self._run(*self._arguments), errors()
            self._watched -= 1
        else:
            status, said = self._run(*self._arguments), []
        if status != 0:
            failed = f"LiteRT {self.model.library.version} failed with status {status} while running a graph"
            raise LiteRtError("; ".join([failed, *said[:SAID]]))

    def profile(self) -> tuple[Counter[str], Counter[str]]:
        """Runs once, on a model loaded as `profiled`.

        Returns:
            how often an operator ran in XNNPACK, by XNNPACK's name of it, and in LiteRT's own kernels, by TFLite's name.
        """
        library, count = self.model.library, c_int()
        profiler = library.created("LiteRtCompiledModelGetProfiler", self.model.handle)
        library.call("LiteRtResetProfiler", profiler)
        library.call("LiteRtStartProfiler", profiler)
        self.run()
        library.call("LiteRtStopProfiler", profiler)
        library.call("LiteRtGetNumProfilerEvents", profiler, byref(count))
        events = (ProfilerEvent * count.value)()
        library.call("LiteRtGetProfilerEvents", profiler, count, events)
        delegated, own = (
            Counter((event.tag or b"").decode() for event in events if event.kind == kind) for kind in (DELEGATED, OWN_KERNEL)
        )
        return delegated, own


def _free_with(owner: Any, library: Library, kind: str, handle: Handle) -> None:
    """Frees a handle when its owner goes; at the end of the process the youngest go first."""
    weakref.finalize(owner, library.destroy, kind, handle)


def _text(value: c_char_p) -> str:
    return (value.value or b"").decode(errors="replace")


def _mapped(file: Path) -> NDArray[np.uint8]:
    """A file's bytes, in memory only while they are used."""
    with open(file, "rb") as stream:
        return np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _toml_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
