"""Reads the framework's classes out of type stubs for Python, which have all of API 36 that is public."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGES = ("android", "dalvik", "org.json")
# An interface shows in the names of its abstract methods' parameters, and these have none or are the exception.
INTERFACES = {"android.os.Parcelable", "android.content.DialogInterface", "android.view.ViewManager", "android.view.ViewParent"}
NO_INTERFACES = {"android.graphics.ColorSpace"}


class Stubs:
    """The type stubs in a directory `android-stubs`, `dalvik-stubs`, ... each. Only classes that are asked for are parsed."""

    def __init__(self, root: Path):
        self._root = root
        self._packages: dict[str, dict[str, str]] = {}  # the source of every outermost class
        self._definitions: dict[str, tuple[str, ast.ClassDef]] = {}
        self._families: dict[str, list[str]] = {}

    def __getitem__(self, name: str) -> tuple[str, ast.ClassDef]:
        """A class's package and definition."""
        return self._definitions[name]

    def __contains__(self, name: str) -> bool:
        return name in self._definitions

    def find(self, name: str, package: str = "") -> str | None:
        """The full name of a class that is called `name` in this package."""
        if not name.startswith(tuple(f"{each}." for each in PACKAGES)):
            name = f"{package}.{name}"
        if name not in self._definitions:
            parts = name.split(".")
            top = next((i for i, part in enumerate(parts) if part[0].isupper()), None)
            if top:
                self._open(".".join(parts[:top]), parts[top])
        return name if name in self._definitions else None

    def _open(self, package: str, name: str) -> None:
        if package not in self._packages:
            top, *rest = package.split(".")
            stub = self._root.joinpath(f"{top}-stubs", *rest, "__init__.pyi")
            text = stub.read_text() if stub.is_file() else ""
            self._packages[package] = {
                e[1]: e[0] for e in re.finditer(r"^class (\w+).*\n(?:[ \t].*\n|\n)*", text, re.MULTILINE)
            }
        source = self._packages[package].pop(name, None)
        if source:
            self._families[f"{package}.{name}"] = []
            self._add(ast.parse(source), package, package, self._families[f"{package}.{name}"])

    def _add(self, scope: ast.Module | ast.ClassDef, prefix: str, package: str, family: list[str]) -> None:
        for item in scope.body:
            if isinstance(item, ast.ClassDef):
                name = f"{prefix}.{item.name}"
                self._definitions[name] = (package, item)
                family.append(name)
                self._add(item, name, package, family)

    def family(self, name: str) -> list[str]:
        """The outermost class around a class, and all classes in that."""
        while name not in self._families:
            name = name.rpartition(".")[0]
        return self._families[name]

    def is_interface(self, name: str) -> bool:
        """Whether it must be one: it cannot be made, has no fields, and abstract methods, whose parameters have no names."""
        if name in INTERFACES or name in NO_INTERFACES:
            return name in INTERFACES
        package, definition = self[name]
        if any(isinstance(each, ast.AnnAssign) and not is_static(each) for each in definition.body):
            return False
        methods = [each for each in definition.body if isinstance(each, ast.FunctionDef)]
        if any(each.name == "__init__" for each in methods) or (methods and all(is_static(each) for each in methods)):
            return False
        if not any(is_unnamed(each) for each in methods) and any(parameters(each) for each in methods):
            return False
        bases = [self.find(dotted(base), package) for base in definition.bases]
        return all(self.is_interface(base) for base in bases if base)


def dotted(node: ast.expr) -> str:
    """`a.b.C[D]` -> `a.b.C`."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return dotted(node.value) if isinstance(node, ast.Subscript) else ast.unparse(node)


def arguments(node: ast.expr) -> list[ast.expr]:
    """`C[A, B]` -> A and B."""
    if not isinstance(node, ast.Subscript):
        return []
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def is_static(member: ast.FunctionDef | ast.AnnAssign) -> bool:
    """Whether a member belongs to the class itself."""
    if isinstance(member, ast.AnnAssign):
        return dotted(member.annotation) == "typing.ClassVar"
    return any(ast.unparse(each) == "staticmethod" for each in member.decorator_list)


def parameters(method: ast.FunctionDef) -> list[ast.arg]:
    """A method's parameters but for self and the variable one."""
    return [each for each in method.args.posonlyargs + method.args.args if each.arg != "self"]


def is_unnamed(method: ast.FunctionDef) -> bool:
    """Parameters without names are those of methods without a body: abstract ones."""
    return any(re.fullmatch(r"arg\d+", each.arg) for each in parameters(method))
