"""`paceline bench`: what takes turns, how ratios are made, what every output says, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command import refused
from numpy.typing import NDArray
from reports import made_up_report

import paceline
from paceline.backends import BACKENDS
from paceline.backends.base import Verified
from paceline.backends.ort import OrtGraphs
from paceline.bench import Plan, fit_prompt, run_in_turns, run_together
from paceline.bench_report import Result, Run, Spread
from paceline.cli.bench import PROMPT
from paceline.cli.main import main
from paceline.costs import Cost, Costs
from paceline.draft_length import Source
from paceline.drafts import Drafts, RowPath
from paceline.machine import cpu_name, peak_memory_bytes
from paceline.speedup import expected_speedup
from paceline.stats import Stats

QUICK = ("--prompt-tokens", "12", "-n", "6", "--repeats", "2", "--threads", "1")
LABEL = "SYNTHETIC ACCEPTANCE"


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> paceline.Model:
    return paceline.load(tiny_bundle, backend="onnxruntime", threads=1)


def output(capsys: pytest.CaptureFixture[str], bundle: Path, *options: str, code: int = 0) -> str:
    """What the command prints; on stderr, which is no terminal here, it prints nothing."""
    capsys.readouterr()
    assert main(["bench", str(bundle), *QUICK, *options]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def cost(ms: float) -> Cost:
    return Cost(ms, ms)


COSTS = Costs(10, 1, verify={1: cost(10), 3: cost(15)}, draft={2: cost(8)}, prefill={})


def ran(decode_ms: float, tokens: tuple[int, ...] = (1, 2, 3, 4), accepted: tuple[int, ...] = ()) -> Run:
    """A run of hand-made times; `accepted` are those of its rounds of two drafts."""
    stats = Stats(emitted=len(tokens), verify_ms=decode_ms)
    for count in accepted:
        stats.record_round(Source.DRAFTER, Drafts.chain([0, 0]), count)
    return Run(tokens, stats)


def result(drafted: list[Run], plain: list[Run], synthetic: float | None = None) -> Result:
    return Result("litert", 2, tuple(drafted), tuple(plain), COSTS, synthetic)


def test_a_speedup_is_of_two_runs_of_the_same_repeat() -> None:
    """A machine that turns slow between the repeats does not change it; the ratio of medians would be 0.8."""
    found = result([ran(100), ran(250), ran(900)], [ran(200), ran(200), ran(1800)])
    assert found.speedup == Spread(median=2.0, minimum=0.8, maximum=2.0)


def test_a_spread_is_median_smallest_and_largest() -> None:
    assert Spread.of([3.0, 9.0, 1.0, 4.0]) == Spread(3.5, 1.0, 9.0)


@pytest.mark.parametrize(
    ("accepted", "length", "verify", "draft", "expected"),
    [
        ([], 0, 1.0, 0.0, 1.0),
        ([0.5, 0.25], 2, 1.5, 0.25, 0.875),
        ([0.0, 0.0], 2, 1.0, 0.5, 0.5),
        ([1.0, 1.0, 1.0], 3, 1.0, 0.0, 4.0),
    ],
)
def test_the_expected_speedup_is_tokens_over_cost(
    accepted: list[float], length: int, verify: float, draft: float, expected: float
) -> None:
    assert expected_speedup(accepted, length, verify, draft) == pytest.approx(expected)


@pytest.mark.parametrize("length", range(1, 8))
def test_at_a_constant_rate_it_is_the_papers_formula(length: int) -> None:
    rate, draft = 0.7, 0.2
    paper = (1 - rate ** (length + 1)) / ((1 - rate) * (length * draft + 1))
    assert expected_speedup([rate**j for j in range(1, length + 1)], length, 1, draft) == pytest.approx(paper)


def test_the_expected_speedup_takes_the_measured_acceptance_or_the_stated_one() -> None:
    """Half of the rounds accept two drafts, the others none; a verify pass costs 1.5, a draft step 0.4."""
    runs, plain = [ran(100, accepted=(2, 0))], [ran(100)]
    assert result(runs, plain).tokens_per_round == 2
    assert result(runs, plain).acceptance_by_position == [0.5, 0.5]
    assert result(runs, plain).expected_speedup == pytest.approx(2 / 2.3)
    assert result(runs, plain, synthetic=0.8).expected_speedup == pytest.approx((1 + 0.8 + 0.64) / 2.3)


def test_one_run_with_other_tokens_fails_the_check_and_synthetic_acceptance_makes_none() -> None:
    same, other = ran(100), ran(100, (1, 2, 9, 4))
    assert result([same, same], [same, same]).same_tokens is True
    assert result([same, other], [same, same]).same_tokens is False
    assert result([same, other], [same, same], synthetic=0.5).same_tokens is None


def test_a_report_passes_only_where_every_draft_length_does() -> None:
    same, other = ran(100), ran(100, (1, 2, 9, 4))
    right, wrong = result([same], [same]), result([other], [same])
    assert replace(made_up_report(), results=(right, right)).same_tokens is True
    assert replace(made_up_report(), results=(right, wrong)).same_tokens is False


def test_every_way_runs_once_in_a_repeat_and_emits_as_many_tokens(tiny_bundle: Path) -> None:
    models = {name: paceline.load(tiny_bundle, backend=name, threads=1) for name in BACKENDS}
    steps: list[str] = []
    plan = Plan(draft_lengths=(3, 1), new_tokens=9, repeats=2)
    runs = run_in_turns(models, [2, 7, 8, 9], plan, steps.append)
    ways = [(name, length) for name in BACKENDS for length in (0, 1, 3)]
    assert steps == [
        *(f"{name}: warm-up" for name in BACKENDS),
        *(f"{name}: repeat {repeat} of 2" for repeat in (1, 2) for name in BACKENDS),
    ]
    assert [len(run.tokens) for way in ways for run in runs[way]] == [9] * len(ways) * 2
    assert len({run.tokens for counted in runs.values() for run in counted}) == 1
    assert runs["litert", 3][0].stats.drafted > 0
    assert runs["litert", 0][0].stats.drafted == 0


def test_adaptive_drafting_is_a_way_of_its_own(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It emits the same tokens; what it costs is a matter of its rounds, and so no figure of its own."""
    report = json.loads(output(capsys, tiny_bundle, "-k", "auto,1", "--backend", "litert", "--json"))
    assert [each["draft_length"] for each in report["results"]] == [0, 1, "auto"]
    assert report["same_tokens"] is True
    assert [report["results"][2][name] for name in ("verify_ratio", "draft_ratio", "expected_speedup")] == [None] * 3
    assert "| litert | auto |" in output(capsys, tiny_bundle, "-k", "auto", "--backend", "litert", "--markdown")


