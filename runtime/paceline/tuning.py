"""What suits a bundle on a user's own prompts: the rotary position of draft steps, and how drafting does at every length.

The first belongs to the checkpoint and is written into the manifest; how many drafts pay belongs to the device, which the
adaptive draft length follows by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from paceline.bench import run_together
from paceline.bundle import MANIFEST, Bundle
from paceline.errors import InputError
from paceline.model import Model
from paceline.partial import write_whole
from paceline.rules import Greedy
from paceline.stats import Stats

OFFSETS = (0, -1)  # that a checkpoint can have been trained with
DRAFT_LENGTH = 3  # of the rounds that offsets are judged by
CERTAIN = 2.0  # standard errors; a smaller difference is chance
BACKUP = "manifest.json.before-calibrate"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Offsets:
    """Acceptance under every offset, on the same texts.

    Attributes:
        present: the manifest's.
        by_offset: what was drafted and accepted.
    """

    present: int
    by_offset: Mapping[int, Stats]

    @property
    def best(self) -> int:
        """The offset to keep: another one than the present only where it is better beyond chance."""
        others = [offset for offset in self.by_offset if offset != self.present and self.gain(offset) > CERTAIN]
        return max(others, key=self.gain, default=self.present)

    def gain(self, offset: int) -> float:
        """How much more first drafts are right than with the present offset, in standard errors of the difference.

        One right and one wrong draft are added to each, so that a share of all or none is not certain.
        """
        counts = [
            (own.accepted_at[0] + 1, own.drafted_at[0] + 2) for own in (self.by_offset[self.present], self.by_offset[offset])
        ]
        present, other = (accepted / drafted for accepted, drafted in counts)
        variance = present * (1 - present) / counts[0][1] + other * (1 - other) / counts[1][1]
        return (other - present) / sqrt(variance)


def measure_offsets(
    bundle: Bundle, opened: Callable[[Bundle], Model], prompts: Sequence[str], new_tokens: int, progress: Progress
) -> Offsets:
    """Runs the prompts greedily under every offset; the texts do not depend on it.

    Args:
        opened: loads a bundle.
    """
    found: dict[int, Stats] = {}
    for offset in OFFSETS:
        model = opened(replace(bundle, manifest=replace(bundle.manifest, draft_position_offset=offset)))
        found[offset] = Stats()
        for index, prompt in enumerate(prompts):
            progress(f"draft position offset {offset}: prompt {index + 1} of {len(prompts)}")
            pieces = list(model.generate(prompt, draft_length=DRAFT_LENGTH, max_new_tokens=new_tokens))
            stats = pieces[-1].stats
            assert stats is not None
            found[offset].add(stats)
        if not found[offset].drafted:
            raise InputError("no draft was made; give prompts whose texts have more than one token.")
    return Offsets(bundle.manifest.draft_position_offset, found)


def measure_lengths(
    model: Model, prompts: Sequence[str], lengths: Sequence[int | None], new_tokens: int, progress: Progress
) -> dict[int | None, Stats]:
    """All prompts with every draft length, in turns: length -> its statistics, times included. None also looks text up."""
    found: dict[int | None, Stats] = {length: Stats() for length in lengths}
    for index, prompt in enumerate(prompts):
        progress(f"draft lengths: prompt {index + 1} of {len(prompts)}")
        for length, run in run_together(model, model.prompt_tokens(prompt), lengths, new_tokens, Greedy).items():
            found[length].add(run.stats)
    return found


def write_offset(bundle: Bundle, offset: int) -> None:
    """Changes the manifest, whole or not at all; the first one is kept as BACKUP."""
    file, backup = bundle.folder / MANIFEST, bundle.folder / BACKUP
    if not backup.exists():
        write_whole(backup, file.read_text(encoding="utf-8"))
    write_whole(file, replace(bundle.manifest, draft_position_offset=offset).to_json())
