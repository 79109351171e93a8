"""`paceline evaluate`: rounds are counted as the loop would have run them, on checkpoints and on a bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_pair
from browser import CHROMIUM, browser
from command import refused
from report_pages import Parsed

import paceline
from paceline.cli.main import main
from paceline.prompts import prompts_by_class, read_prompts
from paceline.signatures import VERIFY
from paceline_export.distill.draws import Draws
from paceline_export.evaluate.bundles import LoadedBundle
from paceline_export.evaluate.checkpoints import Checkpoints
from paceline_export.evaluate.replay import MOST_DRAFTS, Trace, cut, first_round, free_running
from paceline_export.evaluate.report import LENGTHS, Proposer, Ratios
from paceline_export.evaluate.traces import Prompt, Texts, encoded
from paceline_export.recipes import F32

CLASSES = {"code": small_pair.PROMPTS[:2], "chat": small_pair.PROMPTS[2:4]}


@pytest.fixture(scope="module")
def checkpoints() -> Checkpoints:
    return Checkpoints.open(small_pair.TARGET, small_pair.DRAFTER, F32, "cpu")


@pytest.fixture(scope="module")
def bundle(small_bundle: Path) -> LoadedBundle:
    return LoadedBundle(paceline.load(small_bundle, backend="onnxruntime", threads=1, capacity=256))


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.json"
    file.write_text(json.dumps(CLASSES))
    return file


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_float_bundle_accepts_what_its_checkpoints_do(
    temperature: float, checkpoints: Checkpoints, bundle: LoadedBundle
) -> None:
    texts = Texts(temperature, 24)
    found = [source.traces(encoded(source, CLASSES), texts, lambda _: None) for source in (checkpoints, bundle)]
    assert [trace.tokens[: trace.end] for trace in found[0]] == [trace.tokens[: trace.end] for trace in found[1]]
    for length in LENGTHS:
        assert free_running(found[0], length) == free_running(found[1], length)
    assert first_round(found[0], 3) == first_round(found[1], 3)
    assert free_running(found[0], 3).mean_accepted > 1


def test_a_replay_counts_what_the_loop_counts(bundle: LoadedBundle) -> None:
    """Against real generations at each draft length; a run that ends in a round asks for fewer drafts there."""
    prompts, texts = encoded(bundle, CLASSES), Texts(0.0, 40)
    traces = bundle.traces(prompts, texts, lambda _: None)
    for length in (1, 3, 7):
        for prompt, trace in zip(prompts, traces, strict=True):
            pieces = list(bundle.model.generate(prompt.tokens, max_new_tokens=40 + MOST_DRAFTS, draft_length=length))
            stats = pieces[-1].stats
            assert stats is not None
            assert [piece.token for piece in pieces][: len(trace.text)] == list(trace.text)[: len(pieces)]
            own = free_running([trace], length)
            assert abs(stats.rounds - own.rounds) <= MOST_DRAFTS
            assert abs(stats.accepted - sum(own.accepted_at)) <= MOST_DRAFTS


def simulated(trace: Trace, length: int) -> tuple[int, list[int]]:
    """The same rounds, token by token."""
    rounds, kept, start = 0, [0] * length, trace.prompt
    while start < trace.end:
        rounds, position = rounds + 1, 0
        own = trace.drafts[start - trace.prompt]
        while position < min(length, len(own)) and start + 1 + position < len(trace.tokens):
            if own[position] != trace.tokens[start + 1 + position]:
                break
            kept[position] += 1
            position += 1
        start += position + 1
    return rounds, kept


def test_rounds_of_random_traces_are_counted_as_a_walk_counts_them() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        tokens = rng.integers(3, size=30).tolist()
        drafts = rng.integers(3, size=(20, MOST_DRAFTS)).tolist()
        trace = cut("x", tokens, 4, 15, drafts, stops=(2,) if rng.random() < 0.5 else ())
        for length in LENGTHS:
            found = free_running([trace], length)
            assert (found.rounds, list(found.accepted_at)) == simulated(trace, length)


def test_a_stop_token_ends_a_text_and_refuses_the_drafts_behind_it() -> None:
    trace = cut("x", [5, 6, 7, 1, 7, 7, 7, 7], 1, 6, [[7, 1, 7, 7, 7, 7, 7]] * 6, stops=[1])
    assert (list(trace.tokens), trace.end) == ([5, 6, 7, 1], 3)
    assert free_running([trace], 7).accepted_at == (1, 1, 0, 0, 0, 0, 0)


def test_lookup_proposes_what_followed_the_same_tokens() -> None:
    tokens = [5, 6, 7, 8, 9] * 6
    trace = cut("x", tokens, 10, 12, [[0] * 7] * 12, stops=[])
    assert free_running([trace], 3).mean_accepted == 0
    assert free_running([trace.by_lookup()], 3).mean_accepted == 3


def test_speed_up_is_tokens_over_cost() -> None:
    trace = cut("x", [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9], 1, 3, [[3, 4, 0, 0, 0, 0, 0]] * 3, stops=[])
    proposer = Proposer.of([trace])
    ratios = Ratios("here", dict.fromkeys(LENGTHS, 1.5), dict.fromkeys(LENGTHS, 0.1))
    kept = proposer.free[3].mean_accepted
    assert proposer.speedup(3, ratios) == pytest.approx((1 + kept) / (1.5 + 3 * 0.1))
    assert proposer.speedup(3, ratios, drafting=False) == pytest.approx((1 + kept) / 1.5)
    assert max(VERIFY) == MOST_DRAFTS + 1


def test_draws_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    draws = Draws(0.5, seed=0)
    counts = np.bincount([draws.token(logits) for _ in range(4000)], minlength=3) / 4000
    wanted = np.array([0.25, 0.09, 0.04]) / 0.38
    np.testing.assert_allclose(counts, wanted, atol=0.03)
    assert Draws(0.0, seed=1).token(logits) == 0


def test_the_built_in_prompts_are_hundreds_of_four_kinds() -> None:
    found = prompts_by_class()
    assert set(found) == {"code", "chat", "json", "prose"}
    assert all(len(set(some)) == len(some) >= 60 for some in found.values())
    assert all(prompt.startswith("<|turn>user\n") and prompt.endswith("<|turn>model\n") for prompt in found["chat"])


def test_the_command_tells_it_all_as_json_and_as_a_page(
    small_bundle: Path, prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    options = ["--prompts", str(prompts_file), "-n", "8", "--backend", "onnxruntime", "--threads", "1"]
    assert main(["evaluate", str(small_bundle), *options, "--json", "--report", str(page)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(each["texts"], each["class"], each["prompts"]) for each in report["results"]] == [
        (texts, kind, count) for texts in ("greedy", "sampled at 0.7") for kind, count in (("all", 4), ("code", 2), ("chat", 2))
    ]
    assert set(report["ratios"]["verify"]) == set("1234567")
    for each in report["results"]:
        for proposer in ("drafter", "lookup"):
            for length, tally in each[proposer]["free_running"].items():
                assert len(tally["accepted_at"]) == int(length)
                assert tally["accepted_at"] == sorted(tally["accepted_at"], reverse=True)
    parsed = Parsed(page.read_text())
    assert [tag for tag, _ in parsed.tags].count("svg") == 4
    assert [row[0] for row in parsed.rows if row and row[0] == "7"][:1] == ["7"]
    links = [value or "" for _, attributes in parsed.tags for name, value in attributes.items() if name in ("src", "href")]
    assert all(value.startswith(("#", "data:")) for value in links)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed, in which pages are looked at")
def test_the_page_does_not_scroll_sideways_on_a_phone(small_bundle: Path, prompts_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ["--prompts", str(prompts_file), "-n", "8", "--threads", "1", "--report", str(page)]
    assert main(["evaluate", str(small_bundle), *options]) == 0
    with browser(tmp_path / "profile") as tab:
        for width, height in ((360, 740), (1280, 900)):
            tab.open(page, width, height, mobile=width == 360)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.evaluate("document.querySelectorAll('svg').length") == 4
        assert tab.complaints == []
        assert set(tab.requests) == {page.as_uri()}


def test_the_command_evaluates_checkpoints_and_says_that_they_have_no_speed(
    prompts_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [str(small_pair.TARGET), str(small_pair.DRAFTER)]
    assert main(["evaluate", *pair, "--prompts", str(prompts_file), "-n", "8", "--most", "1", "--temperature", "0"]) == 0
    said = capsys.readouterr().out
    assert "no predicted speed-up: checkpoints have no speed on a device" in said
    assert "greedy: draft lengths, all prompts" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-n", "0"], "--new-tokens is 0; give 1 or more"),
        (["--temperature", "-1"], "--temperature is -1.0; give a number from 0"),
        (["--most", "0"], "--most is 0; give 1 or more"),
        (["--recipe", "wi4c"], "--recipe is for two checkpoints"),
        (["again", "and again"], "3 directories are given; give a bundle, or a TARGET and a DRAFTER"),
        (["none"], "config.json is missing; TARGET must be"),
        (["--prompts", "none.json"], "none.json cannot be read"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    options: list[str], said: str, small_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(["evaluate", str(small_bundle), *options], capsys)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.json", ["one", "two"], {"yours": ["one", "two"]}),
        ("a.json", {"mine": ["one"], "none": [" "]}, {"mine": ["one"]}),
        ("a.json", {"mine": "one"}, None),
        ("a.json", [], None),
    ],
)
def test_prompts_come_with_classes_or_without(name: str, content: Any, found: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    if found is None:
        with pytest.raises(paceline.InputError, match=r"a.json (is not a list of texts|has no prompts)"):
            read_prompts(tmp_path / name)
    else:
        assert read_prompts(tmp_path / name) == found


def test_a_prompt_whose_text_ends_at_once_has_no_round(checkpoints: Checkpoints) -> None:
    (trace,) = checkpoints.traces([Prompt("x", checkpoints.encode(small_pair.PROMPTS[0]))], Texts(0.0, 1), lambda _: None)
    stopped = cut("x", trace.tokens, trace.prompt, 1, trace.drafts, stops=[trace.tokens[trace.prompt]])
    assert free_running([stopped], 3).rounds == first_round([stopped], 3).rounds == 0
