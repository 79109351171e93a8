"""Files and directories under construction: they have another name until they are complete."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex

if sys.platform != "win32":
    import fcntl


def partial_name(path: Path) -> Path:
    """Where this process builds `path`, in the same directory, so that a rename completes it; every call gives another one.

    Two containers can have one process id, so the id alone would let them build the same thing together.
    """
    return path.parent / f".{path.name}.partial-{token_hex(4)}-{os.getpid()}"


def write_whole(file: Path, text: str) -> None:
    """Writes or replaces a file, complete or not at all. Raises OSError, which names the file."""
    unfinished = partial_name(file)
    try:
        with _naming(file, unfinished), open(unfinished, "x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())  # some file systems find out only here that there is no room
            unfinished.replace(file)
    finally:
        with suppress(OSError):  # a file system that takes no file lets none be removed either
            unfinished.unlink()


@contextmanager
def workshop(out: Path) -> Iterator[Path]:
    """A directory beside `out` to build it in; it is gone afterwards, unless it has become `out` itself.

    Raises:
        OSError: it cannot be made, or what is built in it cannot be written; the error names `out` if nothing else.
    """
    folder = partial_name(out)
    with _naming(out, folder):
        out.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        try:
            with _held(folder):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """A lock on a directory, which is gone when this process is; where there are none, only its id tells that we live."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system can
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _naming(path: Path, built: Path) -> Iterator[None]:
    """Gives an OSError the name that was asked for: a write knows none, and others know the one that it has meanwhile."""
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(error.filename).is_relative_to(built):
            error.filename = str(path)
        raise


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Removes what processes left in a folder that were killed while they built `name`, or anything when None.

    What cannot be removed, because it is another user's, stays.
    """
    for leftover in folder.glob(f".{'*' if name is None else escape(name)}.partial-*"):
        if not _abandoned(leftover.name.rpartition("-")[2]):
            continue
        if leftover.is_dir() and not leftover.is_symlink():
            if not _locked(leftover):
                shutil.rmtree(leftover, ignore_errors=True)
        else:
            with suppress(OSError):
                leftover.unlink()


def _abandoned(pid: str) -> bool:
    """Whether the process with this id is gone. One with our own id was: a container gives the same ids again."""
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return int(pid) == os.getpid()


def _locked(folder: Path) -> bool:
    """Whether a living process builds in it, which need not be one that we see: containers share file systems, and not ids."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(descriptor)
    return False
