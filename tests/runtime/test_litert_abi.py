"""The C interface: the installed wheel is the one that is declared, and any other is refused before it does harm."""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import Structure, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import script
from hypothesis import given
from hypothesis import strategies as st

import paceline
from paceline.backends.litert import c_api
from paceline.backends.litert.c_api import FUNCTIONS, LIBRARY, MAX_RANK, PACKAGE, Library, LiteRtError, TensorType
from paceline.backends.litert.model import CompiledModel, Environment, TensorBuffer
from paceline.bundle import Bundle
from paceline.errors import InputError
from paceline.kv_cache import aligned_zeros

PIP_COMMAND = f"pip install '{PACKAGE}~=2.3.0'"
NO_WHEEL = f"""
import sys
from importlib import metadata
real = metadata.distribution
def distribution(name):
    if name == "{PACKAGE}":
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.distribution = distribution
sys.modules["ai_edge_litert"] = None
"""


def refusal() -> str:
    """What is said of the wheel; one sentence for a line of the terminal."""
    with pytest.raises(InputError) as raised:
        Environment()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def wheel(version: str | None = None, library: Path | None = None) -> Callable[[str], Any]:
    """Finds the installed wheel, and says another version or place of the library."""
    real = distribution(PACKAGE)
    return lambda _: SimpleNamespace(
        version=version or real.version, locate_file=lambda name: library or real.locate_file(name)
    )


def test_the_tensors_of_a_real_graph_are_those_of_its_manifest(tiny_bundle: Path) -> None:
    """Names, dtypes, and shapes with -1 for what varies; read through the structures that we declare."""
    manifest, environment = Bundle.read(tiny_bundle).manifest, Environment()
    for file, entries in manifest.graphs["litert"].signatures.items():
        model = CompiledModel(environment, tiny_bundle / file, threads=1)
        assert set(model.signatures) == set(entries)
        for name, stated in entries.items():
            for direction, tensors in (("inputs", model.signatures[name].inputs), ("outputs", model.signatures[name].outputs)):
                found = {tensor.name: [tensor.dtype, list(tensor.shape)] for tensor in tensors}
                assert found == {
                    port: [dtype, [-1 if isinstance(size, str) else size for size in shape]]
                    for port, (dtype, shape) in stated[direction].items()
                }


@given(shape=st.lists(st.integers(1, 3), max_size=MAX_RANK - 2).map(tuple), dtype=st.sampled_from(["float32", "int32"]))
def test_a_buffer_has_the_type_that_it_was_given(shape: tuple[int, ...], dtype: str) -> None:
    environment, received = Environment(), TensorType()
    buffer = TensorBuffer(environment, aligned_zeros(shape, np.dtype(dtype)))
    environment.library.call("LiteRtGetTensorBufferTensorType", buffer.handle, c_api.byref(received))
    assert (received.dtype, received.shape) == (dtype, shape)


def test_a_dtype_that_we_do_not_use_is_named_by_its_code() -> None:
    assert TensorType(element=4).dtype == "element type 4"


def test_a_call_that_fails_says_which_one_and_of_which_version() -> None:
    with pytest.raises(LiteRtError, match=rf"LiteRtGetNumModelSignatures of LiteRT {version(PACKAGE)} failed with status"):
        Library().call("LiteRtGetNumModelSignatures", None, None)


