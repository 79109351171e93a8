"""Makes a compile-only android.jar of API 36 from type stubs for Python, which have every public class, method and field.

Only what some sources name, and what that refers to, is made. Where the stubs say less than Java does, this is what becomes of
it: everything is public and nothing final, classes have no abstract methods, bounds and wildcards of type parameters are gone,
parameters may be null, and of results and fields `int` can hide a long (WIDER lists the ones that matter).
"""

from __future__ import annotations

import ast
import keyword
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from class_file import ABSTRACT, ENUM, FINAL, INTERFACE, PUBLIC, STATIC, VARARGS, ClassFile
from pyi_stubs import PACKAGES, Stubs, arguments, dotted, is_static, is_unnamed, parameters

KINDS = ("boolean", "byte", "char", "short", "int", "long", "float", "double")
PRIMITIVES = dict(zip(KINDS, "ZBCSIJFD", strict=True))
BOXES = dict(zip("ZBCSIJFD", ("Boolean", "Byte", "Character", "Short", "Integer", "Long", "Float", "Double"), strict=True))
PLAIN = {"int": "I", "float": "F", "bool": "Z", "str": "Ljava/lang/String;", "None": "V"}

# What `int`, `float` and `str` hide where nothing else tells: results and fields.
WIDER = {
    "J": r"""android\.(\w+\.)+getLong(?!Press)\w* | org\.json\.\w+\.(get|opt)Long | android\.content\.ContentUris\.parseId
        | android\.os\.SystemClock\.\w+ | android\.os\.StatFs\.get\w*Bytes | android\.os\.storage\.StorageManager\.get\w+Bytes
        | android\.app\.ActivityManager\.MemoryInfo\.(threshold|\w+Mem) | android\.os\.Debug\.(getPss|getNative\w+)
        | android\.app\.ApplicationExitInfo\.get(Pss|Rss|Timestamp) | android\.app\.job\.\w+\.\w+Bytes
        | android\.os\.ParcelFileDescriptor\.getStatSize | android\.content\.res\.AssetFileDescriptor\.get\w*(Length|Offset)
        | android\.os\.PerformanceHintManager\.getPreferredUpdateRateNanos | android\.content\.pm\.PackageInfo\.\w+Time
        | android\.widget\.\w+\.get(Selected)?ItemId(AtPosition)? | android\.view\.\w+\.get\w+Time
        | android\.(view\.)?animation\.\w+\.get(Duration|StartDelay|StartTime|TotalDuration)""",
    "D": r"""android\.(\w+\.)+getDouble\w* | org\.json\.\w+\.(get|opt)Double""",
    "S": r"""android\.(\w+\.)+getShort""",
    "C": r"""(\w+\.)+charAt""",
}
NEVER_NULL = {"android.app.Activity.getWindow", "android.content.Context.getResources"}  # whatever the stubs say
GENERIC_VIEWS = {"findViewById", "requireViewById", "findViewWithTag"}  # <T extends View> T in Java

JAVA_INTERFACES = {
    *("AlgorithmParameterSpec", "Annotation", "Appendable", "AutoCloseable", "Channel", "CharSequence", "Cloneable"),
    *("Closeable", "Collection", "Comparable", "Comparator", "Entry", "Iterable", "Iterator", "KeySpec", "Map"),
    *("ProtectionParameter", "Runnable", "Serializable", "Set"),
}


@dataclass(frozen=True)
class Type:
    """A Java type, erased as in a descriptor, and with its type arguments."""

    erased: str
    generic: str
    nullable: bool = False


def internal(name: str) -> str:
    """`android.view.View.OnClickListener` -> `android/view/View$OnClickListener`; a class begins where a capital does."""
    parts = name.split(".")
    top = next((i for i, part in enumerate(parts) if part[0].isupper()), len(parts) - 1)
    return "/".join([*parts[:top], "$".join(parts[top:])])


