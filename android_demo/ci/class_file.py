"""Writes Java class files whose methods do nothing but throw: enough to compile against."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

PUBLIC, STATIC, FINAL, SUPER, VARARGS, INTERFACE, ABSTRACT, ENUM = 0x1, 0x8, 0x10, 0x20, 0x80, 0x200, 0x400, 0x4000
JAVA_8 = 52
THROW_NULL = b"\x01\xbf"  # aconst_null, athrow


class ClassFile:
    """One class. Names are internal ones (`a/b/C$D`), types are descriptors, as in chapter 4 of the JVM's specification."""

    def __init__(self, name: str, flags: int, supertype: str, interfaces: list[str]):
        self._pool: dict[bytes, int] = {}
        self._flags = flags | (0 if flags & INTERFACE else SUPER)
        self._names = [self._class(name), self._class(supertype[1:-1])]
        self._interfaces = [self._class(each[1:-1]) for each in interfaces]
        self._fields: list[bytes] = []
        self._methods: dict[tuple[str, str], bytes] = {}
        self._attributes: list[bytes] = []
        self._nested: dict[str, int] = {}
        self._types: set[str] = {name, supertype, *interfaces}

    @property
    def is_enum(self) -> bool:
        return bool(self._flags & ENUM)

    def signature(self, text: str) -> None:
        """The class's own type parameters and generic supertypes."""
        self._attributes.append(self._signature(text))

    def field(self, flags: int, name: str, descriptor: str, signature: str, value: int | str | None) -> None:
        """Adds a field; a value makes it a constant."""
        attributes = [self._signature(signature)] if signature != descriptor else []
        if isinstance(value, int):
            attributes.append(self._attribute("ConstantValue", struct.pack(">H", self._constant(struct.pack(">Bi", 3, value)))))
        elif value is not None:
            text = self._constant(struct.pack(">BH", 8, self._text(value)))
            attributes.append(self._attribute("ConstantValue", struct.pack(">H", text)))
        self._fields.append(self._member(flags, name, descriptor, attributes))

    def method(self, flags: int, name: str, descriptor: str, signature: str | None = None, *, nullable: bool = False) -> None:
        """Adds a method, unless there is one of this name and descriptor."""
        attributes = [self._signature(signature)] if signature and signature != descriptor else []
        if not flags & ABSTRACT:
            words = 256  # more than any method has arguments
            code = struct.pack(">HHI", 1, words, len(THROW_NULL)) + THROW_NULL + struct.pack(">HH", 0, 0)
            attributes.append(self._attribute("Code", code))
        if nullable:
            annotation = struct.pack(">HHH", 1, self._text("Lorg/jetbrains/annotations/Nullable;"), 0)
            attributes.append(self._attribute("RuntimeInvisibleAnnotations", annotation))
        self._methods.setdefault((name, descriptor), self._member(flags, name, descriptor, attributes))

    def nest(self, name: str, flags: int) -> None:
        """Says that a class is nested in another."""
        self._nested[name] = flags

    def nest_referenced(self, flags_of: Callable[[str], int]) -> None:
        """Says so of every nested class that types here refer to; without it a compiler cannot tell that it is one."""
        names = {name for each in self._types for name in re.findall(r"[\w/]+\$[\w$]+", each)}
        for name in names:
            while "$" in name:
                self._nested.setdefault(name, flags_of(name))
                name = name.rpartition("$")[0]

    def content(self) -> bytes:
        """The file's bytes."""
        entries = [
            struct.pack(">HHHH", self._class(name), self._class(outer), self._text(own), flags)
            for name, flags in sorted(self._nested.items())
            for outer, _, own in [name.rpartition("$")]
        ]
        if entries:
            self._attributes.append(self._attribute("InnerClasses", counted(entries)))
        interfaces = counted([struct.pack(">H", each) for each in self._interfaces])
        body = struct.pack(">HHH", self._flags, *self._names) + interfaces
        body += counted(self._fields) + counted(list(self._methods.values())) + counted(self._attributes)
        return struct.pack(">IHHH", 0xCAFEBABE, 0, JAVA_8, len(self._pool) + 1) + b"".join(self._pool) + body

    def _member(self, flags: int, name: str, descriptor: str, attributes: list[bytes]) -> bytes:
        self._types.add(descriptor)
        return struct.pack(">HHH", flags, self._text(name), self._text(descriptor)) + counted(attributes)

    def _signature(self, text: str) -> bytes:
        self._types.add(text)
        return self._attribute("Signature", struct.pack(">H", self._text(text)))

    def _attribute(self, name: str, content: bytes) -> bytes:
        return struct.pack(">HI", self._text(name), len(content)) + content

    def _constant(self, entry: bytes) -> int:
        return self._pool.setdefault(entry, len(self._pool) + 1)

    def _text(self, text: str) -> int:
        content = text.encode()
        return self._constant(struct.pack(">BH", 1, len(content)) + content)

    def _class(self, name: str) -> int:
        return self._constant(struct.pack(">BH", 7, self._text(name)))


def counted(items: list[bytes]) -> bytes:
    """A table with its length in front."""
    return struct.pack(">H", len(items)) + b"".join(items)
