"""The C interface of libLiteRt.so, which the ai-edge-litert wheel carries without its headers.

Source: LiteRT's `litert/c/*.h`, version 2.3. Python's own bindings copy every tensor in and out, and cannot run on
memory of ours with more than one dimension, so a KV cache could not stay where it is.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from paceline.backends.litert.captured import captured_stderr
from paceline.errors import InputError, PacelineError

PACKAGE = "ai-edge-litert"
INSTALL = f"pip install '{PACKAGE}~=2.3.0'"
LIBRARY = "ai_edge_litert/libLiteRt.so"
OLDEST = (2, 1, 6)  # before it the functions that create a model took other arguments
KNOWN_MAJOR = 2
MAX_RANK = 8
ELEMENT_TYPES = {1: "float32", 2: "int32", 7: "int16", 9: "int8"}  # those that our graphs use


class Layout(Structure):
    """LiteRtLayout: the low 7 bits of `rank` are the rank, the next one says whether strides are given."""

    _fields_ = (("rank", c_uint32), ("dimensions", c_int32 * MAX_RANK), ("strides", c_uint32 * MAX_RANK))


class TensorType(Structure):
    """LiteRtRankedTensorType."""

    _fields_ = (("element", c_int32), ("layout", Layout))

    @classmethod
    def of(cls, dtype: str, shape: tuple[int, ...]) -> TensorType:
        """The type of a dense tensor."""
        made = cls()
        made.element = next(code for code, name in ELEMENT_TYPES.items() if name == dtype)
        made.layout.rank = len(shape)
        for axis, size in enumerate(shape):
            made.layout.dimensions[axis] = size
        return made

    @property
    def dtype(self) -> str:
        """Numpy's name, or the code of a type that our graphs do not use."""
        return ELEMENT_TYPES.get(self.element, f"element type {self.element}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes; -1 where one varies from call to call."""
        return tuple(self.layout.dimensions[axis] for axis in range(self.layout.rank & 0x7F))


class AnyValue(Structure):
    """LiteRtAny holding an integer."""

    _fields_ = (("type", c_int32), ("value", c_int64))


class EnvironmentOption(Structure):
    """LiteRtEnvOption."""

    _fields_ = (("tag", c_int32), ("value", AnyValue))


class ProfilerEvent(Structure):
    """LiteRtProfilerEvent (`ProfiledEventData`), of which we read the tag and the kind."""

    _fields_ = (
        ("tag", c_char_p),
        ("kind", c_int32),
        ("start_us", c_uint64),
        ("elapsed_us", c_uint64),
        ("memory_before", c_size_t * 3),
        ("memory_after", c_size_t * 3),
        ("metadata", c_uint64 * 2),
        ("source", c_int32),
    )


Handle = c_void_p
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "LiteRtCreateEnvironment": (c_int, POINTER(EnvironmentOption), POINTER(Handle)),
    "LiteRtCreateModelFromBuffer": (Handle, Handle, c_size_t, POINTER(Handle)),
    "LiteRtGetNumModelSignatures": (Handle, POINTER(c_size_t)),
    "LiteRtGetModelSignature": (Handle, c_size_t, POINTER(Handle)),
    "LiteRtGetSignatureKey": (Handle, POINTER(c_char_p)),
    "LiteRtGetNumSignatureInputs": (Handle, POINTER(c_size_t)),
    "LiteRtGetNumSignatureOutputs": (Handle, POINTER(c_size_t)),
    "LiteRtGetSignatureInputName": (Handle, c_size_t, POINTER(c_char_p)),
    "LiteRtGetSignatureOutputName": (Handle, c_size_t, POINTER(c_char_p)),
    "LiteRtGetSignatureInputTensorByIndex": (Handle, c_size_t, POINTER(Handle)),
    "LiteRtGetSignatureOutputTensorByIndex": (Handle, c_size_t, POINTER(Handle)),
    "LiteRtGetRankedTensorType": (Handle, POINTER(TensorType)),
    "LiteRtCreateOptions": (POINTER(Handle),),
    "LiteRtSetOptionsHardwareAccelerators": (Handle, c_int),
    "LiteRtCreateOpaqueOptions": (c_char_p, Handle, Handle, POINTER(Handle)),
    "LiteRtAddOpaqueOptions": (Handle, Handle),
    "LiteRtCreateCompiledModel": (Handle, Handle, Handle, POINTER(Handle)),
    "LiteRtRunCompiledModel": (Handle, c_size_t, c_size_t, POINTER(Handle), c_size_t, POINTER(Handle)),
    "LiteRtCreateTensorBufferFromHostMemory": (POINTER(TensorType), Handle, c_size_t, Handle, POINTER(Handle)),
    "LiteRtGetTensorBufferTensorType": (Handle, POINTER(TensorType)),
    "LiteRtGetTensorBufferPackedSize": (Handle, POINTER(c_size_t)),
    "LiteRtCompiledModelGetProfiler": (Handle, POINTER(Handle)),
    "LiteRtStartProfiler": (Handle,),
    "LiteRtStopProfiler": (Handle,),
    "LiteRtResetProfiler": (Handle,),
    "LiteRtGetNumProfilerEvents": (Handle, POINTER(c_int)),
    "LiteRtGetProfilerEvents": (Handle, c_int, POINTER(ProfilerEvent)),
}
DESTROYERS = ("Environment", "Model", "Options", "CompiledModel", "TensorBuffer")