def test_every_backend_and_repeat_sees_the_same_synthetic_pattern(tiny_bundle: Path) -> None:
    models = {name: paceline.load(tiny_bundle, backend=name, threads=1) for name in BACKENDS}
    plan = Plan(draft_lengths=(3,), new_tokens=30, repeats=2, synthetic_acceptance=0.6)
    runs = run_in_turns(models, [2, 7, 8, 9], plan, lambda _: None)
    patterns = [run.stats.accepted_at for name in BACKENDS for run in runs[name, 3]]
    assert patterns == [patterns[0]] * 4
    assert 0 < sum(patterns[0]) < runs["litert", 3][0].stats.drafted


def test_stop_tokens_do_not_end_a_run(model: paceline.Model) -> None:
    every = replace(model.bundle, manifest=replace(model.manifest, stop_ids=tuple(range(model.manifest.vocab_size))))
    stopping = paceline.Model(every, model.tokenizer, model.backend, model.capacity)
    assert len(list(stopping.generate([2, 7], max_new_tokens=8))) == 1
    assert [len(run.tokens) for run in run_together(stopping, [2, 7], (0, 3, None), 40, Plan().rule).values()] == [40] * 3


def test_the_prompt_is_cut_or_repeated_behind_one_bos(model: paceline.Model) -> None:
    whole = fit_prompt(model, "the rain", None)
    bos, body = whole[0], whole[1:]
    assert whole == model.encode("the rain")
    for count in range(1, 3 * len(whole)):
        assert fit_prompt(model, "the rain", count) == [bos, *(body * 4)][:count]


