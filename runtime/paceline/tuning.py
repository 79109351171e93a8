"""What suits a bundle on a user's own prompts: the rotary position of draft steps, and what adaptive drafting may try.

The first belongs to the checkpoint. Within the second the device decides for itself; limits help where its guesses fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import mean, stdev

from paceline.bench import run_together
from paceline.bundle import MANIFEST, Bundle
from paceline.draft_length import AdaptiveLimits
from paceline.errors import InputError
from paceline.manifest import OFFSETS
from paceline.model import Model, Way
from paceline.partial import write_whole
from paceline.rules import Greedy
from paceline.stats import Stats

DRAFT_LENGTH = 3  # of the rounds that offsets are judged by
CERTAIN = 2.0  # standard errors; a smaller difference is chance
CERTAIN_OF_MANY = 3.0  # where the best of several is looked at
LEAST_PROMPTS = 6  # that can say how much a speed differs from text to text
WORTHWHILE = 1.02  # times as fast; a smaller gain is not worth other limits, certain or not
LIMITS = (*(AdaptiveLimits(most, lookup) for lookup in (True, False) for most in (7, 3, 1)), AdaptiveLimits(0, False))
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


@dataclass(frozen=True)
class Limits:
    """Speed within every limits of adaptive drafting, on the same texts.

    Attributes:
        present: the manifest's.
        by_way: what each prompt's text took, prompts in one order; fixed draft lengths may be there for comparison.
    """

    present: AdaptiveLimits
    by_way: Mapping[Way, Sequence[Stats]]

    @property
    def best(self) -> AdaptiveLimits:
        """The limits to keep: others than the present only where they are faster, beyond chance and by enough."""
        others = [
            way
            for way in self.by_way
            if isinstance(way, AdaptiveLimits)
            and way != self.present
            and self.certainty(way) > CERTAIN_OF_MANY
            and self.speed(way) > WORTHWHILE
        ]
        return max(others, key=self.speed, default=self.present)

    def speed(self, way: Way, over: Way | None = None) -> float:
        """Geometric mean over the prompts of a way's tokens a millisecond, as a multiple of another's (None: the present)."""
        return exp(mean(self._gains(way, self.present if over is None else over)))

    def certainty(self, way: Way) -> float:
        """How much faster than the present a way is, in standard errors over the prompts; 0 where there are too few."""
        gains = self._gains(way, self.present)
        if len(gains) < LEAST_PROMPTS:
            return 0.0
        error = stdev(gains) / sqrt(len(gains))
        return mean(gains) / error if error else 0.0

    def _gains(self, way: Way, over: Way) -> list[float]:
        pairs = zip(self.by_way[way], self.by_way[over], strict=True)
        return [log(_rate(own) / _rate(other)) for own, other in pairs]


def _rate(stats: Stats) -> float:
    return stats.emitted / stats.decode_ms


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


def measure_limits(model: Model, prompts: Sequence[str], fixed: Sequence[int], new_tokens: int, progress: Progress) -> Limits:
    """Runs all prompts greedily within every limits and with some fixed draft lengths, in turns; the texts are the same."""
    present = model.manifest.adaptive
    ways: list[Way] = list(dict.fromkeys([*fixed, present, *LIMITS]))
    found: dict[Way, list[Stats]] = {way: [] for way in ways}
    for index, prompt in enumerate(prompts):
        progress(f"draft lengths and proposers: prompt {index + 1} of {len(prompts)}")
        for way, run in run_together(model, model.prompt_tokens(prompt), ways, new_tokens, Greedy).items():
            found[way].append(run.stats)
    return Limits(present, found)


def write_tuned(bundle: Bundle, offset: int, limits: AdaptiveLimits) -> None:
    """Changes the manifest, whole or not at all; the first one is kept as BACKUP."""
    file, backup = bundle.folder / MANIFEST, bundle.folder / BACKUP
    if not backup.exists():
        write_whole(backup, file.read_text(encoding="utf-8"))
    write_whole(file, replace(bundle.manifest, draft_position_offset=offset, adaptive=limits).to_json())
