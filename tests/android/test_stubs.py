"""The generated framework says in class files what the type stubs say in Python."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import android_stubs
import pytest
import toolchain
from android_tools import tool_or_skip
from pyi_stubs import Stubs

STUBS = """
import java.lang

_Box__T = typing.TypeVar('_Box__T')  # <T>
class Box(java.lang.Object, typing.Generic[_Box__T]):
    SIZE: typing.ClassVar[int] = ...
    SHAPE: typing.ClassVar[int] = ...
    weight: float = ...
    @typing.overload
    def __init__(self) -> None: ...
    @typing.overload
    def __init__(self, size: int | java.jlong | java.lang.Long, /) -> None: ...
    def get(self) -> _Box__T: ...
    def getLongSide(self) -> int: ...
    def names(self) -> java.util.List[java.lang.String] | None: ...
    def in_(self, where: str | java.lang.String, /, *more: java.lang.CharSequence) -> java.chaquopy.JavaArrayJInt: ...
    _make__U = typing.TypeVar('_make__U')  # <U>
    @staticmethod
    def make(kind: typing.Type[_make__U], /) -> Box[_make__U]: ...
    def open(self, lid: Box.Lid, /) -> android.b.Key: ...

    class Lid(java.lang.Object):
        def onOpen(self, arg1: Box[java.lang.Object], /) -> bool: ...
        def onShut(self, box: Box[java.lang.Object], /) -> None: ...

    class Colour(java.lang.Enum[Box.Colour]):
        RED: typing.ClassVar[Box.Colour] = ...

class Unasked(java.lang.Object):
    def __init__(self) -> None: ...
"""
KEY = """
class Key(java.lang.RuntimeException):
    def __init__(self) -> None: ...
"""


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    for package, text in {"a": STUBS, "b": KEY}.items():
        folder = tmp_path / "android-stubs" / package
        folder.mkdir(parents=True)
        (folder / "__init__.pyi").write_text(text)
    source = tmp_path / "Main.kt"
    source.write_text("import android.a.Box\nimport android.a.Nothing\n")
    with zipfile.ZipFile(tmp_path / "android.jar", "w") as made:
        for name, content in android_stubs.make(tmp_path, [source]):
            made.writestr(name, content)
    return tmp_path / "android.jar"


def shown(jar: Path, *names: str) -> str:
    javap = tool_or_skip(toolchain.command, "javap", "openjdk-17-jdk-headless")
    command = [javap, "-p", "-constants", "-cp", str(jar), *names]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_classes_are_those_that_the_sources_name_and_what_these_refer_to(jar: Path) -> None:
    with zipfile.ZipFile(jar) as made:
        names = {name.removesuffix(".class") for name in made.namelist()}
    assert names == {"android/a/Box", "android/a/Box$Lid", "android/a/Box$Colour", "android/b/Key"}


def test_members_have_javas_types(jar: Path) -> None:
    found = shown(jar, "android.a.Box")
    for line in (
        "class android.a.Box<_Box__T> {",
        "int SIZE = 1;",
        "int SHAPE = 2;",  # not that of SIZE
        "public float weight;",
        "public android.a.Box();",
        "public android.a.Box(long);",
        "public _Box__T get();",
        "public long getLongSide();",
        "public java.util.List<java.lang.String> names();",
        "public int[] in(java.lang.String, java.lang.CharSequence...);",
        "public static <_make__U> android.a.Box<_make__U> make(java.lang.Class<_make__U>);",
        "public android.b.Key open(android.a.Box$Lid);",
    ):
        assert line in found, found


def test_interfaces_enums_and_supertypes_are_found(jar: Path) -> None:
    found = shown(jar, "android.a.Box$Lid", "android.a.Box$Colour", "android.b.Key")
    assert "interface android.a.Box$Lid {" in found
    assert "public abstract boolean onOpen(android.a.Box<?>);" in found
    assert "public default void onShut(" in found  # its parameter has a name, so it has a body
    assert "android.a.Box$Colour extends java.lang.Enum<android.a.Box$Colour>" in found
    assert "android.b.Key extends java.lang.RuntimeException" in found


def test_the_framework_is_that_of_api_36() -> None:
    stubs = Stubs(tool_or_skip(toolchain.unpacked, toolchain.STUBS))
    codes = stubs.find("android.os.Build.VERSION_CODES")
    assert codes
    assert "BAKLAVA" in {item.target.id for item in stubs[codes][1].body if hasattr(item, "target")}  # 35 has no such version
