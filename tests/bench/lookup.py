"""What prompt lookup brings on copy-heavy prompts of the small pair: `python tests/bench/lookup.py`.

The prompts hold a function twice and begin it a third time, so that the text repeats itself. Plain decoding, the drafter alone
with 3 and 7 drafts a round, and adaptive drafting without and with lookup take turns; speeds are the best of the repeats.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from small_pair import DRAFTER, TARGET

import paceline
from paceline.backends import BACKENDS
from paceline.draft_length import DraftLength
from paceline.generate import generate
from paceline.ngram import Lookup
from paceline.rules import Greedy
from paceline_export.bundle import FORMATS, export
from paceline_export.recipes import F32

REPEATS, NEW_TOKENS = 7, 96
BODY = '''def read_config(path, default=None):
    """Read a configuration file and return its values."""
    with open(path, encoding="utf-8") as stream:
        values = parse(stream.read())
    if default is not None:
        values = {**default, **values}
    return values

'''
PROMPTS = [BODY * 2 + "def read_config(", BODY.replace("config", "table") * 3 + "def read_table(path"]


def main() -> None:
    out = Path(tempfile.mkdtemp()) / "bundle"
    export(TARGET, DRAFTER, out, lambda *_: None, tuple(FORMATS), F32)
    print("| backend | drafts | tokens/s, plain = 1 | tokens a target pass | kept of the lookup's |\n|---|---|---|---|---|")
    for backend in BACKENDS:
        model = paceline.load(out, backend=backend, weight_cache=False)
        ways = {"off": (0, False), "3": (3, False), "7": (7, False), "auto, no lookup": (None, False), "auto": (None, True)}
        runs: dict[str, list[list[paceline.Stats]]] = {way: [] for way in ways}
        texts = set()
        for _ in range(REPEATS):
            for way, (length, lookup) in ways.items():
                made = [run(model, prompt, model.draft_length(length), lookup) for prompt in PROMPTS]
                texts.add(tuple(tuple(tokens) for tokens, _ in made))
                runs[way].append([stats for _, stats in made])
        assert len(texts) == 1, "drafts changed a text"
        best = {way: min(sum(stats.decode_ms for stats in each) for each in own) for way, own in runs.items()}
        for way, own in runs.items():
            rounds, kept = sum(s.rounds for s in own[-1]), sum(s.accepted for s in own[-1])
            found = [s.sources["lookup"] for s in own[-1] if "lookup" in s.sources]
            share = f"{sum(s.accepted for s in found)} of {sum(s.drafted for s in found)}" if found else ""
            print(f"| {backend} | {way} | {best['off'] / best[way]:.2f} | {1 + kept / rounds:.2f} | {share} |", flush=True)


def run(model: paceline.Model, prompt: str, policy: DraftLength, lookup: bool) -> tuple[list[int], paceline.Stats]:
    """The greedy text of one prompt; stop tokens do not end it."""
    tokens, stats = model.encode(prompt), paceline.Stats()
    with model.sequence() as (target, drafter):
        emitted = generate(
            target,
            drafter,
            tokens,
            rule=Greedy(),
            draft_length=policy,
            max_new_tokens=NEW_TOKENS,
            stop_ids=frozenset(),
            stats=stats,
            lookup=Lookup(tokens) if lookup else None,
        )
        return [each.token for each in emitted], stats


if __name__ == "__main__":
    main()
