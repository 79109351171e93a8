"""Target, drafter or both on a neural processor, the rest on the CPU: one backend for the loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.litert.backend import MODELS, LiteRtBackend
from paceline.backends.names import NPU, NPU_ONNX
from paceline.bundle import Bundle
from paceline.errors import InputError
from paceline.kv_cache import KVCache
from paceline.manifest import Manifest
from paceline.npu.calls import NpuDrafter, NpuTarget
from paceline.npu.contexts import OnnxGraphs
from paceline.npu.graphs import NpuGraphs
from paceline.npu.profile import NpuProfile, profile_file
from paceline.npu.rows import NpuRows
from paceline.npu.runners import Runner


class NpuBackend:
    """A bundle's graphs on both processors, without any state of a sequence."""

    name = NPU

    def __init__(
        self,
        bundle: Bundle,
        runner: Runner,
        placed: Collection[str],
        threads: int | None,
        weight_cache: bool,
        profile: str = NPU,
    ):
        """Loads what the CPU is to run.

        Args:
            bundle: an opened bundle.
            runner: of the graphs for a neural processor.
            placed: target, drafter or both: what it runs.
            threads, weight_cache: of the CPU's part, see `LiteRtBackend`.
            profile: of the graphs: NPU or NNAPI.

        Raises:
            InputError: the bundle has no such graphs, or they are not those of the manifest.
        """
        self.manifest, self.runner, self.placed = bundle.manifest, runner, placed
        self.profile, self.graphs = read_profile(bundle, profile), profile
        self.cpu = LiteRtBackend(bundle, threads, weight_cache, [part for part in MODELS if part not in placed])

    def bind(self, cache: KVCache) -> NpuGraphs:
        """See `Backend.bind`."""
        m, profile, tables = self.manifest, self.profile, self.cpu.tables
        # A target writes the rows of all layers, and a drafter alone needs those that it reads.
        specs = m.caches if "target" in self.placed else m.drafter_caches
        rows = NpuRows(cache, profile, "target" if "target" in self.placed else "drafter", specs)
        target = drafter = None
        if "target" in self.placed:
            target = NpuTarget(self.runner, profile, profile.signatures(m, "target"), rows, tables)
        if "drafter" in self.placed:
            listed = profile.signatures(m, "drafter")
            drafter = NpuDrafter(self.runner, profile, listed, rows, tables, m.draft_position_offset)
        return NpuGraphs(rows, target, drafter, None if target and drafter else self.cpu.bind(cache), m.drafter_caches)

    def embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        """See `Backend.embeddings`."""
        return self.cpu.embeddings(tokens)

    def describe(self) -> str:
        """See `Backend.describe`."""
        parts = " and ".join(part for part in MODELS if part in self.placed)
        others = "".join(f"; {part} on the CPU" for part in MODELS if part not in self.placed)
        return f"{parts} ({self.profile.recipe}) on {self.runner.describe()}{others}"

    def identity(self, manifest: Manifest) -> dict[str, Any]:
        """See `Backend.identity`."""
        own, cpu = manifest.graphs[self.graphs].parts.values(), self.cpu.identity(manifest)
        files = {file: manifest.files[file].sha256 for file in own}
        return {"backend": NPU, "runtime_version": [self.describe(), cpu["runtime_version"]], "files": files | cpu["files"]}


def read_profile(bundle: Bundle, profile: str = NPU) -> NpuProfile:
    """What a bundle says of its graphs of a profile.

    Raises:
        InputError: the bundle has no such graphs, or the file cannot be read.
    """
    name = profile_file(profile)
    if profile not in bundle.manifest.graphs or name not in bundle.manifest.files:
        raise InputError(f"{bundle.folder} has no graphs of the profile {profile}; export it with --profile {profile}.")
    return NpuProfile.read(bundle.folder / name, bundle.manifest)


def npu_files(bundle: Bundle, profile: str = NPU) -> dict[str, Path]:
    """The graphs of a profile, by part, as they are before any compiler."""
    return {part: bundle.folder / name for part, name in bundle.manifest.graphs[profile].parts.items()}


def compiled_for(bundle: Bundle) -> list[str]:
    """The chips that a bundle has programs for."""
    return [name.partition(".")[2] for name in bundle.manifest.graphs if name.startswith(f"{NPU}.")]


def onnx_graphs(bundle: Bundle) -> dict[str, OnnxGraphs]:
    """The ONNX twins of the graphs for a neural processor, by part.

    Raises:
        InputError: the bundle has none.
    """
    graphs, files = bundle.manifest.graphs.get(NPU_ONNX), bundle.manifest.files
    if graphs is None:
        raise InputError(f"{bundle.folder} has no ONNX graphs for an NPU; export it with --format tflite,onnx --profile npu.")
    found = {}
    for part in MODELS:
        own = {name.partition(".")[2]: file for name, file in graphs.parts.items() if name.partition(".")[0] == part}
        data = f"{part}.npu.onnx.data"
        hashes = "".join(files[file].sha256 for file in sorted([*own.values(), *({data} & set(files))]))
        weights = files[data].size if data in files else 0
        paths = {signature: bundle.folder / file for signature, file in own.items()}
        found[part] = OnnxGraphs(paths, sha256(hashes.encode()).hexdigest(), weights)
    return found
