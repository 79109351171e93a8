"""A bundle on disk: a directory of graphs described by manifest.json. The format is specified in BUNDLE.md."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import InputError
from paceline.manifest import Manifest
from paceline.reading import read_text

MANIFEST = "manifest.json"
CHAT_TEMPLATE, GENERATION_CONFIG = "chat_template.jinja", "generation_config.json"  # of the checkpoint, where it has them
TARGET_CONFIG, DRAFTER_CONFIG = "target_config.json", "drafter_config.json"  # the checkpoints' own config.json
CHUNK_BYTES = 1 << 20
Progress = Callable[[str, int], None]  # file name, bytes hashed


@dataclass(frozen=True)
class Bundle:
    """A bundle's directory and manifest. Once opened, every file is there and has its size."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path) -> Bundle:
        """Reads the manifest and checks that every file is present and of the stated size.

        Hashes are checked as well the first time that these very files are opened; see `check_hashes`.

        Raises:
            InputError: no bundle, a file is missing, truncated or altered.
        """
        bundle = cls.read(folder)
        bundle.check_sizes()
        if not _seen_marker(bundle).exists():
            bundle.check_hashes()
        return bundle

    @classmethod
    def read(cls, folder: Path) -> Bundle:
        """Reads the manifest alone.

        Raises:
            InputError: no bundle, or its manifest cannot be read.
        """
        file = folder / MANIFEST
        if not file.is_file():
            raise InputError(f"{folder} is not a bundle: it has no {MANIFEST}; make one with paceline export.")
        _require_inside(folder, file)
        try:
            text = read_text(file)
        except (OSError, ValueError) as error:
            raise InputError(f"{file} cannot be read ({error}); export the bundle again.") from None
        return cls(folder, Manifest.from_json(text, str(file)))

    def check_sizes(self) -> None:
        """Compares every file's size with the manifest.

        Raises:
            InputError: a file is missing, truncated, a directory, pipe or device, or a link that leads out of the bundle.
        """
        for name, stored in self.manifest.files.items():
            path = self.folder / name
            if not path.is_file():
                raise InputError(f"{path} is missing; export the bundle again.")
            _require_inside(self.folder, path)
            if path.stat().st_size != stored.size:
                raise InputError(
                    f"{path} has {path.stat().st_size} bytes, the manifest says {stored.size}; "
                    "the file is truncated or altered; copy or export the bundle again."
                )

    def check_hashes(self, progress: Progress | None = None) -> None:
        """Hashes every file and compares with the manifest; `open` will not do it again while the files stay as they are.

        Raises:
            InputError: a file's content is not what was exported.
        """
        for name, stored in self.manifest.files.items():
            found = sha256(self.folder / name, progress)
            if found != stored.sha256:
                raise InputError(
                    f"{self.folder / name} has sha256 {found[:12]}…, the manifest says {stored.sha256[:12]}…; "
                    "the file was altered; copy or export the bundle again."
                )
        _leave(_seen_marker(self))


def sha256(file: Path, progress: Progress | None = None) -> str:
    """The hash of a file's content, in hex; reads it in pieces."""
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while piece := stream.read(CHUNK_BYTES):
            digest.update(piece)
            if progress:
                progress(file.name, len(piece))
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where paceline may keep what it can compute again: XDG_CACHE_HOME or ~/.cache, in `paceline`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def file_state(file: Path) -> list[int]:
    """Changes whenever the file does, whatever the clock says.

    Nobody can set a file's time of change back, and only within a tick of the file system's clock two changes have the same.
    """
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _require_inside(folder: Path, file: Path) -> None:
    """Refuses a link that leads out of the bundle: it could be any file of the user, and made into a part of another one."""
    if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"{file} is a link to {file.resolve()}, which is not in the bundle; copy the bundle with the files themselves "
            "(cp -rL, or hf download --local-dir)."
        )


def _seen_marker(bundle: Bundle) -> Path:
    """A file whose name stands for these very files, by path, and by what tells a file from what it was before."""
    identity = [str(bundle.folder.resolve()), bundle.manifest.to_json()]
    for name in sorted(bundle.manifest.files):
        identity.append(f"{name} {file_state(bundle.folder / name)}")
    stands_for = os.fsencode("\n".join(identity))  # a path need not be text
    return cache_folder() / "checked" / hashlib.sha256(stands_for).hexdigest()


def _leave(marker: Path) -> None:
    """Notes that the hashes are right. A home that cannot be written only means that they are checked again."""
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError:
        return
