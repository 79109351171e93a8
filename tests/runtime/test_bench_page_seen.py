"""The page of `paceline bench --report` in a browser: on a phone and a desktop, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Page, browser
from matplotlib.image import imread
from report_pages import content, odd

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed, in which pages are looked at")
PHONE, DESKTOP = (360, 740), (1280, 900)
SCHEMES = [(size, dark) for size in (PHONE, DESKTOP) for dark in (False, True)]
# Of every text in a drawing: its height in CSS pixels, and its box and the drawing's.
TEXTS = """
[...document.querySelectorAll("svg")].map(svg => {
  const box = rect => [rect.left, rect.top, rect.right, rect.bottom];
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return {
    svg: box(svg.getBoundingClientRect()),
    texts: [...svg.querySelectorAll("text")].map(text => ({
      text: text.textContent,
      pixels: scale * parseFloat(getComputedStyle(text).fontSize),
      box: box(text.getBoundingClientRect()),
    })),
  };
})
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def apart(one: list[float], other: list[float]) -> bool:
    """Whether two boxes, left, top, right and bottom, have nothing in common; lines of a text may touch."""
    return any(one[end] <= other[start] + 3 or other[end] <= one[start] + 3 for start, end in ((0, 2), (1, 3)))


@odd
def test_on_a_phone_nothing_scrolls_sideways_and_every_text_can_be_read(name: str, tab: Page, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(content(name), encoding="utf-8")
    for width, height in (PHONE, DESKTOP):
        tab.open(file, width, height, mobile=width == PHONE[0])
        assert tab.evaluate("innerWidth") == width
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        for drawing in tab.evaluate(TEXTS):
            left, top, right, bottom = drawing["svg"]
            for one, other in combinations(drawing["texts"], 2):
                assert apart(one["box"], other["box"]), f"{one} and {other} overlap"
            for each in drawing["texts"]:
                assert each["pixels"] >= 10, each
                assert left - 1 <= each["box"][0] <= each["box"][2] <= right + 1, each
                assert top - 1 <= each["box"][1] <= each["box"][3] <= bottom + 1, each
    assert tab.complaints == []
    assert set(tab.requests) == {file.as_uri()}
    tab.events.clear()


def test_it_is_seen_light_and_dark(tab: Page, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(content("both"), encoding="utf-8")
    for (width, height), dark in SCHEMES:
        tab.open(file, width, height, mobile=width == PHONE[0], dark=dark)
        pixels: np.ndarray[Any, Any] = imread(BytesIO(tab.screenshot()))[..., :3]  # [height, width, 3], 0 to 1
        assert 0.9 * width < pixels.shape[1] <= width < pixels.shape[0]
        paper = np.median(pixels[::8])
        assert paper < 0.2 if dark else paper > 0.9
        drawn = np.abs(pixels - paper).max(-1) > 0.3
        assert 0.01 < drawn.mean() < 0.5
    tab.events.clear()
