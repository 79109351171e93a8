"""A file with a graph's weights as XNNPACK wants them, so that they are packed once and not by each signature and start.

XNNPACK checks who wrote such a file, and not whether its weights are still what was written, so it is sealed.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock

from paceline.bundle import cache_folder
from paceline.errors import InputError
from paceline.partial import partial_name
from paceline.sealed import complete, hint, is_sealed, remove_stale

PACKED_SHARE = 1.02  # of the file's size; XNNPACK ends the process when the disk is full
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
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
    def opened(self) -> Iterator[Path | None]:
        """Yields the path to give to XNNPACK: the complete file, or a new one that is kept if the block succeeds.

        None where the directory cannot be written, which is said once.

        Raises:
            InputError: there is no room in the directory.
        """
        with BUILDING:
            if is_sealed(self.file):
                yield self.file
                return
            partial = self._begun()
            if partial is None:
                yield None
                return
            try:
                yield partial
                complete(partial, self.file, self.source)
            finally:
                partial.unlink(missing_ok=True)

    def _begun(self) -> Path | None:
        """A name in the directory, where there is room for the weights; None where nothing can be written."""
        partial = partial_name(self.file)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_stale(self.folder, f"*-{self.cpu}.xnnpack", self.source)
            partial.touch(exist_ok=False)
        except OSError as error:
            hint(
                f"the cache directory {self.folder} cannot be written ({error.strerror}), so weights are packed at every "
                "start; choose another one with XDG_CACHE_HOME, or be silent with --no-weight-cache."
            )
            return None
        try:
            self._require_room(partial)
        finally:
            partial.unlink(missing_ok=True)  # XNNPACK starts a new file only where there is none
        return partial

    def _require_room(self, partial: Path) -> None:
        needed, free = int(self.source.stat().st_size * PACKED_SHARE), shutil.disk_usage(self.folder).free
        if free < needed:
            raise self._refusal(f"has {free / 1e6:,.0f} MB left where packed weights need {needed / 1e6:,.0f} MB")
        if sys.platform != "linux":
            return
        try:
            with open(partial, "r+b") as stream:
                os.posix_fallocate(stream.fileno(), 0, max(1, needed))  # quotas and other limits show only here
        except OSError as error:
            if error.errno in FULL:
                raise self._refusal(f"cannot hold {needed / 1e6:,.0f} MB of packed weights ({error.strerror})") from None

    def _refusal(self, what: str) -> InputError:
        return InputError(
            f"the cache directory {self.folder} {what}; free or choose another one with XDG_CACHE_HOME, "
            "or run with --no-weight-cache."
        )


def _cpu() -> str:
    """Stands for what the CPU can do, which decides how weights are packed."""
    features = platform.processor()
    if CPU_INFO.is_file():
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        features = next((line for line in lines if line.startswith(CPU_FEATURES)), features)
    return sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:12]
