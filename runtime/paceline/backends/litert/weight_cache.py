"""A file with a graph's weights as XNNPACK wants them, so that they are packed once and not by each signature and start.

XNNPACK checks who wrote such a file, and not whether its weights are still what was written, so a seal beside it holds
what the file system says of the complete file. A file that does not fit its seal is built again.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

from paceline.bundle import cache_folder
from paceline.errors import InputError
from paceline.partial import partial_name, remove_abandoned

PACKED_SHARE = 1.02  # of the file's size; XNNPACK ends the process when the disk is full
BUILDING = Lock()  # two threads of a process would build under the same name
CPU_INFO = Path("/proc/cpuinfo")
CPU_FEATURES = ("flags", "Features")  # the line's name on x86 and on ARM


class WeightCache:
    """The packed weights of one .tflite file, for one version of the runtime on one kind of CPU."""

    def __init__(self, source: Path, source_sha256: str, runtime_version: str):
        self.source = source.resolve()
        self.folder = cache_folder() / "xnnpack"
        self.cpu = _cpu()
        self.file = self.folder / f"{source_sha256[:24]}-{runtime_version}-{self.cpu}.xnnpack"

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Yields the path to give to XNNPACK: the complete file, or a new one that is kept if the block succeeds.

        Raises:
            InputError: the directory cannot be written, or there is no room in it.
        """
        with BUILDING:
            if self._sealed():
                yield self.file
            else:
                with self._built() as partial:
                    yield partial

    @contextmanager
    def _built(self) -> Iterator[Path]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_stale()
            partial = partial_name(self.file)
            partial.touch()
        except OSError as error:
            raise self._refusal(f"cannot be written ({error.strerror})") from None
        needed = int(self.source.stat().st_size * PACKED_SHARE)
        free = shutil.disk_usage(self.folder).free
        try:
            if free < needed:
                raise self._refusal(f"has {free / 1e6:,.0f} MB left where packed weights need {needed / 1e6:,.0f} MB")
            partial.unlink()  # XNNPACK starts a new file only where there is none
            yield partial
            with suppress(OSError):  # without a seal it is only built again
                partial.rename(self.file)
                _seal_of(self.file).write_text(json.dumps({"source": str(self.source), "state": _state(self.file)}))
        finally:
            partial.unlink(missing_ok=True)

    def _sealed(self) -> bool:
        """Whether the file is the one that was completed, and nobody touched it since."""
        return self.file.is_file() and _read_seal(self.file).get("state") == _state(self.file)

    def _remove_stale(self) -> None:
        """Makes room: our own file if it is damaged, and those of graphs that are gone or have changed since."""
        remove_abandoned(self.folder)
        for file in self.folder.glob(f"*-{self.cpu}.xnnpack"):
            source = Path(str(_read_seal(file).get("source", self.source)))
            if source == self.source or not source.exists():
                _seal_of(file).unlink(missing_ok=True)
                file.unlink(missing_ok=True)

    def _refusal(self, what: str) -> InputError:
        return InputError(
            f"the cache directory {self.folder} {what}; free or choose another one with XDG_CACHE_HOME, "
            "or run with --no-weight-cache."
        )


def _seal_of(file: Path) -> Path:
    return file.with_suffix(".json")


def _read_seal(file: Path) -> dict[str, Any]:
    """Empty where there is none that can be read."""
    try:
        seal = json.loads(_seal_of(file).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return seal if isinstance(seal, dict) else {}


def _state(file: Path) -> list[int]:
    """Changes whenever the file does: the time of the last change of a file cannot be set back."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _cpu() -> str:
    """Stands for what the CPU can do, which decides how weights are packed."""
    features = platform.processor()
    if CPU_INFO.is_file():
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        features = next((line for line in lines if line.startswith(CPU_FEATURES)), features)
    return sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:12]
