"""Pages of made-up benchmark reports, each rendered once, and what a page holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
from reports import made_up_report, with_every_length

from paceline.bench_page.page import page
from paceline.bench_report import Report, Run

COMMAND = ["paceline", "bench", "e2b-bundle"]
EMPTY = {"meta", "link", "wbr"}


class Parsed(HTMLParser):
    """Tags with their attributes, the rows of all tables, and all text that is shown. Every element is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def of_lengths(*lengths: int | None) -> Report:
    """A report of these ways alone."""
    return replace(
        made_up_report(), results=tuple(result for result in made_up_report().results if result.draft_length in lengths)
    )


def spoilt(own: Report) -> Report:
    """Of which one drafted run has other tokens."""
    *others, last = own.results
    wrong = Run((0, *last.runs[0].tokens[1:]), last.runs[0].stats)
    return replace(own, results=(*others, replace(last, runs=(wrong, *last.runs[1:]))))


ODD: dict[str, Callable[[], Report]] = {
    "both": made_up_report,
    "every length": with_every_length,
    "one backend": lambda: made_up_report("onnxruntime"),
    "synthetic": lambda: made_up_report(synthetic=0.7),
    "other tokens": lambda: spoilt(made_up_report()),
    "plain": lambda: of_lengths(0),
    "auto": lambda: of_lengths(0, None),
    "as short as can be": lambda: replace(made_up_report(), prefill_costs={}, repeats=1),
}
odd = pytest.mark.parametrize("name", ODD)


@cache
def content(name: str) -> str:
    """The page of one of ODD."""
    return page(ODD[name](), COMMAND)
