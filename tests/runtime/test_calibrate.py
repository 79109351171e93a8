"""`paceline calibrate`: the better position is found, only beyond chance, and the manifest is changed whole with a backup."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import refused

import paceline
from paceline.bundle import MANIFEST, Bundle
from paceline.cli.main import main
from paceline.draft_length import NO_LIMITS, AdaptiveLimits, Source
from paceline.drafts import Drafts
from paceline.stats import Stats
from paceline.tuning import BACKUP, Limits, Offsets, measure_limits, measure_offsets, write_tuned


def stats(accepted: int, rounds: int = 200) -> Stats:
    made = Stats()
    for index in range(rounds):
        made.record_round(Source.DRAFTER, Drafts.chain([1, 2, 3]), 3 if index < accepted else 0)
    return made


def test_another_offset_is_taken_only_where_it_is_better_beyond_chance() -> None:
    assert Offsets(0, {0: stats(100), -1: stats(140)}).best == -1
    assert Offsets(-1, {0: stats(100), -1: stats(140)}).best == -1
    assert Offsets(0, {0: stats(100), -1: stats(105)}).best == 0
    assert Offsets(0, {0: stats(140), -1: stats(100)}).best == 0
    assert Offsets(0, {0: stats(200), -1: stats(200)}).best == 0
    assert Offsets(0, {0: stats(0), -1: stats(200)}).best == -1
    assert Offsets(0, {0: stats(0, 1), -1: stats(1, 1)}).best == 0


def test_other_limits_are_taken_only_where_they_are_faster_beyond_chance() -> None:
    def runs(*rates: float) -> list[Stats]:
        return [Stats(emitted=100, verify_ms=100 / rate) for rate in rates]

    few, plain = AdaptiveLimits(3, lookup=True), AdaptiveLimits(0, lookup=False)
    base = (1.0, 2.0, 1.0, 3.0, 1.0, 2.0)
    faster = [rate * (1.1 + 0.01 * (index % 2)) for index, rate in enumerate(base)]
    chance = [rate * (1.5 if index % 2 else 0.8) for index, rate in enumerate(base)]

    def best(**ways: list[Stats]) -> AdaptiveLimits:
        names = {"present": NO_LIMITS, "few": few, "plain": plain}
        return Limits(NO_LIMITS, {names[name]: stats for name, stats in ways.items()}).best

    assert best(present=runs(*base), few=runs(*faster), plain=runs(*chance)) == few
    assert best(present=runs(*base), few=runs(*chance)) == NO_LIMITS
    assert best(present=runs(*base), few=runs(*(1.001 * rate for rate in base))) == NO_LIMITS
    assert best(present=runs(*base[:5]), few=runs(*faster[:5])) == NO_LIMITS  # too few prompts


def test_limits_bind_adaptive_drafting(small_bundle: Path) -> None:
    """The text does not depend on them, and no more drafts and proposers are tried than they allow."""
    with paceline.load(small_bundle, backend="litert", threads=1, capacity=512) as model:
        found = measure_limits(model, ["def main():\n    import os\n    import sys\n"], [0, 7], 96, lambda _: None)
        for way, (stats,) in found.by_way.items():
            if isinstance(way, AdaptiveLimits):
                assert len(stats.drafted_at) <= way.most_drafts
                assert way.lookup or "lookup" not in stats.sources
                assert stats.emitted == 96


def test_offsets_really_reach_the_drafter(small_bundle: Path) -> None:
    """Either way the text is the same, and the drafter's states are not."""
    bundle = Bundle.open(small_bundle)
    opened: list[paceline.Model] = []

    def load(changed: Bundle) -> paceline.Model:
        opened.append(paceline.load(changed, backend="litert", threads=1, capacity=256))
        return opened[-1]

    found = measure_offsets(bundle, load, ["def main():\n", "import os\n"], 48, lambda _: None)
    assert list(found.by_offset) == [0, -1]
    assert found.by_offset[0].emitted == found.by_offset[-1].emitted == 96
    states = []
    for model in opened:
        with model.sequence() as (target, drafter):
            target.prefill(model.encode("def main():\n"))
            states.append(drafter.graphs.draft(5, np.ones(model.manifest.hidden_size, np.float32)).state.copy())
    assert not np.array_equal(*states)


def test_the_manifest_is_changed_and_the_first_one_kept(copy: Path) -> None:
    before = (copy / MANIFEST).read_text()
    for offset in (-1, 0, -1):
        write_tuned(Bundle.read(copy), offset, AdaptiveLimits(3, lookup=False))
        manifest = Bundle.open(copy).manifest
        assert (manifest.draft_position_offset, manifest.adaptive) == (offset, AdaptiveLimits(3, lookup=False))
        assert (copy / BACKUP).read_text() == before
    changes = {"draft_position_offset": -1, "adaptive": {"most_drafts": 3, "lookup": False}}
    assert json.loads((copy / MANIFEST).read_text()) == json.loads(before) | changes
    assert not list(copy.glob(".*"))


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_the_command_writes_what_is_better(
    copy: Path, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.cli.calibrate.measure_offsets", lambda *_: Offsets(0, {0: stats(100), -1: stats(140)}))
    prompts = copy.parent / "prompts.txt"
    prompts.write_text("one\n\ntwo\n")
    before = (copy / MANIFEST).read_text()
    arguments = ["calibrate", str(copy), "--prompts", str(prompts), "-n", "6", "--threads", "1", "--capacity", "64"]
    assert main([*arguments, *options]) == 0
    said = capsys.readouterr().out
    if options:
        assert "better, and not written: draft_position_offset -1 instead of 0" in said
        assert (copy / MANIFEST).read_text() == before
    else:
        assert "written: draft_position_offset -1 instead of 0" in said
        assert Bundle.open(copy).manifest.draft_position_offset == -1


def test_a_bundle_that_suits_stays(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tiny pair's drafter is random, so that no offset is better."""
    prompts = copy.parent / "prompts.json"
    prompts.write_text('["one", "two"]')
    before = (copy / MANIFEST).read_text()
    assert main(["calibrate", str(copy), "--prompts", str(prompts), "-n", "8", "--threads", "1", "--capacity", "64"]) == 0
    said = capsys.readouterr().out
    assert "the manifest stays as it is: draft_position_offset 0" in said
    assert "draft lengths and proposers" in said
    assert (copy / MANIFEST).read_text() == before
    assert not (copy / BACKUP).exists()


def test_bad_prompts_are_refused(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content, said in (
        ("a.txt", "\n \n", "has no prompts; give at least one"),
        ("a.json", "{", "cannot be read"),
        ("b.json", '{"a": 1}', "is not a list of texts"),
        ("c.json", "[1]", "is not a list of texts"),
    ):
        (tmp_path / name).write_text(content)
        assert said in refused(["calibrate", str(copy), "--prompts", str(tmp_path / name)], capsys)
    assert "cannot be read" in refused(["calibrate", str(copy), "--prompts", str(tmp_path / "absent.txt")], capsys)
    assert "give 2 or more" in refused(["calibrate", str(copy), "-n", "1"], capsys)