class LiteRtError(PacelineError):
    """A call of the runtime failed."""


class Library:
    """The loaded library; `call` runs a function and raises for a status that is not 0.

    Attributes:
        version: of the wheel, e.g. "2.3.0".
    """

    def __init__(self) -> None:
        """Loads the library of the installed wheel.

        Raises:
            InputError: no wheel, or one whose interface is not the one declared here.
        """
        try:
            wheel = distribution(PACKAGE)
        except PackageNotFoundError:
            raise InputError(f"the litert backend needs the package {PACKAGE}; install it with: {INSTALL}") from None
        self.version = wheel.version
        numbers = tuple(int(number) for number in re.findall(r"\d+", self.version)[:3])
        if numbers < OLDEST or numbers[0] != KNOWN_MAJOR:
            raise self._unknown(f"its version is not one from {'.'.join(map(str, OLDEST))} to {KNOWN_MAJOR}.x")
        file = Path(str(wheel.locate_file(LIBRARY)))
        try:
            library = ctypes.CDLL(str(file))
        except OSError as error:
            raise InputError(f"{file} cannot be loaded ({error}); use --backend onnxruntime on this system.") from None
        destroyers = {_destroyer(kind): (Handle,) for kind in DESTROYERS}
        self._functions = {name: self._declared(library, name, types) for name, types in (FUNCTIONS | destroyers).items()}
        for name in destroyers:
            self._functions[name].restype = None
        with captured_stderr():
            self._check_layout()

    def call(self, name: str, *arguments: Any) -> None:
        """Runs a function that returns a status.

        Raises:
            LiteRtError: with the function's name and the status.
        """
        status = self._functions[name](*arguments)
        if status != 0:
            raise LiteRtError(f"{name} of LiteRT {self.version} failed with status {status}")

    def created(self, name: str, *arguments: Any) -> Handle:
        """Runs a function whose last argument receives a handle, and returns that."""
        handle = Handle()
        self.call(name, *arguments, byref(handle))
        return handle

    def destroy(self, kind: str, handle: Handle) -> None:
        """Frees what `created` made."""
        self._functions[_destroyer(kind)](handle)

    def function(self, name: str) -> Any:
        """The bare function, for the one call that must not cost anything."""
        return self._functions[name]

    def _check_layout(self) -> None:
        """The library must see a tensor type as we wrote it; otherwise the structures have changed."""
        sent, received, size, memory = TensorType.of("int32", (3, 1, 4)), TensorType(), c_size_t(), (c_int32 * 64)()
        aligned = ctypes.addressof(memory) + -ctypes.addressof(memory) % 64
        try:
            buffer = self.created("LiteRtCreateTensorBufferFromHostMemory", byref(sent), aligned, 48, None)
            self.call("LiteRtGetTensorBufferTensorType", buffer, byref(received))
            self.call("LiteRtGetTensorBufferPackedSize", buffer, byref(size))
            self.destroy("TensorBuffer", buffer)
        except LiteRtError:
            size.value = 0
        if (size.value, received.dtype, received.shape) != (48, sent.dtype, sent.shape):
            raise self._unknown("its tensor types have another layout")

    def _declared(self, library: ctypes.CDLL, name: str, types: tuple[Any, ...]) -> Any:
        try:
            function = library[name]
        except AttributeError:
            raise self._unknown(f"its library lacks {name}") from None
        function.argtypes = types
        return function

    def _unknown(self, reason: str) -> InputError:
        return InputError(
            f"{PACKAGE} {self.version} has a C interface that paceline does not know ({reason}); "
            f"install one that it does: {INSTALL}"
        )


def _destroyer(kind: str) -> str:
    return f"LiteRtDestroy{kind}"