class Maker:
    """Class files for some classes and all they refer to."""

    def __init__(self, stubs: Stubs):
        self._stubs = stubs
        self._wanted: deque[str] = deque()
        self._seen: set[str] = set()
        self._constants = 0

    def want(self, name: str) -> None:
        """Asks for a class, with those around it and in it."""
        top = self._stubs.family(name)[0]
        if top not in self._seen:
            self._seen.add(top)
            self._wanted.append(top)

    def make(self) -> Iterator[tuple[str, bytes]]:
        """File name and content of every class."""
        while self._wanted:
            for name in self._stubs.family(self._wanted.popleft()):
                yield f"{internal(name)}.class", self._class(name)

    def _class(self, name: str) -> bytes:
        package, definition = self._stubs[name]
        is_interface = self._stubs.is_interface(name)
        own = [dotted(each) for base in definition.bases if dotted(base) == "typing.Generic" for each in arguments(base)]
        supertype, interfaces = self._supertypes(definition, package)
        flags = PUBLIC | (INTERFACE | ABSTRACT if is_interface else 0)
        flags |= ENUM if supertype.erased == "Ljava/lang/Enum;" else 0
        made = ClassFile(internal(name), flags, supertype.erased, [each.erased for each in interfaces])
        for nested in [each for each in self._stubs.family(name) if each.startswith(f"{name}.")]:
            made.nest(internal(nested), self._nested_flags(nested))
        made.signature("".join([formal(own), supertype.generic, *(each.generic for each in interfaces)]))
        for item in definition.body:
            if isinstance(item, ast.AnnAssign):
                self._field(made, item, name, package)
        methods = [each for each in definition.body if isinstance(each, ast.FunctionDef)]
        for method in methods:
            bodiless = is_interface and not is_static(method) and (is_unnamed(method) or not parameters(method))
            self._method(made, method, name, package, own, is_abstract=bodiless)
        if not is_interface and not any(each.name == "__init__" for each in methods):
            made.method(0, "<init>", "()V")
        made.nest_referenced(self._nested_flags_of_internal)
        return made.content()

    def _supertypes(self, definition: ast.ClassDef, package: str) -> tuple[Type, list[Type]]:
        supertype, interfaces = Type("Ljava/lang/Object;", "Ljava/lang/Object;"), []
        for base in definition.bases:
            name = dotted(base)
            if name in ("java.lang.Object", "typing.Generic"):
                continue
            known = self._stubs.find(name, package)
            if self._stubs.is_interface(known) if known else name.rpartition(".")[2] in JAVA_INTERFACES:
                interfaces.append(self._type(base, package, wildcards=False))
            else:
                supertype = self._type(base, package, wildcards=False)
        return supertype, interfaces

    def _nested_flags(self, name: str) -> int:
        return PUBLIC | STATIC | (INTERFACE | ABSTRACT if self._stubs.is_interface(name) else 0)

    def _nested_flags_of_internal(self, name: str) -> int:
        full = re.sub(r"[/$]", ".", name)
        return self._nested_flags(full) if full in self._stubs else PUBLIC | STATIC

    def _field(self, made: ClassFile, field: ast.AnnAssign, owner: str, package: str) -> None:
        static, (annotation,) = is_static(field), arguments(field.annotation) if is_static(field) else [field.annotation]
        name = ast.unparse(field.target)
        kind = widened(self._type(annotation, package), f"{owner}.{name}")
        enum = ENUM if made.is_enum and kind.erased == f"L{internal(owner)};" else 0
        self._constants += 1  # each its own value, or a `when` over some of them would have the same branch twice
        value = {"I": self._constants, "Ljava/lang/String;": f"{owner}.{name}"}.get(kind.erased) if static else None
        made.field(PUBLIC | (STATIC | FINAL if static else 0) | enum, name, kind.erased, kind.generic, value)

    def _method(
        self, made: ClassFile, method: ast.FunctionDef, owner: str, package: str, own: list[str], *, is_abstract: bool
    ) -> None:
        name = method.name[:-1] if keyword.iskeyword(method.name[:-1]) and method.name.endswith("_") else method.name
        kinds = [self._type(each.annotation, package) for each in parameters(method)]
        if method.args.vararg:
            last = self._type(method.args.vararg.annotation, package)
            kinds.append(Type(f"[{last.erased}", f"[{last.generic}"))
        result = widened(self._type(method.returns, package), f"{owner}.{name}")
        free = sorted(
            {each for each in re.findall(r"T(_\w+);", "".join(k.generic for k in [*kinds, result])) if each not in own}
        )
        variables = formal(free)
        if name in GENERIC_VIEWS and result.erased == "Landroid/view/View;":
            variables, result = "<T:Landroid/view/View;>", Type(result.erased, "TT;", result.nullable)
        flags = PUBLIC | (STATIC if is_static(method) else 0) | (ABSTRACT if is_abstract else 0)
        made.method(
            flags | (VARARGS if method.args.vararg else 0),
            "<init>" if name == "__init__" else name,
            f"({''.join(each.erased for each in kinds)}){result.erased}",
            f"{variables}({''.join(each.generic for each in kinds)}){result.generic}",
            nullable=result.nullable and f"{owner}.{name}" not in NEVER_NULL,
        )

    def _type(self, node: ast.expr | None, package: str, *, wildcards: bool = True) -> Type:
        assert node is not None  # the stubs annotate everything
        alternatives = []
        while isinstance(node, ast.BinOp):
            alternatives.append(node.right)
            node = node.left
        alternatives.append(node)
        names = {dotted(each): each for each in alternatives}
        for name in names:
            if name.startswith("java.j"):
                return Type(PRIMITIVES[name[6:]], PRIMITIVES[name[6:]])
        # Beside what Python would convert by itself there is Java's own class.
        chosen = min(names, key=lambda name: (name == "None", name in PLAIN))
        kind = self._plain_type(chosen, names[chosen], package, wildcards)
        return Type(kind.erased, kind.generic, nullable="None" in names and chosen != "None")

    def _plain_type(self, name: str, node: ast.expr, package: str, wildcards: bool) -> Type:
        inner = [self._type(each, package) for each in arguments(node)]
        if name in PLAIN:
            return Type(PLAIN[name], PLAIN[name])
        if name == "java.chaquopy.JavaArray":
            return Type(f"[{inner[0].erased}", f"[{inner[0].generic}")
        if name.startswith("java.chaquopy.JavaArrayJ"):
            element = PRIMITIVES[name.removeprefix("java.chaquopy.JavaArrayJ").lower()]
            return Type(f"[{element}", f"[{element}")
        if name.startswith("_"):
            return Type("Ljava/lang/Object;", f"T{name};")
        if name == "typing.Type":
            name = "java.lang.Class"
        elif not name.startswith(("java.", "javax.")):
            found = self._stubs.find(name, package)
            if not found:
                return Type("Ljava/lang/Object;", "Ljava/lang/Object;")
            self.want(found)
            name = found
        # An unbounded wildcard is written as Object in the stubs.
        texts = ["*" if wildcards and each.generic == "Ljava/lang/Object;" else boxed(each.generic) for each in inner]
        text = f"<{''.join(texts)}>" if texts else ""
        return Type(f"L{internal(name)};", f"L{internal(name)}{text};")


