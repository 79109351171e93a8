"""Nothing in either package can make a stranger's data into a program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [*sorted((ROOT / "runtime" / "paceline").rglob("*.py")), *sorted((ROOT / "export" / "paceline_export").rglob("*.py"))]
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "ruamel",
    "code",
    "codeop",
}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "builtins.eval", "builtins.exec"}


def names(tree: ast.AST) -> set[str]:
    """The roots of all imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def dangers(source: str) -> list[str]:
    """What in a source could run or unpickle data."""
    tree = ast.parse(source)
    found = sorted(names(tree) & MODULES)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in CALLS:
            found.append(called)
        if called == "torch.load" and keywords.get("weights_only") != "True":
            found.append(called)
        if keywords.get("allow_pickle", "False") != "False" or keywords.get("shell", "False") != "False":
            found.append(called)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_runs_or_unpickles_data(file: Path) -> None:
    assert not dangers(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from yaml import load",
        "eval(text)",
        "exec(text)",
        "os.system(text)",
        "np.load(file, allow_pickle=True)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_every_kind_is_found(source: str) -> None:
    assert dangers(source)


def test_what_is_harmless_is_not_found() -> None:
    assert not dangers(
        "re.compile(text); np.load(file); torch.load(file, weights_only=True); model.eval(); subprocess.run(list)"
    )
