"""What each recipe costs and keeps on the small pair, on both backends: `python tests/bench/recipes.py`.

- MB: millions of bytes of a backend's graph files.
- loss: nats a token over held-out text; float32's own, then the change from it on the same backend. The text is what
  `models/recipe` held out, rebuilt from this Python's standard library, whose files it holds out by a hash of their
  names: on Python 3.11 the 49,696 tokens that the pair was not trained on. Other versions have other text in those
  files. Read are 32 of the 194 windows of 256 tokens over which the model card has its mean.
- accepted: share of the drafts at position 1, 2 and 3 that the rounded target accepts of the rounded drafter, in their
  own greedy text of the prompts of `tests/small_pair.py`. A draft after a rejected one counts as rejected, so the sum
  is the mean of 3; a text's last round, which may have fewer drafts, counts where it has them.
- same next token: share of the positions of float32's greedy text of these prompts, on the same backend, where the
  rounded target, given all before it, would write the same token.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "models" / "recipe"))
import corpus
from small_pair import DRAFTER, PROMPTS, TARGET

import paceline
from paceline.signatures import VERIFY
from paceline_export.bundle import FORMATS, export
from paceline_export.recipes import F32, RECIPES

NEW_TOKENS, DRAFT_LENGTH = 128, 3
WINDOWS, WINDOW = 32, 256  # of held-out text, spread evenly; tokens scored in each
WIDEST = max(VERIFY)
GRAPH_FILES = {"tflite": "*.tflite", "onnx": "*.onnx*"}  # weights lie beside the ONNX graphs, in .onnx.data
EOS = 1


def main() -> None:
    """Prints a row for each recipe and each backend that can hold it, as they are done."""
    print("| recipe | backend | MB | loss, nats a token | accepted at 1 / 2 / 3 | mean of 3 | same next token |")
    print("|---|---|---|---|---|---|---|", flush=True)
    float32: dict[str, tuple[float, list[Text]]] = {}  # loss and texts, by backend
    windows: list[list[int]] = []
    for recipe in RECIPES.values():
        formats = [name for name in FORMATS if recipe.name in FORMATS[name].recipes]
        with tempfile.TemporaryDirectory() as parent:
            bundle = Path(parent) / "bundle"
            export(TARGET, DRAFTER, bundle, lambda *_: None, formats, recipe)
            for name in formats:
                backend = FORMATS[name].backend
                model = paceline.load(bundle, backend=backend, weight_cache=False)
                windows = windows or held_out_windows(model)
                texts = [write(model, prompt) for prompt in PROMPTS]
                loss = sum(negative_log_likelihood(model, window) for window in windows) / (len(windows) * WINDOW)
                float32_loss, float32_texts = float32.setdefault(backend, (loss, texts))  # F32 is the first recipe
                size = sum(file.stat().st_size for file in bundle.glob(GRAPH_FILES[name])) / 1e6
                shown_loss = f"{loss:.4f}" if recipe is F32 else f"{loss - float32_loss:+.4f}"
                accepted = acceptance_by_position(texts)
                positions = " / ".join(f"{share:.1%}" for share in accepted)
                same = sum(agreement(model, text) for text in float32_texts)
                count = sum(len(text.tokens) for text in float32_texts)
                row = f"{size:.2f} | {shown_loss} | {positions} | {accepted.sum():.2f} | {same / count:.1%} of {count:,}"
                print(f"| {recipe.name} | {backend} | {row} |", flush=True)


@dataclass(frozen=True)
class Text:
    """A greedy text, with what happened while it was written with drafts."""

    prompt: list[int]
    tokens: list[int]
    stats: paceline.Stats


def write(model: paceline.Model, prompt: str) -> Text:
    """Up to NEW_TOKENS tokens."""
    tokens = model.encode(prompt)
    pieces = list(model.generate(tokens, max_new_tokens=NEW_TOKENS, draft_length=DRAFT_LENGTH))
    assert pieces[-1].stats is not None
    return Text(tokens, [piece.token for piece in pieces], pieces[-1].stats)


def acceptance_by_position(texts: Sequence[Text]) -> NDArray[np.float64]:
    """Share of drafts accepted at each position, over all texts: [K]."""
    counts = np.zeros((2, DRAFT_LENGTH))  # accepted, drafted
    for stats in (text.stats for text in texts):
        counts[:, : len(stats.drafted_at)] += stats.accepted_at, stats.drafted_at
    return counts[0] / counts[1]


def agreement(model: paceline.Model, text: Text) -> int:
    """Positions of a text where the model would write its token, given all before it."""
    logits = judged(model, text.prompt[:-1], [text.prompt[-1], *text.tokens[:-1]])
    return int((np.concatenate([block.argmax(-1) for block in logits]) == text.tokens).sum())


def negative_log_likelihood(model: paceline.Model, window: Sequence[int]) -> float:
    """Of every token of a window but the first, given all before it in the window; their sum, in nats."""
    logits = np.concatenate([block.astype(np.float64) for block in judged(model, [], window[:-1])])  # [T, V]
    logits -= logits.max(-1, keepdims=True)
    return float((np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(logits)), window[1:]]).sum())


def judged(model: paceline.Model, before: Sequence[int], tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """The target's logits after each of `tokens`, [up to WIDEST, V] at a time; a block is valid until the next."""
    with model.sequence() as (target, _):
        target.prefill(before)
        for start in range(0, len(tokens), WIDEST):
            block = tokens[start : start + WIDEST]
            yield target.verify(block).logits
            target.commit(len(block))


def held_out_windows(model: paceline.Model) -> list[list[int]]:
    """Windows of WINDOW tokens and the one before each, out of the held-out files in one sequence, as in `models/recipe`."""
    tokens = [token for text in corpus.collect().held_out for token in [*model.encode(text), EOS]]
    starts = WINDOW * np.linspace(0, (len(tokens) - 1) // WINDOW - 1, WINDOWS).astype(int)
    return [tokens[start : start + WINDOW + 1] for start in starts]


if __name__ == "__main__":
    main()
