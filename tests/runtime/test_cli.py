"""The command: what it prints where, and the exit code for each way that things can go."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from command import BLOCKED, SCRIPT, refused, script
from damage import alter

from paceline.bundle import MANIFEST, sha256
from paceline.cli import main as cli
from paceline.cli.command import Command, ExitCode
from paceline.cli.main import main
from paceline.errors import PacelineError

PROMPT = "the little train"


def generated(capsys: pytest.CaptureFixture[str], bundle: Path, *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["run", str(bundle), "-p", PROMPT, "--max-new-tokens", "24", "--json", *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_help_lists_every_command_with_its_summary() -> None:
    done = script("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name, summary in (
        ("bench", "Measure"),
        ("demo", "Export the small pair"),
        ("distill", "Train a drafter"),
        ("evaluate", "Tell how many drafts"),
        ("export", "Export"),
        ("inspect", "Show"),
        ("run", "Continue"),
        ("serve", "Serve"),
    ):
        assert re.search(rf"^  {name} +{summary}", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    "name",
    [
        "bench",
        "calibrate",
        "chat",
        "demo",
        "distill",
        "doctor",
        "evaluate",
        "export",
        "inspect",
        "pack",
        "run",
        "serve",
        "verify",
    ],
)
def test_every_command_has_help_with_examples_to_copy(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example is one that the command's own parser takes."""
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    examples = re.findall(rf"^  paceline {name}\b.*$", capsys.readouterr().out, re.MULTILINE)
    assert examples
    (point,) = entry_points(group=cli.GROUP, name=name)
    parser = ArgumentParser()
    point.load().configure(parser)
    for example in examples:
        parser.parse_args(shlex.split(example.partition(" > ")[0])[2:])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["run"],
        ["run", "bundle"],
        ["run", "bundle", "-p", "x", "--draft", "9"],
        ["run", "bundle", "-p", "x", "--draft", "0"],
        ["run", "bundle", "-p", "x", "--draft", "-1"],
        ["run", "bundle", "-p", "x", "--draft", "some"],
        ["run", "bundle", "-p", "x", "--max-new-tokens", "many"],
        ["export", "target", "-o", "out"],
        ["export", "target", "--drafter", "drafter", "-o", "out", "--format", "gguf"],
        ["export", "target", "--drafter", "drafter", "-o", "out", "--format", "tflite,"],
        ["run", "bundle", "-p", "x", "--backend", "tensorrt"],
    ],
)
def test_a_wrong_command_line_is_refused_with_its_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("usage: paceline")


def test_a_draft_length_out_of_range_is_told_the_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "bundle", "-p", "x", "--draft", "9"])
    assert "'9' is neither auto nor off nor a number from 1 to 7" in capsys.readouterr().err


