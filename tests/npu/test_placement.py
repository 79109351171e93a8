"""Where the models run is said, never guessed: an NPU that cannot be had stops a command, or is told and replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import ran, refused

import paceline
from paceline.errors import InputError
from paceline.npu import qnn
from paceline.npu.placement import Place, Placement

ARGUMENTS = ("-p", "def read(path):", "--max-new-tokens", "6", "--threads", "1", "--json")


def test_without_an_npu_a_command_stops_and_says_why(npu_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["run", str(npu_bundle), *ARGUMENTS, "--target-on", "npu"], capsys)
    assert "target cannot run on an NPU here: " in said
    assert "To run on the CPU: --allow-fallback." in said


def test_a_fallback_is_told_and_writes_what_the_cpu_writes(npu_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paceline.cli.main.main(["run", str(npu_bundle), *ARGUMENTS]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (
        paceline.cli.main.main(
            ["run", str(npu_bundle), *ARGUMENTS, "--target-on", "npu", "--drafter-on", "npu", "--allow-fallback"]
        )
        == 0
    )
    captured = capsys.readouterr()
    assert captured.err.startswith("target and drafter on the CPU instead of an NPU: ")
    fallen = json.loads(captured.out)
    assert (fallen["backend"], fallen["tokens"]) == ("litert", plain["tokens"])


def test_a_caller_of_the_api_is_warned(npu_bundle: Path) -> None:
    with pytest.warns(UserWarning, match="drafter on the CPU instead of an NPU"):
        paceline.load(npu_bundle, placement=Placement(drafter=Place.NPU, allow_fallback=True))


def test_what_is_missing_is_named(tiny_bundle: Path, npu_bundle: Path) -> None:
    with pytest.raises(InputError, match="has no ONNX graphs for an NPU; export it with --format tflite,onnx --profile npu"):
        paceline.load(npu_bundle, placement=Placement(target=Place.NPU))
    with pytest.raises(InputError, match="no ONNX graphs for an NPU"):
        paceline.load(tiny_bundle, placement=Placement(target=Place.NPU))


def test_an_emulator_is_no_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"npu emulate|pip install"):
        qnn.require_chip()


def test_another_backend_and_an_npu_contradict_each_other(npu_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["run", str(npu_bundle), *ARGUMENTS, "--target-on", "npu", "--backend", "onnxruntime"], capsys)
    assert "what does not run on an NPU runs on litert" in said


def test_a_capacity_beyond_the_static_caches_is_refused(npu_bundle: Path) -> None:
    with pytest.raises(InputError, match="capacity is 300; this model allows 1 to 256"):
        paceline.load(npu_bundle, capacity=300, placement=Placement(target=Place.NPU))


def test_doctor_says_what_can_be_used_and_why_not(npu_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = ran(["doctor", str(npu_bundle), "--json", "--threads", "1"], capsys)
    found = json.loads(said)
    assert "onnxruntime-qnn" in found["machine"]["npu"]
    check = next(each for each in found["checks"] if each["name"] == "graphs for an NPU")
    assert check["outcome"] == "skipped"
    assert check["detail"].startswith("a16w8, caches of 256 rows, compiled for no chip; onnxruntime-qnn")
