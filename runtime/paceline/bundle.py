"""A bundle on disk: a directory of graphs described by manifest.json. The format is specified in BUNDLE.md."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InputError
from paceline.signatures import CacheKind, CacheSpec

FORMAT, VERSION = "paceline-bundle", 3
MANIFEST = "manifest.json"
CHAT_TEMPLATE, GENERATION_CONFIG = "chat_template.jinja", "generation_config.json"  # of the checkpoint, where it has them
TARGET_CONFIG, DRAFTER_CONFIG = "target_config.json", "drafter_config.json"  # the checkpoints' own config.json
CHUNK_BYTES = 1 << 20
Progress = Callable[[str, int], None]  # file name, bytes hashed


@dataclass(frozen=True)
class StoredFile:
    """Size and hash of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class GraphFiles:
    """The graphs of one backend.

    Attributes:
        parts: target, drafter, .. -> file name.
        signatures: file name -> signature name -> inputs and outputs.
    """

    parts: dict[str, str]
    signatures: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json; see BUNDLE.md for every field."""

    made_by: str
    recipe: str
    vocab_size: int
    hidden_size: int
    layers: int
    per_layer_size: int
    window: int
    max_positions: int
    bos_id: int | None
    stop_ids: tuple[int, ...]
    draft_position_offset: int
    caches: tuple[CacheSpec, ...]
    drafter_layers: tuple[int, ...]
    scored_tokens: int  # that a draft step has a logit of
    vocabulary_sha256: str
    graphs: dict[str, GraphFiles]
    files: dict[str, StoredFile]

    @property
    def drafter_caches(self) -> tuple[CacheSpec, ...]:
        """The caches that the drafter reads."""
        return tuple(spec for spec in self.caches if spec.layer in self.drafter_layers)

    def to_json(self) -> str:
        """The file's text: sorted keys, so that the same export gives the same bytes."""
        raw = {
            "format": FORMAT,
            "format_version": VERSION,
            "made_by": self.made_by,
            "recipe": self.recipe,
            "model": {
                "vocab_size": self.vocab_size,
                "hidden_size": self.hidden_size,
                "layers": self.layers,
                "per_layer_size": self.per_layer_size,
                "window": self.window,
                "max_positions": self.max_positions,
                "bos_id": self.bos_id,
                "stop_ids": list(self.stop_ids),
                "vocabulary_sha256": self.vocabulary_sha256,
            },
            "draft_position_offset": self.draft_position_offset,
            "kv_cache": [
                {"layer": c.layer, "kind": c.kind.value, "kv_heads": c.kv_heads, "head_dim": c.head_dim} for c in self.caches
            ],
            "drafter_reads_layers": list(self.drafter_layers),
            "drafter_scores_tokens": self.scored_tokens,
            "graphs": {backend: {"parts": g.parts, "signatures": g.signatures} for backend, g in self.graphs.items()},
            "files": {name: {"bytes": f.size, "sha256": f.sha256} for name, f in self.files.items()},
        }
        return json.dumps(raw, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Parses manifest.json.

        Raises:
            InputError: it is not a manifest of this version; `where` names it.
        """
        try:
            raw = json.loads(text)
            found = (raw["format"], raw["format_version"])
            if found != (FORMAT, VERSION):
                raise InputError(
                    f"{where}: the format is {found[0]} version {found[1]}; this paceline reads {FORMAT} version {VERSION}; "
                    "export the bundle again, or install the paceline that made it."
                )
            model = raw["model"]
            manifest = cls(
                made_by=raw["made_by"],
                recipe=raw["recipe"],
                vocab_size=int(model["vocab_size"]),
                hidden_size=int(model["hidden_size"]),
                layers=int(model["layers"]),
                per_layer_size=int(model["per_layer_size"]),
                window=int(model["window"]),
                max_positions=int(model["max_positions"]),
                bos_id=model["bos_id"],
                stop_ids=tuple(int(x) for x in model["stop_ids"]),
                draft_position_offset=int(raw["draft_position_offset"]),
                caches=tuple(
                    CacheSpec(int(c["layer"]), CacheKind(c["kind"]), int(c["kv_heads"]), int(c["head_dim"]))
                    for c in raw["kv_cache"]
                ),
                drafter_layers=tuple(int(x) for x in raw["drafter_reads_layers"]),
                scored_tokens=int(raw["drafter_scores_tokens"]),
                vocabulary_sha256=model["vocabulary_sha256"],
                graphs={
                    backend: GraphFiles({part: _plain(file) for part, file in g["parts"].items()}, g["signatures"])
                    for backend, g in raw["graphs"].items()
                },
                files={_plain(name): StoredFile(int(f["bytes"]), str(f["sha256"])) for name, f in raw["files"].items()},
            )
            for backend, graphs in manifest.graphs.items():
                if not {"target", "drafter"} <= set(graphs.parts):
                    raise ValueError(f"graphs for {backend} lack a target or a drafter")
            unlisted = {name for g in manifest.graphs.values() for name in g.parts.values()} - set(manifest.files)
            if unlisted:
                raise ValueError(f"graphs {sorted(unlisted)} are not among its files")
            return manifest
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"{where} is not a valid manifest ({error!r}); export the bundle again.") from None


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
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read ({error}); export the bundle again.") from None
        return cls(folder, Manifest.from_json(text, str(file)))

    def check_sizes(self) -> None:
        """Compares every file's size with the manifest.

        Raises:
            InputError: a file is missing or truncated.
        """
        for name, stored in self.manifest.files.items():
            path = self.folder / name
            if not path.is_file():
                raise InputError(f"{path} is missing; export the bundle again.")
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


def _plain(name: str) -> str:
    """A file name that stays inside the bundle."""
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
        raise InputError(f"{MANIFEST} names the file {name!r}; only plain names inside the bundle are allowed.")
    return name


def _seen_marker(bundle: Bundle) -> Path:
    """A file whose name stands for these very files, by path, size and time of change."""
    identity = [str(bundle.folder.resolve()), bundle.manifest.to_json()]
    for name in sorted(bundle.manifest.files):
        status = (bundle.folder / name).stat()
        identity.append(f"{name} {status.st_size} {status.st_mtime_ns} {status.st_ino}")
    return cache_folder() / "checked" / hashlib.sha256("\n".join(identity).encode()).hexdigest()


def _leave(marker: Path) -> None:
    """Notes that the hashes are right. A home that cannot be written only means that they are checked again."""
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError:
        return