def test_a_good_bundle_says_nothing_on_stderr(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """LiteRT greets on the process's own, and says what it does."""
    for _ in range(2):  # the second time with packed weights from the cache
        model = paceline.load(copy, backend="litert")
        assert len(list(model.generate("the little train", max_new_tokens=6))) == 6
        assert "XNNPACK ran" in model.backend.describe()
    assert capfd.readouterr() == ("", "")


def test_stderr_and_every_descriptor_survive_a_load_that_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, environment = tmp_path / "graph.tflite", Environment()
    file.write_bytes(b"no graph")

    def state() -> tuple[int, int, int]:
        return os.fstat(2).st_dev, os.fstat(2).st_ino, len(list(Path("/proc/self/fd").iterdir()))

    before = state()
    for _ in range(3):
        with pytest.raises(InputError, match="LiteRT cannot load it"):
            CompiledModel(environment, file, threads=1)
    assert state() == before
    os.write(2, b"still here\n")
    assert capfd.readouterr().err == "still here\n"


@pytest.mark.parametrize("found", ["2.1.5", "2.0", "1.9.9", "3.0.0", "3.0.0.dev20270101"])
def test_a_version_of_another_interface_is_refused_before_it_is_loaded(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_api, "distribution", wheel(found, Path("/no/library/here")))
    sentence = refusal()
    assert sentence.startswith(f"{PACKAGE} {found} has a C interface that paceline does not know")
    assert "its version is not one from 2.1.6 to 2.x" in sentence
    assert sentence.endswith(PIP_COMMAND)


@pytest.mark.parametrize("found", ["2.1.6", "2.3.0rc1", "2.10.1"])
def test_a_version_in_range_is_judged_by_its_library(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_api, "distribution", wheel(found))
    assert Library().version == found


@pytest.mark.parametrize("text", [None, b"", b"no library"])
def test_a_library_that_cannot_be_loaded_is_refused_with_another_backend(
    text: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / Path(LIBRARY).name
    if text is not None:
        file.write_bytes(text)
    monkeypatch.setattr(c_api, "distribution", wheel(library=file))
    sentence = refusal()
    assert sentence.startswith(f"{file} cannot be loaded (")
    assert "--backend onnxruntime" in sentence


@pytest.mark.parametrize(("table", "lacks"), [("FUNCTIONS", "LiteRtFlyToTheMoon"), ("DESTROYERS", "LiteRtDestroyMoon")])
def test_a_library_that_lacks_a_function_is_refused_with_its_name(
    table: str, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: Any = FUNCTIONS | {lacks: ()} if table == "FUNCTIONS" else (*c_api.DESTROYERS, "Moon")
    monkeypatch.setattr(c_api, table, more)
    assert refusal() == (
        f"{PACKAGE} {version(PACKAGE)} has a C interface that paceline does not know (its library lacks {lacks}); "
        f"install one that it does: {PIP_COMMAND}"
    )


def declared(type_fields: tuple[Any, ...], layout_fields: tuple[Any, ...]) -> type[Structure]:
    """A declaration of the tensor type that is not the library's; None stands for the layout."""
    layout = type("Layout", (Structure,), {"_fields_": layout_fields})
    fields = tuple((name, kind or layout) for name, kind in type_fields)
    methods = {"of": classmethod(TensorType.of.__func__), "dtype": TensorType.dtype, "shape": TensorType.shape}
    return type("TensorType", (Structure,), {"_fields_": fields, **methods})


ELEMENT, RANK, STRIDES = ("element", c_int32), ("rank", c_uint32), ("strides", c_uint32 * MAX_RANK)
DIMENSIONS, LAYOUT = ("dimensions", c_int32 * MAX_RANK), ("layout", None)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(declared((ELEMENT, ("more", c_int32), LAYOUT), (RANK, DIMENSIONS, STRIDES)), id="a field more"),
        pytest.param(declared((LAYOUT, ELEMENT), (RANK, DIMENSIONS, STRIDES)), id="layout first"),
        pytest.param(declared((ELEMENT, LAYOUT), (DIMENSIONS, RANK, STRIDES)), id="dimensions first"),
        pytest.param(declared((ELEMENT, LAYOUT), (RANK, STRIDES, DIMENSIONS)), id="strides first"),
        pytest.param(declared((ELEMENT, LAYOUT), (("rank", c_uint64), DIMENSIONS, STRIDES)), id="a wide rank"),
        pytest.param(declared((ELEMENT, LAYOUT), (RANK, ("dimensions", c_int64 * MAX_RANK), STRIDES)), id="wide dimensions"),
    ],
)
def test_a_tensor_type_of_another_layout_is_refused(
    other: type[Structure], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Our declaration is changed rather than the library's, which comes to the same."""
    monkeypatch.setattr(c_api, "TensorType", other)
    for name, arguments in FUNCTIONS.items():
        types = tuple(c_void_p if kind is c_api.POINTER(TensorType) else kind for kind in arguments)
        monkeypatch.setitem(FUNCTIONS, name, types)
    sentence = refusal()
    assert f"{PACKAGE} {version(PACKAGE)} has a C interface" in sentence
    assert "its tensor types have another layout" in sentence
    assert sentence.endswith(PIP_COMMAND)
    assert capfd.readouterr().err == ""


def test_no_wheel_at_all_is_told_how_to_install_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Distribution:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(c_api, "distribution", missing)
    assert refusal() == f"the litert backend needs the package {PACKAGE}; install it with: {PIP_COMMAND}"


@pytest.mark.parametrize("command", [["run", "-p", "x"], ["inspect"]])
def test_a_command_without_the_wheel_says_so_in_one_line(command: list[str], tiny_bundle: Path) -> None:
    done = script(command[0], str(tiny_bundle), *command[1:], before=NO_WHEEL)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"paceline: the litert backend needs the package {PACKAGE}; install it with: pip install")
    assert done.stderr.count("\n") == 1


def test_without_the_wheel_the_other_backend_still_runs(tiny_bundle: Path) -> None:
    arguments = ["run", str(tiny_bundle), "-p", "x", "--max-new-tokens", "1", "--backend", "onnxruntime"]
    done = script(*arguments, before=NO_WHEEL)
    assert (done.returncode, done.stderr) == (0, "")
