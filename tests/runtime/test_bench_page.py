"""The page of `paceline bench --report`: it has every figure, loads nothing, and what comes from outside is only text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from matplotlib import rc_context
from report_pages import COMMAND, ODD, Parsed, content, odd, of_lengths
from reports import made_up_report

from paceline.bench_page import charts
from paceline.bench_page.page import headline, page, tables
from paceline.bench_tables import notes, sheets
from paceline.speedup import at_rate, constant_rate, expected_speedup

EVIL = "<script>alert(1)</script> & \"'$x_1$ \udcff"


@odd
def test_every_figure_of_the_command_and_of_the_charts_is_in_a_table(name: str) -> None:
    own, rows = ODD[name](), [[cell.strip() for cell in row] for row in Parsed(content(name)).rows]
    for sheet in sheets(own):
        for backend, *cells in sheet.rows:
            assert backend in own.ran_on
            assert cells in rows
    shown = [list(row) for backend in own.ran_on for sheet in tables(own, backend) for row in (sheet.columns, *sheet.rows)]
    assert rows == shown


@odd
def test_the_notes_are_there_and_a_text_that_is_not_plain_decodings_is_told_loudly(name: str) -> None:
    own = ODD[name]()
    for note in notes(own):
        assert note in Parsed(content(name)).text
    assert ('class="verdict loud"' in content(name)) == (own.same_tokens is not True)
    assert ("DIFFER" in content(name)) == (own.same_tokens is False)
    loud = content(name).count("SYNTHETIC ACCEPTANCE 0.7")
    assert loud >= 2 * len(own.ran_on) if own.synthetic_acceptance else loud == 0


@odd
def test_the_page_loads_nothing_and_runs_nothing(name: str) -> None:
    found = Parsed(content(name))
    assert not found.of("script")
    for tag, attributes in found.tags:
        for attribute, value in attributes.items():
            assert not attribute.startswith("on"), f"{tag} has {attribute}"
            if attribute in ("src", "srcset", "href", "xlink:href", "data", "action"):
                assert value is not None
                assert value == "data:," or value.startswith("#"), f"{tag} refers to {value}"
    assert not re.findall(r"url\((?!#)|@import|@font-face", content(name))
    policy = next(meta["content"] for meta in found.of("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@odd
def test_every_chart_is_an_image_with_a_title_and_a_description_of_its_own(name: str) -> None:
    found = Parsed(content(name))
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    drawings = found.of("svg")
    assert len(drawings) == len({each["aria-labelledby"] for each in drawings}) >= 4
    for each in drawings:
        assert each["role"] == "img"
        assert set(str(each["aria-labelledby"]).split()) <= set(ids)
    assert set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", content(name))) <= set(ids)


@odd
def test_every_table_has_a_caption_and_headers(name: str) -> None:
    found = Parsed(content(name))
    assert len(found.of("caption")) == len(found.of("table")) == 5 * len(ODD[name]().ran_on)
    assert [each["scope"] for each in found.of("th")].count("row") == len(found.rows) - len(found.of("table"))


def test_what_comes_from_outside_is_text() -> None:
    own = made_up_report()
    own = replace(
        own,
        prompt=EVIL,
        bundle=replace(own.bundle, name=EVIL, recipe=EVIL, made_by=EVIL),
        machine=replace(own.machine, cpu=EVIL),
        ran_on=dict.fromkeys(own.ran_on, EVIL),
        versions={EVIL: EVIL},
    )
    found = Parsed(page(own, ["paceline", EVIL]))
    assert not found.of("script")
    assert "<script>alert(1)</script> & \"'$x_1$ ?" in found.text
    assert {tag for tag, _ in found.tags} == {tag for tag, _ in Parsed(content("both")).tags}


def test_one_report_gives_the_same_bytes_whatever_matplotlib_was_told() -> None:
    with rc_context({"font.size": 30, "svg.fonttype": "path", "text.color": "red"}):
        assert page(made_up_report(), COMMAND) == content("both")


def test_the_curve_at_the_measured_acceptance_is_the_expected_speedup() -> None:
    """Of measured acceptance, which differs from position to position, and of a synthetic one."""
    for own in (made_up_report(), made_up_report(synthetic=0.7)):
        for result in own.results:
            if result.acceptance_rate is not None:
                at = charts.expected(result.costs, result.draft_length or 0, result.acceptance_rate)
                assert at == pytest.approx(result.expected_speedup, abs=1e-9)
            assert (result.acceptance_rate is not None) == bool(result.draft_length)


def test_a_curve_is_the_expected_speedup_at_each_rate() -> None:
    costs = made_up_report().results[0].costs
    curve = charts.expected_curve(costs, 3)
    assert (charts.RATES[0], charts.RATES[-1], len(curve)) == (0, 1, len(charts.RATES))
    assert curve[25] == expected_speedup([0.5, 0.25, 0.125], 3, costs.verify_ratio(3), costs.draft_ratio(3))
    assert curve == sorted(curve)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.93, 1.0])
@pytest.mark.parametrize("length", range(1, 8))
def test_a_constant_rate_keeps_as_many_drafts(rate: float, length: int) -> None:
    assert constant_rate(sum(at_rate(rate, length)), length) == pytest.approx(rate, abs=1e-9)


def test_the_headline_is_the_fastest_measured_way() -> None:
    assert headline(made_up_report(), "litert").figure == "1.41×"
    assert "with auto, 1.38 to 1.43 in 3 repeats; 21.9 tokens/s" in headline(made_up_report(), "litert").words
    slow = of_lengths(0, 7)
    assert headline(slow, "litert").figure == "0.97×"
    assert headline(slow, "litert").words.endswith("no way of drafting was faster than plain decoding")
    assert "no drafts were asked for" in headline(of_lengths(0), "litert").words


def test_sizes_have_three_digits_and_a_unit() -> None:
    assert [charts.size_in_words(count) for count in (999, 1_184_000_000, 43_500_000, 999_600, 1000)] == [
        "999 bytes",
        "1.18 GB",
        "43.5 MB",
        "1,000 kB",
        "1.00 kB",
    ]
