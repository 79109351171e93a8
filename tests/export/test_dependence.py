"""The rule of dependence: the runtime knows no exporter, and neither needs torch to do its work."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNTIME, EXPORT = ROOT / "runtime" / "paceline", ROOT / "export" / "paceline_export"
# What the export package may ask of the runtime: what a bundle is, and how to speak to the user.
SHARED = {"paceline.bundle", "paceline.partial", "paceline.signatures", "paceline.stored_weights", "paceline.errors"}
# And what an evaluation counts with: pure functions, prompts, and how a report is drawn.
SHARED |= {"paceline.ngram", "paceline.speedup", "paceline.stats", "paceline.bench_tables", "paceline.prompts"}
SHARED |= {"paceline.backends.names", "paceline.sampling", "paceline.manifest", "paceline.reading", "paceline.chat_template"}
SHARED_NAMES = {("paceline.text", name) for name in ("TOKENIZER_FILE", "THOUGHT_OPENS", "THOUGHT_CLOSES", "load_tokenizer")}
SHARED_NAMES |= {("paceline", "signatures"), ("paceline", "reading"), ("paceline.text", "encode"), ("paceline", "prompts")}
SHARED |= {f"paceline.npu.{name}" for name in ("profile", "scales", "signatures")}
API = {"paceline", "paceline.model", "paceline.backends", "paceline.checks", "paceline.cli", "paceline.costs"}
# Neither what only the exporter, the server or a report needs, nor a backend before one is chosen.
RUNTIME_LACKS = {"torch", "onnx", "onnx_ir", "safetensors", "transformers", "ml_dtypes", "paceline_export"}
RUNTIME_LACKS |= {"onnxruntime", "ai_edge_litert", "starlette", "uvicorn", "pydantic", "matplotlib"}
TORCH = {EXPORT / "lower" / "torch.py", EXPORT / "lower" / "held.py", EXPORT / "parity.py"}
TORCH |= {EXPORT / "evaluate" / "checkpoints.py"} | {
    EXPORT / "distill" / f"{name}.py"
    for name in (
        "loss", "memory", "observed", "optimizer", "rounded", "rounds", "save", "start", "state", "text", "train", "writing"
    )
}  # fmt: skip
# Of the torch lowering without torch itself: files in, files out.
TORCH_USERS = {EXPORT / "distill" / "job.py"}
RUNS_BUNDLES = {EXPORT / "parity.py", EXPORT / "evaluate" / "bundles.py", EXPORT / "evaluate" / "measure.py"}
# Ranges are measured, and an emulator is compared, while the loop itself runs.
RUNS_THE_LOOP = {EXPORT / "npu" / f"{name}.py" for name in ("measure", "observer", "emulator", "emulate", "compare")}
DRAWS = EXPORT / "evaluate" / "page.py"

LOADED = """
import sys
import {module}
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


def sources(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.py"))
    assert files
    return files


def imports(file: Path) -> set[tuple[str, str]]:
    """(module, name) of every import anywhere in the file; the name is empty for `import module`."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {(str(node.module), alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("paceline", RUNTIME_LACKS),
        ("paceline.cli.main", RUNTIME_LACKS),
        ("paceline.cli.doctor", RUNTIME_LACKS),
        ("paceline_export.cli.npu", {"torch", "transformers", "onnxruntime"}),
        ("paceline_export.bundle", {"torch", "transformers"}),
        ("paceline_export.cli.demo", {"torch", "transformers"}),
        ("paceline_export.cli.distill", {"torch", "transformers", "matplotlib"}),
        ("paceline_export.cli.evaluate", {"torch", "transformers", "matplotlib"}),
    ],
)
def test_importing_loads_nothing_that_the_work_does_not_need(module: str, absent: set[str]) -> None:
    command = [sys.executable, "-c", LOADED.format(module=module)]
    loaded = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert module.partition(".")[0] in loaded
    assert not loaded & absent


@pytest.mark.parametrize("file", sources(RUNTIME), ids=lambda file: str(file.relative_to(ROOT)))
def test_the_runtime_imports_no_exporter_and_no_framework(file: Path) -> None:
    roots = {module.partition(".")[0] for module, _ in imports(file)}
    assert not roots & {"paceline_export", "torch", "transformers", "onnx", "onnx_ir", "safetensors"}


@pytest.mark.parametrize("file", sources(EXPORT), ids=lambda file: str(file.relative_to(ROOT)))
def test_the_exporter_asks_of_the_runtime_only_what_a_bundle_is(file: Path) -> None:
    """Its subcommands may also use the command line that they are part of, and the demo runs what it exported."""
    of_runtime = {pair for pair in imports(file) if pair[0].partition(".")[0] == "paceline"}
    others = {pair for pair in of_runtime - SHARED_NAMES if pair[0] not in SHARED}
    if file.parent == EXPORT / "cli" or file in RUNS_BUNDLES:
        others = {pair for pair in others if not pair[0].startswith("paceline.cli.") and pair[0] not in API}
    if file == DRAWS:
        others = {
            pair for pair in others if not pair[0].startswith("paceline.bench_page") and pair != ("paceline", "bench_page")
        }
    assert not others or file in RUNS_THE_LOOP


@pytest.mark.parametrize("file", sources(EXPORT), ids=lambda file: str(file.relative_to(ROOT)))
def test_torch_is_the_torch_lowerings_own_business(file: Path) -> None:
    roots = {module.partition(".")[0] for module, _ in imports(file)}
    assert ("torch" in roots) == (file in TORCH)
    assert "paceline_export.lower.torch" not in {module for module, _ in imports(file)} or file in TORCH | TORCH_USERS
