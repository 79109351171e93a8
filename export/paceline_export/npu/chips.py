"""The chips whose compilers LiteRT can call, and what their vendors' libraries are found by.

The libraries are the vendors', under licences of their own: they are installed by who uses them, and never come with paceline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.errors import InputError

EXTRA = "pip install 'paceline[npu]'"


@dataclass(frozen=True)
class Vendor:
    """Who makes chips.

    Attributes:
        name: as people write it.
        key: its folder among LiteRT's plugins.
        manufacturer: as LiteRT's plugin is asked for it.
        package: of the libraries that compile.
        licence: of these libraries.
        sharing: the plugin's option that lets all signatures share one copy of the weights; None where it has none.
    """

    name: str
    key: str
    manufacturer: str
    package: str
    licence: str
    sharing: str | None = None


QUALCOMM = Vendor(
    "Qualcomm",
    "qualcomm",
    "Qualcomm",
    "onnxruntime_qnn",
    "Qualcomm's, in the package as Qualcomm_LICENSE.pdf",
    "--qualcomm_enable_weight_sharing=true",
)
VENDORS = (
    QUALCOMM,
    Vendor("MediaTek", "mediatek", "MediaTek", "ai_edge_litert_sdk_mediatek", "MediaTek's"),
    Vendor("Google Tensor", "google_tensor", "Google", "ai_edge_litert_sdk_google_tensor", "Google's"),
    Vendor("Samsung", "samsung", "Samsung", "ai_edge_litert_sdk_samsung", "Samsung's"),
    Vendor("Intel", "intel_openvino", "IntelOpenVINO", "openvino", "Intel's (Apache 2.0)"),
)
# Qualcomm's plugin asks the loader for this library, which is for audio processors, and never calls it.
NEVER_CALLED, STANDS_IN = "libQnnLpai.so", "libQnnSystem.so"


def vendor_of(soc: str) -> Vendor:
    """Who makes a chip.

    Raises:
        InputError: LiteRT's compilers know no such chip; the text lists those that they do.
    """
    known = {vendor: socs(vendor) for vendor in VENDORS}
    for vendor, names in known.items():
        if soc in names:
            return vendor
    listed = "; ".join(f"{vendor.name}: {', '.join(names)}" for vendor, names in known.items())
    raise InputError(f"the chip is {soc!r}; LiteRT's compilers know {listed}.")


def socs(vendor: Vendor) -> list[str]:
    """The chips of a vendor, by the names that LiteRT has for them."""
    listed = import_module(f"ai_edge_litert.aot.vendors.{vendor.key}.target").SocModel
    return [each.value for each in listed if each.value != "ALL"]


@contextmanager
def libraries(vendor: Vendor) -> Iterator[list[Path]]:
    """Folders with what compiles for a vendor's chips.

    Raises:
        InputError: the package is missing, or lacks its libraries.
    """
    spec = find_spec(vendor.package)
    if spec is None or spec.origin is None:
        how = EXTRA if vendor is QUALCOMM else f"pip install {vendor.package.replace('_', '-')}"
        raise InputError(
            f"compiling for {vendor.name}'s chips needs its libraries ({vendor.package}, licence: {vendor.licence}); "
            f"install them with: {how}"
        )
    folder = Path(spec.origin).parent
    if vendor is QUALCOMM:
        with _gathered(folder) as found:
            yield [found, folder.with_name(f"{folder.name}.libs")]
        return
    if vendor.key == "intel_openvino":
        yield [folder / "libs"]
        return
    path = import_module(vendor.package).path_to_sdk_libs()
    if path is None:
        raise InputError(
            f"the package {vendor.package} is there without {vendor.name}'s libraries, which it fetches when it is installed; "
            "install it again where it can reach them."
        )
    yield [Path(path)]


@contextmanager
def _gathered(package: Path) -> Iterator[Path]:
    """Links to Qualcomm's libraries under the names that the plugin looks for; the package itself stays as it is."""
    with TemporaryDirectory(prefix="paceline-") as folder:
        for library in package.glob("lib*.so"):
            (Path(folder) / library.name).symlink_to(library)
        (Path(folder) / NEVER_CALLED).symlink_to(package / STANDS_IN)
        yield Path(folder)
