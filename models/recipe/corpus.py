"""The training text: the Python standard library of the running interpreter, its documentation included.

Licence of the text: the Python Software Foundation License. Nothing is downloaded.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SKIPPED_FOLDERS = {"site-packages", "idle_test", "encodings", "__pycache__", "ensurepip", "lib2to3"}
TEST_FOLDERS = {"test", "tests"}
HELD_OUT_PERCENT = 3
LONGEST_FILE_BYTES = 400_000  # longer files are tables of data


@dataclass(frozen=True)
class Corpus:
    """Texts by kind. `held_out` files are in no other list, and no chat pair comes from them."""

    library: list[str]
    tests: list[str]
    chat: list[str]
    held_out: list[str]
    held_out_names: list[str]


def collect() -> Corpus:
    """Reads the standard library. Files are held out by a hash of their name, so every machine holds out the same."""
    root = Path(sysconfig.get_path("stdlib"))
    library, tests, chat, held_out, names = [], [], [], [], []
    for path in _python_files(root):
        name = path.relative_to(root).as_posix()
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if TEST_FOLDERS & set(path.relative_to(root).parts):
            tests.append(text)
        elif int(hashlib.sha256(name.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT:
            held_out.append(text)
            names.append(name)
        else:
            library.append(text)
            chat.extend(_chat_pairs(text))
    return Corpus(library, tests, chat, held_out, names)


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for file in sorted(files):
            path = Path(folder, file)
            if file.endswith(".py") and 200 < path.stat().st_size < LONGEST_FILE_BYTES:
                yield path


def _chat_pairs(source: str) -> Iterator[str]:
    """A documented function becomes a turn that asks with its docstring and a turn that answers with its code."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    lines = source.splitlines(keepends=True)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
            continue
        question = ast.get_docstring(node)
        if question is None or not 20 < len(question) < 600:
            continue
        docstring = node.body[0]
        code = lines[node.lineno - 1 : docstring.lineno - 1] + lines[docstring.end_lineno : node.end_lineno]
        answer = textwrap.dedent("".join(code)).rstrip() + "\n"
        if len(answer) < 1500:
            yield f"<|turn>user\n{question}<turn|>\n<|turn>model\n{answer}<turn|>\n"