def test_drafting_does_not_change_the_text(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = generated(capsys, tiny_bundle, "--draft", "off")
    assert plain["stats"]["drafted"] == 0
    for length in ("1", "3", "7"):
        drafted = generated(capsys, tiny_bundle, "--draft", length)
        assert drafted["stats"]["drafted"] > 0
        assert drafted["draft_length"] == int(length)
        assert (drafted["text"], drafted["tokens"]) == (plain["text"], plain["tokens"])


def test_a_seed_gives_one_text_and_options_of_sampling_change_it(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sampled = ("--temperature", "1.5", "--top-k", "50", "--seed", "3")
    texts = [generated(capsys, tiny_bundle, *sampled, "--draft", length)["tokens"] for length in ("off", "3", "auto")]
    assert texts[0] == texts[1] == texts[2] != generated(capsys, tiny_bundle)["tokens"]
    banned = [option for token in set(texts[0]) for option in ("--ban", str(token))]
    assert not set(generated(capsys, tiny_bundle, *sampled, *banned)["tokens"]) & set(texts[0])
    biased = generated(capsys, tiny_bundle, "--bias", "40=1000")["tokens"]
    assert set(biased) == {40}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--top-p", "1.5"], "top_p is 1.5; allowed is a number from 0 to 1, or None for off."),
        (["--temperature", "-1"], "temperature is -1.0; allowed is a number from"),
        (["--ban", "99999"], "a biased or banned token is 99999; allowed is a whole number from 0 to 511"),
        (["--stop", ""], "give a list of texts that are not empty"),
    ],
)
def test_options_of_sampling_out_of_range_are_refused(
    options: list[str], words: str, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(["run", str(tiny_bundle), "-p", "x", *options], capsys)


def test_the_report_describes_the_run(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = generated(capsys, tiny_bundle)
    assert set(report) == {"text", "tokens", "finish_reason", "backend", "ran_on", "draft_length", "stats"}
    assert (report["backend"], report["draft_length"]) == ("litert", "auto")
    assert re.search(r"XNNPACK ran \d+ of \d+ operators, (\d+) of \1 matrix products", report["ran_on"])
    assert len(report["tokens"]) == report["stats"]["emitted"] <= 24
    assert report["finish_reason"] == ("length" if len(report["tokens"]) == 24 else "stop")


def test_the_backend_and_its_threads_can_be_chosen_and_write_the_same(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = [
        generated(capsys, tiny_bundle, "--backend", name, "--threads", threads)
        for name in ("litert", "onnxruntime")
        for threads in ("1", "2")
    ]
    assert [report["backend"] for report in reports] == ["litert", "litert", "onnxruntime", "onnxruntime"]
    assert [f"{threads} threads" in report["ran_on"] for threads, report in zip("1212", reports, strict=True)] == 4 * [True]
    assert all(report["tokens"] == reports[0]["tokens"] for report in reports)


def test_a_bundle_without_tflite_graphs_runs_on_onnxruntime(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, drafter = map(str, tiny_pair)
    out = tmp_path / "out"
    assert main(["export", target, "--drafter", drafter, "-o", str(out), "--format", "onnx"]) == 0
    assert generated(capsys, out)["backend"] == "onnxruntime"
    assert not list(out.glob("*.tflite"))


def test_the_stream_is_the_text_of_the_report(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = generated(capsys, tiny_bundle)
    assert main(["run", str(tiny_bundle), "-p", PROMPT, "--max-new-tokens", "24"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{report['text']}\n"
    assert captured.err == ""


def test_statistics_go_to_stderr_and_leave_the_text_alone(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = generated(capsys, tiny_bundle)
    assert main(["run", str(tiny_bundle), "-p", PROMPT, "--max-new-tokens", "24", "--stats"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{report['text']}\n"
    stats = report["stats"]
    assert f"{stats['accepted']} of {stats['drafted']} accepted" in captured.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-new-tokens", "0"], "max_new_tokens is 0; give 1 or more"),
        (["--threads", "0"], "threads is 0; give 1 or more"),
        (["--capacity", "0"], "capacity is 0; this model allows 1 to 4096"),
        (["--capacity", "4097"], "capacity is 4097; this model allows 1 to 4096"),
        (["--capacity", "5"], "capacity"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(
    options: list[str], words: str, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(["run", str(tiny_bundle), "-p", PROMPT, *options], capsys)


@pytest.mark.parametrize("command", [["run", "-p", "x"], ["inspect"], ["inspect", "--check"]])
def test_a_missing_bundle_is_refused_in_one_line(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{tmp_path / 'none'} is not a bundle" in refused([command[0], str(tmp_path / "none"), *command[1:]], capsys)


def test_an_altered_bundle_is_refused_by_run(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(copy / "target.onnx.data")
    assert "the file was altered" in refused(["run", str(copy), "-p", "x"], capsys)


def test_a_graph_that_cannot_be_loaded_is_refused_in_one_line(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole by its hash, and still nothing that onnxruntime can run."""
    (copy / "drafter.onnx").write_bytes(b"no graph")
    raw = json.loads((copy / MANIFEST).read_text())
    raw["files"]["drafter.onnx"] = {"bytes": 8, "sha256": sha256(copy / "drafter.onnx")}
    (copy / MANIFEST).write_text(json.dumps(raw))
    assert "drafter.onnx: onnxruntime" in refused(["run", str(copy), "-p", "x", "--backend", "onnxruntime"], capsys)


def test_export_says_what_to_run_next(tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, drafter = map(str, tiny_pair)
    assert main(["export", target, "--drafter", drafter, "-o", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert f"next: paceline run {tmp_path / 'out'} -p" in captured.out
    assert main(["run", str(tmp_path / "out"), "-p", "x", "--max-new-tokens", "1"]) == 0


def test_export_to_an_existing_directory_is_refused(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, drafter = map(str, tiny_pair)
    assert "exists already" in refused(["export", target, "--drafter", drafter, "-o", str(tmp_path)], capsys)
    assert not list(tmp_path.iterdir())


def test_what_looks_like_a_hub_id_is_refused_with_the_command_that_downloads_it(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", str(tiny_pair[0]), "--drafter", "google/gemma-4-E2B-it-assistant", "-o", str(tmp_path / "out")]
    assert "hf download google/gemma-4-E2B-it-assistant --local-dir" in refused(arguments, capsys)
    assert not list(tmp_path.iterdir())


def test_a_command_whose_extra_is_not_installed_says_how_to_install_it() -> None:
    """The other commands still work, and help still lists all."""
    done = script("export", "a", "--drafter", "b", "-o", "c", before=BLOCKED)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "paceline: paceline export needs the package onnx_ir; install it with: pip install 'paceline[export]'\n"
    )
    listed = script("--help", before=BLOCKED)
    assert listed.returncode == 0
    assert "pip install 'paceline[export]'" in listed.stdout
    assert "Continue a prompt" in listed.stdout


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PacelineError("the graphs disagree."), "paceline: failed: the graphs disagree."),
        (OSError(28, "No space left on device"), "paceline: failed: [Errno 28] No space left on device"),
        (MemoryError(), "paceline: failed: MemoryError"),
        (KeyboardInterrupt(), "paceline: interrupted"),
        (RuntimeError("oh no"), "paceline: failed: RuntimeError: oh no; this is a bug, please report it with"),
    ],
)
def test_a_failure_of_any_kind_has_exit_code_3(
    error: BaseException, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never 1, which says that a check was made and failed."""

    def fail(*_: object) -> ExitCode:
        raise error

    monkeypatch.setattr(cli, "_load", lambda *_: Command("fails", "", configure=lambda *_: None, run=fail))
    assert main(["run"]) == 3
    assert words in capsys.readouterr().err


def test_a_reader_that_goes_away_ends_the_run_quietly(tiny_bundle: Path) -> None:
    """As in `paceline run .. | head`."""
    command = [sys.executable, "-c", SCRIPT, "run", str(tiny_bundle), "-p", PROMPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 3
