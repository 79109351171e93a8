"""A server of the small pair, for the tests of what it answers and of what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import paceline

if TYPE_CHECKING:
    from openai import OpenAI
    from serving import Served


@pytest.fixture(scope="module")
def running(small_bundle: Path) -> Iterator[tuple[Served, paceline.Model]]:
    """One for all tests of a file, and its model."""
    from serving import serving  # whose packages other tests do without

    with serving(small_bundle) as running:
        yield running


@pytest.fixture
def served(running: tuple[Served, paceline.Model]) -> Served:
    """The server."""
    return running[0]


@pytest.fixture
def model(running: tuple[Served, paceline.Model]) -> paceline.Model:
    """The server's model; files about something else have a fixture of their own of this name."""
    return running[1]


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    """OpenAI's own."""
    with served.client() as client:
        yield client