def test_json_has_every_figure(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(output(capsys, tiny_bundle, "-k", "1,3", "--json"))
    assert report.keys() == {
        "date",
        "bundle",
        "prompt",
        "synthetic_acceptance",
        "machine",
        "threads",
        "versions",
        "ran_on",
        "prompt_tokens",
        "new_tokens",
        "repeats",
        "peak_memory_bytes",
        "capacity",
        "kv_cache_bytes",
        "same_tokens",
        "results",
        "call_costs",
        "prefill_costs",
    }
    assert (report["prompt_tokens"], report["new_tokens"], report["repeats"], report["threads"]) == (12, 6, 2, 1)
    assert (report["synthetic_acceptance"], report["same_tokens"]) == (None, True)
    assert (report["bundle"]["name"], report["bundle"]["recipe"]) == ("tiny", "f32")
    assert set(report["bundle"]["part_bytes"]["litert"]) == {"target", "drafter", "embedder", "per_layer_embedder"}
    assert report["prompt"] == PROMPT[: len(report["prompt"])] != ""
    assert report["capacity"] == 4096
    assert report["kv_cache_bytes"] > 0
    assert report["prefill_costs"] == {}
    assert report["versions"].keys() >= {"Python", "paceline", "onnxruntime"}
    assert datetime.fromisoformat(report["date"]).tzinfo
    assert report["machine"]["cpu"]
    assert report["machine"]["cores"] >= 1
    assert "LiteRT" in report["ran_on"]["litert"]
    assert "onnxruntime" in report["ran_on"]["onnxruntime"]
    assert [(each["backend"], each["draft_length"]) for each in report["results"]] == [
        (b, k) for b in BACKENDS for k in (0, 1, 3)
    ]
    for each in report["results"]:
        check_result(each, report["call_costs"][each["backend"]])


def check_result(each: dict[str, Any], costs: dict[str, Any]) -> None:
    """All fields are there, and ratios are those of the costs beside them."""
    length = each["draft_length"]
    for name in ("first_token_ms", "tokens_per_s", "speedup"):
        assert 0 < each[name]["minimum"] <= each[name]["median"] <= each[name]["maximum"]
    assert len(each["acceptance_by_position"]) == length
    assert 1 <= each["tokens_per_round"] <= length + 1
    decode, verify = costs["verify"]["1"]["minimum_ms"], costs["verify"][str(length + 1)]["minimum_ms"]
    assert each["verify_ratio"] == pytest.approx(verify / decode)
    drafting = each["draft_ratio"] * length * decode
    assert drafting == pytest.approx(costs["draft"][str(length)]["minimum_ms"] if length else 0)
    accepted = 1 + sum(each["acceptance_by_position"])
    assert each["expected_speedup"] == pytest.approx(accepted / (verify + drafting) * decode)
    assert each["same_tokens"] is True
    if length == 0:
        assert each["speedup"] == {"median": 1, "minimum": 1, "maximum": 1}


@pytest.mark.parametrize("shape", ["--markdown", None])
def test_tables_name_every_way_and_say_that_the_tokens_are_the_same(
    shape: str | None, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, tiny_bundle, "-k", "2", *([shape] if shape else []))
    for name in BACKENDS:
        assert sum(name in line and ("off" in line or " 2 " in line) for line in text.splitlines()) == 4  # two tables
    assert "every draft length emitted the tokens of plain decoding" in text
    assert "12 prompt tokens, 6 new tokens, on " in text
    assert "peak resident memory of the process, all backends together" in text
    assert LABEL not in text


@pytest.mark.parametrize("shape", ["--markdown", None])
def test_synthetic_acceptance_is_labelled_at_every_table(
    shape: str | None, tiny_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = ["--backend", "onnxruntime", "-k", "3", "--synthetic-acceptance", "0.7", *([shape] if shape else [])]
    text = output(capsys, tiny_bundle, *options)
    titles = [line for line in text.splitlines() if f"{LABEL} 0.7 (drafts accepted by chance, not the model's text): " in line]
    assert len(titles) == 2
    assert f"{LABEL}: each draft was accepted with probability 0.7; the texts were not compared" in text
    assert "emitted the tokens" not in text


def test_synthetic_acceptance_is_a_field_of_json(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--backend", "onnxruntime", "-k", "3", "-n", "9", "--synthetic-acceptance", "1", "--json"]
    report = json.loads(output(capsys, tiny_bundle, *options))
    assert (report["synthetic_acceptance"], report["same_tokens"]) == (1, None)
    assert [each["draft_length"] for each in report["results"]] == [0, 3]
    assert report["results"][1]["tokens_per_round"] == 4
    assert report["results"][1]["same_tokens"] is None


def spoiled(real: Callable[..., Verified]) -> Callable[..., Verified]:
    """A target whose rows of a longer pass are not those of decode."""

    def verify(self: OrtGraphs, tokens: NDArray[np.int64], paths: Sequence[RowPath]) -> Verified:
        verified = real(self, tokens, paths)
        return Verified(np.roll(verified.logits, len(tokens) - 1, -1), verified.activations)

    return verify


@pytest.mark.parametrize("shape", ["--json", "--markdown", None])
def test_other_tokens_than_those_of_plain_decoding_fail_the_check(
    shape: str | None, tiny_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OrtGraphs, "verify", spoiled(OrtGraphs.verify))
    text = output(capsys, tiny_bundle, "--backend", "onnxruntime", "-k", "3", *([shape] if shape else []), code=1)
    if shape == "--json":
        assert json.loads(text)["same_tokens"] is False
    else:
        assert "the tokens DIFFER from those of plain decoding" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-k", "9"], "--draft-lengths has 9; allowed are 0 (plain decoding) to 7"),
        (["-k", "0,1,-1"], "--draft-lengths has -1"),
        (["-n", "1"], "--new-tokens is 1; give 2 or more"),
        (["--repeats", "0"], "--repeats is 0; give 1 or more"),
        (["--prompt-tokens", "0"], "--prompt-tokens is 0; give 1 or more"),
        (["-p", ""], "--prompt has no tokens to repeat up to --prompt-tokens 12"),
        (["--synthetic-acceptance", "1.5"], "--synthetic-acceptance is 1.5; allowed are probabilities from 0 to 1"),
        (["--synthetic-acceptance", "-0.1"], "--synthetic-acceptance is -0.1"),
        (["--synthetic-acceptance", "nan"], "--synthetic-acceptance is nan"),
        (["--threads", "0"], "threads is 0; give 1 or more"),
        (["--capacity", "4097"], "capacity is 4097; this model allows 1 to 4096"),
        (["--capacity", "24"], "need 25 rows of the KV cache; --capacity is 24, allowed are up to 4096"),
    ],
)
def test_a_value_out_of_range_is_refused(
    options: list[str], words: str, tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(["bench", str(tiny_bundle), *QUICK, *options], capsys)


def test_the_capacity_that_is_asked_for_is_enough(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, tiny_bundle, "--capacity", "25", "--json")


def test_what_is_no_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a bundle" in refused(["bench", str(tmp_path)], capsys)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-k", "one"], "argument -k/--draft-lengths: 'one' is not a list of numbers such as 0,1,3"),
        (["--backend", "litert,tpu"], "argument --backend: 'tpu' is not a backend; allowed are litert and onnxruntime"),
        (["--json", "--markdown"], "not allowed with argument"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_usage(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "bundle", *options])
    assert left.value.code == 2
    assert words in capsys.readouterr().err


def test_the_cpu_is_named_where_the_system_names_it() -> None:
    assert cpu_name("processor\t: 0\nmodel name\t: Some CPU @ 2:1 GHz\nmodel name\t: Other\n") == "Some CPU @ 2:1 GHz"
    assert cpu_name("processor\t: 0\nCPU part\t: 0xd40\n") is None


def test_peak_memory_is_in_bytes() -> None:
    now = psutil.Process().memory_info().rss
    assert 0.9 * now < peak_memory_bytes() < 100 * now
