"""Tools of the Android checks in tests: one that is missing skips a test, or fails it where all of them were promised."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest
from toolchain import MissingToolError

Given = ParamSpec("Given")
Tool = TypeVar("Tool")


def tool_or_skip(find: Callable[Given, Tool], *args: Given.args, **kwargs: Given.kwargs) -> Tool:
    """What `find` finds. PACELINE_REQUIRE_ANDROID=1 makes a missing tool a failure."""
    try:
        return find(*args, **kwargs)
    except MissingToolError as missing:
        if os.environ.get("PACELINE_REQUIRE_ANDROID"):
            raise
        pytest.skip(str(missing))
