"""The manifest and the resources fit together and say what an app for this API has to say, in both languages."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import app_resources
import pytest
import toolchain
from android_app import MAIN, PACKAGE
from android_core import ANDROID
from android_tools import tool_or_skip
from app_resources import Linked, elements, placeholders, texts
from pyi_stubs import Stubs

RES = MAIN / "res"
SOURCES = "".join(file.read_text() for file in MAIN.rglob("*.kt"))
VALUES = {
    "string-array": "array",
    "integer-array": "array",
    "declare-styleable": "styleable",
}  # tags whose kind has another name
COMPONENTS = ("activity", "activity-alias", "service", "receiver", "provider")
USES = {"INTERNET": "HttpURLConnection"}  # what shows that a permission is needed, where its name does not occur in the code


def attribute(element: ET.Element, name: str) -> str | None:
    return element.get(app_resources.ANDROID + name)


@pytest.fixture(scope="module")
def manifest() -> ET.Element:
    return ET.parse(MAIN / "AndroidManifest.xml").getroot()


@pytest.fixture(scope="module")
def framework() -> Stubs:
    return Stubs(tool_or_skip(toolchain.unpacked, toolchain.STUBS))


def members(framework: Stubs, name: str) -> set[str]:
    """The constants of a class of API 36."""
    found = framework.find(name)
    assert found
    return {item.target.id for item in framework[found][1].body if hasattr(item, "target")}


def test_resources_link_but_for_attributes_of_newer_frameworks(resources: Linked, framework: Stubs) -> None:
    assert resources.apk.is_file()
    assert resources.newer_attributes <= members(framework, "android.R.attr")


def test_the_package_manager_would_take_them(resources: Linked, tmp_path: Path) -> None:
    found = tool_or_skip(app_resources.badging, resources.apk)
    assert f"package: name='{PACKAGE}'" in found
    assert f"launchable-activity: name='{PACKAGE}.ui.MainActivity'" in found
    assert re.search(r"^locales: .*'zh'", found, re.MULTILINE)
    package = tool_or_skip(app_resources.signed, resources.apk, tmp_path)
    verify = [tool_or_skip(toolchain.command, "apksigner", "apksigner"), "verify", "--min-sdk-version", "31", str(package)]
    subprocess.run(verify, check=True, capture_output=True)


def test_an_attribute_that_no_framework_has_is_found(framework: Stubs, tmp_path: Path) -> None:
    (tmp_path / "res" / "layout").mkdir(parents=True)
    layout = f'<TextView xmlns:android="{app_resources.NAMESPACE}" android:textColour="#000" android:text="a" />'
    (tmp_path / "res" / "layout" / "wrong.xml").write_text(layout)
    (tmp_path / "AndroidManifest.xml").write_text("<manifest><application /></manifest>")
    linked = tool_or_skip(app_resources.link, tmp_path, PACKAGE, tmp_path / "out")
    assert linked.newer_attributes - members(framework, "android.R.attr") == {"textColour"}


def test_every_text_is_translated_with_its_placeholders() -> None:
    english, chinese = texts(RES / "values"), texts(RES / "values-zh")
    assert english
    assert english.keys() == chinese.keys()
    for name, forms in english.items():
        assert "other" not in forms or chinese[name].keys() == {"other"}, name  # Chinese has no other plural
        for key, text in chinese[name].items():
            assert placeholders(text) == placeholders(forms[key]), name
            assert text.strip(), name


def test_layouts_and_menus_have_no_text_of_their_own() -> None:
    for folder in ("layout", "menu", "xml"):
        for file, element in elements(RES / folder):
            for name in ("text", "hint", "title", "contentDescription", "label", "summary", "tooltipText"):
                value = attribute(element, name)
                assert value is None or value.startswith(("@", "?")), (file, element.tag, name, value)


def test_every_picture_says_what_it_is() -> None:
    for file, element in elements(RES / "layout"):
        if element.tag in ("ImageButton", "ImageView"):
            name = (attribute(element, "id") or "").rpartition("/")[2]
            said_in_code = re.search(rf"\bR\.id\.{name}\b.*\n?.*\bcontentDescription = ", SOURCES)
            hidden = attribute(element, "importantForAccessibility") == "no"
            assert attribute(element, "contentDescription") or said_in_code or hidden, (file, name)
    for file, element in elements(RES / "menu"):
        assert element.tag != "item" or attribute(element, "title"), (file, attribute(element, "id"))


def test_every_resource_is_used() -> None:
    xml = "".join(file.read_text() for file in [*RES.rglob("*.xml"), MAIN / "AndroidManifest.xml"])
    used = {*re.findall(r"@(\w+)/([\w.]+)", xml), *re.findall(r"\bR\.(\w+)\.(\w+)", SOURCES)}
    values = {(VALUES.get(each.tag, each.tag), each.get("name", "")) for _, each in elements(RES / "values")}
    files = {(file.parent.name.split("-")[0], file.stem) for file in RES.rglob("*.xml") if "values" not in file.parent.name}
    assert {each for each in values | files if each[0] not in ("item", "resources", "xliff:g")} <= used


def test_only_the_launcher_is_open_to_other_apps(manifest: ET.Element) -> None:
    components = [element for element in manifest.iter() if element.tag in COMPONENTS]
    assert components
    for component in components:
        if component.find("intent-filter") is None:
            assert attribute(component, "exported") != "true", attribute(component, "name")
        else:  # since API 31 it has to be said
            assert attribute(component, "exported") == "true", attribute(component, "name")
            categories = {attribute(each, "name") for each in component.iter("category")}
            assert categories == {"android.intent.category.LAUNCHER"}


def test_what_the_manifest_names_exists(manifest: ET.Element) -> None:
    assert manifest.get("package") is None  # it comes from Gradle, and is refused here
    named = [attribute(element, "name") for element in manifest.iter() if element.tag in ("application", *COMPONENTS)]
    for name in filter(None, named):
        full = PACKAGE + name if name.startswith(".") else name
        package, _, own = full.rpartition(".")
        assert re.search(rf"\bclass {own}\b", SOURCES), name
        assert f"package {package}\n" in SOURCES, name


def test_permissions_exist_and_are_used(manifest: ET.Element, framework: Stubs) -> None:
    for element in manifest.iter("uses-permission"):
        name = (attribute(element, "name") or "").removeprefix("android.permission.")
        assert name in members(framework, "android.Manifest.permission")
        assert USES.get(name, f"permission.{name}") in SOURCES, name


def test_nothing_is_sent_in_clear_text(manifest: ET.Element) -> None:
    application = manifest.find("application")
    assert application is not None
    assert attribute(application, "usesCleartextTraffic") in (None, "false")
    assert attribute(application, "networkSecurityConfig") == "@xml/network_security_config"
    config = ET.parse(RES / "xml" / "network_security_config.xml").getroot()
    base = config.find("base-config")
    assert base is not None
    assert base.get("cleartextTrafficPermitted") == "false"
    allowed = {"localhost", "127.0.0.1", "10.0.2.2"}  # the device itself, and an emulator's host
    assert {each.text for each in config.findall("domain-config/domain")} <= allowed


def test_gradle_says_the_same() -> None:
    text = (ANDROID / "app" / "build.gradle.kts").read_text()
    for name, value in {"namespace": f'"{PACKAGE}"', "minSdk": "31", "targetSdk": "36", "compileSdk": "36"}.items():
        assert re.search(rf"\b{name} = {value}\s", text), name
