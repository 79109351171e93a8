"""`paceline distill`: from files to a checkpoint, or one sentence and nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from command import refused, script
from full_disk import limited
from safetensors.torch import load_file, save_file
from transformers.models.gemma4_assistant import Gemma4AssistantForCausalLM

from paceline.cli.main import main
from paceline_export.checkpoint import open_pair

STEPS = ("--steps", "2", "--batch-tokens", "256")


def words(pair: tuple[Path, Path], text: Path, out: Path, *options: str) -> list[str]:
    return ["distill", str(pair[0]), "--drafter", str(pair[1]), "--text", str(text), "-o", str(out), *STEPS, *options]


@pytest.fixture(scope="module")
def distilled(tiny_pair: tuple[Path, Path], text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("distilled") / "out"
    assert main([*words(tiny_pair, text, out), "--steps", "12"]) == 0
    return out


def test_transformers_loads_what_was_written(distilled: Path) -> None:
    _, info = Gemma4AssistantForCausalLM.from_pretrained(distilled, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert all(t.dtype in (torch.bfloat16, torch.int64) for t in load_file(distilled / "model.safetensors").values())


def test_the_checkpoint_can_be_exported_and_run(
    distilled: Path, tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tiny_pair[0]), "--drafter", str(distilled), "-o", str(tmp_path / "bundle")]) == 0
    capsys.readouterr()
    assert main(["run", str(tmp_path / "bundle"), "-p", "the train", "--max-new-tokens", "8", "--json", "--draft", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["drafted"] > 0


def test_nothing_but_the_checkpoint_is_left(distilled: Path) -> None:
    assert [each.name for each in distilled.parent.iterdir()] == [distilled.name]


def test_a_new_drafter_needs_no_old_one(tiny_pair: tuple[Path, Path], text: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    arguments = ["distill", str(tiny_pair[0]), "--fresh", "--text", str(text), "-o", str(out), *STEPS, "--steps", "4"]
    assert main(arguments) == 0
    _, drafter = open_pair(tiny_pair[0], out)
    assert drafter.config.hidden_size == tiny.WIDTH
    _, info = Gemma4AssistantForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]


def test_the_target_writes_the_text_from_prompts(
    tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what it wrote is kept for the next run until one has ended well."""
    prompts, out = tmp_path / "prompts.json", tmp_path / "out"
    prompts.write_text(json.dumps([f"{word} train" for word in ("the", "a", "no", "one", "red", "old")] * 10))
    arguments = ["distill", str(tiny_pair[0]), "--drafter", str(tiny_pair[1]), "--prompts", str(prompts), "-o", str(out)]
    arguments += ["--batch-tokens", "256", "--written", "80"]
    assert main([*arguments, "--steps", "1", "--rate", "0.000001"]) in (0, 3)
    assert "the target writes 120 texts of up to 80 tokens after 60 prompts" in capsys.readouterr().err
    if not out.exists():
        assert (tmp_path / "out.written.json").exists()
        (tmp_path / "out.training").unlink()
        assert main([*arguments, "--steps", "4"]) == 0
        assert "the target writes" not in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} == {"prompts.json", "out"}


def test_a_drafter_of_another_target_is_refused(
    tiny_pair: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, other = tiny.write_pair(tmp_path / "other", hidden_size=96)
    said = refused(words((tiny_pair[0], other), text, tmp_path / "out"), capsys)
    assert "the drafter does not fit its target: backbone_hidden_size is 96, the target has 64" in said
    assert {each.name for each in tmp_path.iterdir()} == {"other"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--recipe", "int4"], "recipe is 'int4'; allowed are f32"),
        (["--rate", "0"], "--rate is 0.0; give a number above 0"),
        (["--batch-tokens", "10"], "--batch-tokens is 10; give 256 or more"),
        (["--seed", "-1"], "--seed is -1; give 0 or more"),
        (["--steps", "0"], "--steps is 0; give a number above 0"),
        (["--device", "cuda"], "--device is cuda and torch"),
    ],
)
def test_options_out_of_range_are_refused(
    options: list[str], said: str, tiny_pair: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert said in refused(words(tiny_pair, text, tmp_path / "out", *options), capsys)
    assert not list(tmp_path.iterdir())


def test_an_empty_text_is_refused(tiny_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(" \n")
    said = refused(words(tiny_pair, tmp_path / "a.txt", tmp_path / "out"), capsys)
    assert "the text has 0 tokens; at least 8,192 are needed" in said


def test_an_output_that_exists_is_refused(
    tiny_pair: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "exists already" in refused(words(tiny_pair, text, tmp_path), capsys)


def test_a_target_without_its_tokenizer_is_refused(
    tiny_pair: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = shutil.copytree(tiny_pair[0], tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    assert "tokenizer.json is missing; download" in refused(words((bare, tiny_pair[1]), text, tmp_path / "out"), capsys)


def test_weights_that_are_no_numbers_are_refused(
    tiny_pair: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the target before anything is trained, of the drafter at the first step."""
    for index, message in ((0, "model.norm.weight holds values that are not finite"), (1, "the loss is nan at the first step")):
        spoiled = shutil.copytree(tiny_pair[index], tmp_path / f"spoiled{index}")
        tensors = load_file(spoiled / "model.safetensors")
        tensors["model.norm.weight"][0] = torch.nan
        save_file(tensors, spoiled / "model.safetensors", {"format": "pt"})
        pair = (spoiled, tiny_pair[1]) if index == 0 else (tiny_pair[0], spoiled)
        assert main(words(pair, text, tmp_path / "out")) == (3 if index else 2)
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(
    tiny_pair: tuple[Path, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with limited(20_000):
        assert main([*words(tiny_pair, text, tmp_path / "out"), "--steps", "12"]) == 3
    said = capsys.readouterr().err
    assert "the state of step 0 is not kept, training goes on: " in said
    assert "File too large" in said.splitlines()[-1]
    assert "nothing half-written is left behind" in said.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_told_before(
    tiny_pair: tuple[Path, Path],
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    assert "of free space and training needs about 0.07 GB" in refused(words(tiny_pair, text, tmp_path / "out"), capsys)


def test_without_torch_it_says_what_to_install() -> None:
    blocked = "import sys\nsys.modules['torch'] = None\nsys.argv[0] = 'paceline'\n"
    done = script("distill", "a", "--drafter", "b", "--text", "c", "-o", "d", before=blocked)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "paceline: paceline distill needs the package torch; install it with: pip install 'paceline[torch]'\n"
