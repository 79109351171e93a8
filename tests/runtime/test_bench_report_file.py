"""`paceline bench --report`: what it writes beside its usual output, and that no file is ever written over."""

from __future__ import annotations

import json
import shlex
import shutil
from argparse import ArgumentParser
from pathlib import Path

import pytest
from command import refused, script
from report_pages import Parsed
from reports import made_up_report

from paceline.bench_page import charts
from paceline.bench_report import Report
from paceline.cli import bench
from paceline.cli.main import main

QUICK = ("--prompt-tokens", "12", "-n", "6", "--repeats", "2", "--threads", "1")


def run(bundle: Path, *options: str) -> int:
    return main(["bench", str(bundle), *QUICK, *options])


def test_the_command_writes_the_page_beside_its_usual_output(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bundle's directory may have any name."""
    bundle, file = tmp_path / "<script>alert(1)<script>", tmp_path / "a report.html"
    shutil.copytree(tiny_bundle, bundle)
    assert run(bundle, "-k", "2", "--json", "--report", str(file)) == 0
    captured = capsys.readouterr()
    assert captured.err == f"the report is in {file}\n"
    found, written = json.loads(captured.out), file.read_text(encoding="utf-8")
    assert found["bundle"]["name"] == bundle.name
    assert not Parsed(written).of("script")
    rows = Parsed(written).rows
    for backend in ("litert", "onnxruntime"):
        # More is timed than the ways that ran, so that there is something to draw.
        assert set(found["call_costs"][backend]["verify"]) == {"1", "2", "3", "4", "8"}
        assert set(found["prefill_costs"][backend]["prefill"]) == {"16", "128"}
        for name, costs in (("verify\xa08", "verify"), ("decode", "verify")):
            cost = found["call_costs"][backend][costs][name.removeprefix("verify\xa0").replace("decode", "1")]
            assert [name, charts.three(cost["median_ms"]), charts.three(cost["minimum_ms"])] in [row[:3] for row in rows]
        files = sum(found["bundle"]["part_bytes"][backend].values())
        assert files == sum(file.stat().st_size for file in tiny_bundle.glob("*.tflite" if backend == "litert" else "*.onnx*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([bundle.name, file.name])


def test_little_room_in_the_cache_leaves_out_calls_and_not_the_page(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--capacity", "19", "-k", "1", "--backend", "onnxruntime", "--json", "--report", str(tmp_path / "r.html"))
    assert run(tiny_bundle, *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["call_costs"]["onnxruntime"]["verify"]) == {"1", "2", "4"}
    assert set(found["prefill_costs"]["onnxruntime"]["prefill"]) == {"16"}
    assert "call of 16 tokens" in (tmp_path / "r.html").read_text()


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command must not come to measure."""
    monkeypatch.setattr(bench, "_load", lambda options: pytest.fail("a bundle was loaded"))


@pytest.mark.usefixtures("unmeasured")
def test_a_file_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, link = tmp_path / "mine.html", tmp_path / "link.html"
    file.write_text("mine")
    link.symlink_to(tmp_path / "nowhere")
    for path in (file, link, tmp_path):
        words = f"{path} exists already; choose another name with --report, or remove it first."
        assert words in refused(["bench", "bundle", "--report", str(path)], capsys)
    assert file.read_text() == "mine"
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", ["none/report.html", "file/report.html", "r" * 250 + ".html"])
def test_a_file_that_cannot_be_written_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    sentence = refused(["bench", "bundle", "--report", str(tmp_path / name)], capsys)
    assert f"{tmp_path / name} cannot be written (" in sentence
    assert "; choose another name with --report." in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_came_while_it_measured_is_left_alone_too(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.html"

    def measured(*_: object) -> Report:
        file.write_text("theirs")
        return made_up_report()

    monkeypatch.setattr(bench, "measure", measured)
    assert run(tiny_bundle, "--report", str(file)) == 2
    captured = capsys.readouterr()
    assert f"{file} exists already" in captured.err
    assert "tokens/s" in captured.out, "what was measured is not lost"
    assert file.read_text() == "theirs"


def test_a_page_that_cannot_be_completed_leaves_nothing(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda *_: made_up_report())
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert run(tiny_bundle, "--report", str(tmp_path / "report.html")) == 3
    assert "No space left on device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_its_package_it_says_how_to_install_it(tmp_path: Path) -> None:
    blocked = 'import sys\nsys.modules["matplotlib"] = None\n'
    done = script("bench", "bundle", "--report", str(tmp_path / "report.html"), before=blocked)
    assert done.returncode == 2
    assert done.stderr == (
        "paceline: paceline bench --report needs the package matplotlib; install it with: pip install 'paceline[report]'\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given",
    [
        ["bundle"],
        ["a bundle", "-k", "auto,3", "-p", "-x 'y'\n$z", "--prompt-tokens", "9", "-n", "7", "--repeats", "2"],
        [
            "b",
            "--backend",
            "litert",
            "--synthetic-acceptance",
            "0.5",
            "--threads",
            "2",
            "--capacity",
            "64",
            "--no-weight-cache",
        ],
    ],
)
def test_the_command_to_copy_is_the_one_that_was_given(given: list[str]) -> None:
    parser = ArgumentParser()
    bench.configure(parser)
    joined = [f"-p{given[given.index('-p') + 1]}"] if "-p" in given else []
    without = [word for place, word in enumerate(given) if "-p" not in (word, given[place - 1])]
    options = parser.parse_args([*without, *joined, "--report", "bench.html"])
    again = shlex.split(" ".join(bench.command_line(options)))
    assert again[:2] == ["paceline", "bench"]
    assert parser.parse_args(again[2:]) == options
