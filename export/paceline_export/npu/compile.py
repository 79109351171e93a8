"""Compiles the graphs of a bundle for a chip, ahead of time, with the compiler of its vendor as LiteRT calls it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ai_edge_litert.aot.core import common

from paceline.backends.names import NPU
from paceline.bundle import MANIFEST, Bundle, sha256
from paceline.errors import InputError, PacelineError
from paceline.manifest import GraphFiles, StoredFile
from paceline.partial import remove_abandoned, workshop, write_whole
from paceline_export.npu.chips import Vendor, libraries, vendor_of
from paceline_export.npu.compiled import Placement, placements
from paceline_export.preflight import require_room

COMPILER, PLUGINS = Path("tools/apply_plugin_main"), "vendors/{key}/compiler"
# A program holds weights as its chip wants them, and a compiler needs room; how much is a guess.
GROWTH = 2
SAID = 3  # lines of the compiler's own errors that we pass on


def compile_bundle(bundle: Bundle, soc: str, share: bool, wait: Callable[[str], None]) -> dict[str, list[Placement]]:
    """Adds graphs for a chip to a bundle: files and, last, their place in the manifest.

    Args:
        bundle: opened, with graphs for a neural processor.
        soc: the chip's name, e.g. SM8750.
        share: one copy of the weights for all signatures, and not one for each.
        wait: called with what is being compiled.

    Returns:
        part -> where every signature of it runs. If one is not a single program, nothing has been added.

    Raises:
        InputError: the bundle has no such graphs, or has those for this chip already; the chip or its libraries are unknown,
            or its weights cannot be shared.
        PacelineError: the compiler fails.
    """
    graphs, name = bundle.manifest.graphs.get(NPU), f"{NPU}.{soc}"
    if graphs is None:
        raise InputError(f"{bundle.folder} has no graphs for an NPU; export it with --profile npu.")
    if name in bundle.manifest.graphs:
        raise InputError(f"{bundle.folder} has graphs for {soc} already; nothing is left to compile.")
    vendor = vendor_of(soc)
    if share and vendor.sharing is None:
        raise InputError(f"{vendor.name}'s compiler cannot share weights; leave --share-weights away.")
    sizes = sum(bundle.manifest.files[file].size for file in graphs.parts.values())
    copies = 1 if share else max(len(signatures) for signatures in graphs.signatures.values())
    require_room(bundle.folder / name, GROWTH * copies * sizes, 0)
    remove_abandoned(bundle.folder, name)
    with workshop(bundle.folder / name) as folder:
        made, found = dict[str, Path](), dict[str, list[Placement]]()
        for part, file in graphs.parts.items():
            wait(f"{part} for {soc}")
            made[part] = folder / f"{part}.{name}.tflite"
            compile_file(bundle.folder / file, made[part], soc, vendor, share)
            found[part] = placements(made[part])
        if all(placement.whole for part in found.values() for placement in part):
            _add(bundle, name, graphs, made)
    return found


def compile_file(file: Path, out: Path, soc: str, vendor: Vendor, share: bool) -> None:
    """Compiles all signatures of a .tflite file.

    Raises:
        InputError: the vendor's libraries are missing.
        PacelineError: the compiler fails; the text has what it said.
    """
    with libraries(vendor) as folders:
        plugins = common.get_resource(Path(PLUGINS.format(key=vendor.key)), is_dir=True)
        lowered = vendor.key == "mediatek"  # as LiteRT's own scripts call it
        command = [
            str(common.get_resource(COMPILER)),
            "--cmd=apply",
            f"--model={file}",
            f"--o={out}",
            f"--soc_manufacturer={vendor.manufacturer}",
            f"--soc_model={soc.lower() if lowered else soc}",
            f"--libs={plugins}",
            "--err=--",
            *([vendor.sharing] if share and vendor.sharing else []),
        ]
        paths = os.pathsep.join([*map(str, folders), common.construct_ld_library_path()])
        environment = os.environ | {"LD_LIBRARY_PATH": paths}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode or not out.is_file():
        errors = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        said = "; ".join(dict.fromkeys(errors[:SAID])) or f"status {done.returncode}"
        raise PacelineError(f"{vendor.name}'s compiler cannot compile {file.name} for {soc}: {said}")


def _add(bundle: Bundle, name: str, graphs: GraphFiles, made: dict[str, Path]) -> None:
    parts, files, signatures = {}, dict(bundle.manifest.files), {}
    for part, file in made.items():
        parts[part], signatures[file.name] = file.name, graphs.signatures[graphs.parts[part]]
        files[file.name] = StoredFile(file.stat().st_size, sha256(file))
        file.replace(bundle.folder / file.name)
    added = {**bundle.manifest.graphs, name: GraphFiles(parts, signatures)}
    manifest = replace(bundle.manifest, graphs=dict(sorted(added.items())), files=dict(sorted(files.items())))
    write_whole(bundle.folder / MANIFEST, manifest.to_json())
