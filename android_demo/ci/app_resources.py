"""Links the app's manifest and resources against the framework's, and reads what they say.

The framework at hand is older than the app's: attributes that it does not know are left out for the link, and returned.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import toolchain

ANDROID = "{http://schemas.android.com/apk/res/android}"
NAMESPACE = "http://schemas.android.com/apk/res/android"
ET.register_namespace("android", NAMESPACE)


class LinkError(Exception):
    """What aapt2 said of resources that do not fit together."""


@dataclass(frozen=True)
class Linked:
    """What comes of the app's resources."""

    apk: Path  # the compiled resources, without code
    java: Path  # R.java
    newer_attributes: frozenset[str]  # names that the framework at hand lacks


def link(main: Path, package: str, out: Path) -> Linked:
    """Compiles and links the manifest and `res` of a source set into a new directory."""
    aapt2, framework = str(toolchain.aapt2()), toolchain.framework_resources()
    known = _attributes_of(aapt2, framework)
    source = out / "source"
    shutil.copytree(main / "res", source / "res")
    manifest = source / "AndroidManifest.xml"
    shutil.copy(main / "AndroidManifest.xml", manifest)
    newer = {name for file in source.rglob("*.xml") for name in _strip(file, known)}
    tree = ET.parse(manifest)
    tree.getroot().set("package", package)  # Gradle does so
    tree.write(manifest)
    compiled, apk, java = out / "compiled.zip", out / "resources.apk", out / "java"
    _run([aapt2, "compile", "--dir", str(source / "res"), "-o", str(compiled)])
    options = ["--min-sdk-version", "31", "--target-sdk-version", "36", "--non-final-ids"]  # ids as Gradle makes them
    paths = ["-I", str(framework), "--manifest", str(manifest), "--java", str(java), "-o", str(apk), str(compiled)]
    _run([aapt2, "link", *options, *paths])
    return Linked(apk, java.joinpath(*package.split("."), "R.java"), frozenset(newer))


@cache
def _attributes_of(aapt2: str, framework: Path) -> set[str]:
    return set(re.findall(r"resource 0x01\w+ attr/(\w+) PUBLIC", _run([aapt2, "dump", "resources", str(framework)])))


def _strip(file: Path, known: set[str]) -> set[str]:
    """Takes attributes that are not known, and style items of such names, out of a file; returns the names."""
    tree, stripped = ET.parse(file), set()
    for element in tree.iter():
        for name in [each for each in element.attrib if each.startswith(ANDROID) and each[len(ANDROID) :] not in known]:
            stripped.add(name[len(ANDROID) :])
            del element.attrib[name]
        for item in [each for each in element if each.tag == "item"]:
            name = item.get("name", "")
            if name.startswith("android:") and name[len("android:") :] not in known:
                stripped.add(name[len("android:") :])
                element.remove(item)
    if stripped:
        tree.write(file)
    return stripped


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise LinkError(done.stderr)
    return done.stdout


def badging(apk: Path) -> str:
    """What the package manager would say of a package."""
    return _run([str(toolchain.aapt2()), "dump", "badging", str(apk)])


def signed(apk: Path, folder: Path) -> Path:
    """The package, aligned and signed with a key that is made for it."""
    made, key = folder / "signed.apk", folder / "key.jks"
    password = "for this key only"
    _run([toolchain.command("zipalign", "zipalign"), "-p", "4", str(apk), str(made)])
    made_by = [toolchain.command("keytool", "openjdk-17-jre-headless"), "-genkeypair", "-keyalg", "EC", "-dname", "CN=test"]
    _run([*made_by, "-alias", "test", "-keystore", str(key), "-storepass", password])
    apksigner = toolchain.command("apksigner", "apksigner")
    _run([apksigner, "sign", "--ks", str(key), "--ks-pass", f"pass:{password}", str(made)])
    return made


def texts(values: Path) -> dict[str, dict[str, str]]:
    """Every translatable text of a `values` directory: name -> quantity or place in an array, "" for a plain string -> text."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted(values.glob("*.xml")):
        for element in ET.parse(file).getroot():
            if element.tag not in ("string", "plurals", "string-array") or element.get("translatable") == "false":
                continue
            items = list(element) if element.tag != "string" else [element]
            keys = [item.get("quantity") or (str(i) if element.tag == "string-array" else "") for i, item in enumerate(items)]
            found[element.attrib["name"]] = {key: "".join(item.itertext()) for key, item in zip(keys, items, strict=True)}
    return found


def placeholders(text: str) -> Counter[str]:
    """What a formatted text takes: `%1$s` and the like."""
    return Counter(re.findall(r"%(?:\d+\$)?[-#+ 0,(]*\d*(?:\.\d+)?[a-zA-Z]", text.replace("%%", "")))


def elements(folder: Path) -> Iterator[tuple[str, ET.Element]]:
    """The elements of every XML file in a directory, with the file's name."""
    for file in sorted(folder.glob("*.xml")):
        for element in ET.parse(file).iter():
            yield file.name, element