def boxed(generic: str) -> str:
    """A type argument cannot be primitive."""
    return f"Ljava/lang/{BOXES[generic]};" if generic in BOXES else generic


def formal(variables: list[str]) -> str:
    """Declares type variables, in the way of a Signature attribute."""
    return f"<{''.join(f'{each}:Ljava/lang/Object;' for each in variables)}>" if variables else ""


def widened(kind: Type, member: str) -> Type:
    """The type that this result or field really has."""
    if kind.erased in ("I", "F", "Ljava/lang/String;"):
        for descriptor, pattern in WIDER.items():
            if re.fullmatch(pattern, member, re.VERBOSE) and (descriptor == "C") == (kind.erased[0] == "L"):
                return Type(descriptor, descriptor)
    return kind


def named_in(sources: list[Path]) -> set[str]:
    """The dotted names in Kotlin sources that could be classes of the framework, imported or not."""
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, PACKAGES))})(?:\.\w+)+")
    return {name for source in sources for name in pattern.findall(source.read_text())}


def make(root: Path, sources: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Class files that these Kotlin sources can be compiled against. Names that API 36 lacks are left to the compiler."""
    stubs = Stubs(root)
    maker = Maker(stubs)
    for name in sorted(named_in(sources)):
        parts = name.split(".")  # the last parts can be members
        found = next((each for i in range(len(parts), 1, -1) if (each := stubs.find(".".join(parts[:i])))), None)
        if found:
            maker.want(found)
    return maker.make()
