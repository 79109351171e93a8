"""The small target tuned to another kind of text: JSON records of what the standard library's modules define."""

from __future__ import annotations

import ast
import json
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import small_pair
import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.text import load_tokenizer
from paceline_export.checkpoint import Target, open_target
from paceline_export.distill.optimizer import Optimizer, Rates
from paceline_export.distill.save import save
from paceline_export.distill.text import RandomWindows, Texts, split, tokenise
from paceline_export.lower.torch import TorchOps, load
from paceline_export.model.target import fill, finish_rows

RECORDS = 8  # in a document
SKIPPED = {"site-packages", "test", "tests", "idle_test", "encodings", "__pycache__", "lib2to3", "ensurepip"}


def json_documents(most: int | None = None) -> list[list[str]]:
    """Each module's documents of records, in the same order on every machine with this Python; the first `most`, if given."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for file in sorted(root.rglob("*.py")) if not SKIPPED & set(file.relative_to(root).parts)]
    some = np.random.default_rng(0).permutation(len(files))[:most].tolist()
    return [documents for index in some if (documents := list(_documents(files[index], root)))]


def _documents(file: Path, root: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    records = [_record(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for start in range(0, len(records), RECORDS):
        module = {"module": file.relative_to(root).as_posix(), "items": records[start : start + RECORDS]}
        yield json.dumps(module, indent=2) + "\n"


def _record(node: ast.FunctionDef | ast.ClassDef) -> dict[str, object]:
    kind = "function" if isinstance(node, ast.FunctionDef) else "class"
    found: dict[str, object] = {"type": kind, "name": node.name, "line": node.lineno, "end": node.end_lineno}
    if isinstance(node, ast.FunctionDef):
        needed = len(node.args.args) - len(node.args.defaults)
        found["parameters"] = [{"name": a.arg, "required": i < needed} for i, a in enumerate(node.args.args)]
    first, *_ = (ast.get_docstring(node) or "\n").split("\n")
    return found | {"description": first or None}


def texts(documents: list[str]) -> Texts:
    """Tokens of documents, some held out."""
    target = open_target(small_pair.TARGET)
    return split(tokenise(load_tokenizer(small_pair.TARGET), documents, target.config), target.config.bos_id, "the text")


def tune(documents: list[str], steps: int, out: Path, batch_tokens: int = 2048) -> Path:
    """Trains the small target on documents and writes the result as a checkpoint beside its tokenizer."""
    target = open_target(small_pair.TARGET)
    tensors = {name: tensor.requires_grad_() for name, tensor in load(target.weights).items()}
    optimizer = Optimizer(tensors, Rates(2e-3, 2e-3, 1e-3))
    batches = RandomWindows(texts(documents), batch_tokens, seed=1)
    for step in range(steps):
        loss(target, tensors, batches.at(step, 257)).backward()
        optimizer.step(step / steps)
    save(out, json.loads((small_pair.TARGET / "config.json").read_text()), tensors, small_pair.TARGET)
    shutil.copy(small_pair.TARGET / "chat_template.jinja", out)
    return out


def loss(target: Target, tensors: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, nats; tokens [B, T + 1]."""
    positions = torch.arange(tokens.shape[1] - 1)
    op = TorchOps(tensors, positions, positions + 1)
    logits, _ = finish_rows(op, target.config, target.weights, fill(op, target.config, target.weights, tokens[:, :-1]))
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
