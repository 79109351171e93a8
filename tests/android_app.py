"""The Android app's sources, and what compiling them makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import kotlin
from android_core import ANDROID
from app_resources import Linked

MAIN, TEST = ANDROID / "app" / "src" / "main", ANDROID / "app" / "src" / "test"
PACKAGE = "dev.paceline.demo"


@dataclass(frozen=True)
class App:
    """The app compiled with its tests."""

    classes: Path
    android_jar: Path
    resources: Linked

    @property
    def classpath(self) -> list[Path]:
        """What the app runs on, or its parts compile against."""
        return [self.classes, self.android_jar, *kotlin.libraries()]
