"""Exact draft-verify rounds without running them: a text is written first, then the rounds that would have written it are
counted.

A draft is kept while it equals what the target chose, greedily or by its own draw, so drafts never change the text. Only
the number of rounds depends on them, and one drafting at every place of the text serves all draft lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.ngram import Lookup

MOST_DRAFTS = 7  # what a verify call takes


@dataclass(frozen=True)
class Trace:
    """A prompt, the text that the target wrote after it, and what would be drafted at each of its places.

    Attributes:
        kind: the prompt's class.
        tokens: prompt and text.
        prompt: length of the prompt; the token behind it is the first one that is pending.
        end: no round starts at or behind this index.
        drafts: MOST_DRAFTS tokens of the round that starts at `prompt` + i.
    """

    kind: str
    tokens: Sequence[int]
    prompt: int
    end: int
    drafts: Sequence[Sequence[int]]

    @property
    def text(self) -> Sequence[int]:
        """What the target wrote."""
        return self.tokens[self.prompt :]

    def accepted(self, start: int, length: int) -> int:
        """How many of the first `length` drafts of the round at `start` are kept; those behind the text are refused."""
        count = 0
        for draft, wanted in zip(self.drafts[start - self.prompt][:length], self.tokens[start + 1 :], strict=False):
            if draft != wanted:
                break
            count += 1
        return count

    def by_lookup(self) -> Trace:
        """The same text, drafted by what followed its last tokens before: the baseline without a drafter."""
        lookup = Lookup(self.tokens[: self.prompt])
        drafts = []
        for token in self.tokens[self.prompt : self.end]:
            lookup.push(token)
            drafts.append(lookup.propose(MOST_DRAFTS))
        return Trace(self.kind, self.tokens, self.prompt, self.end, drafts)


@dataclass(frozen=True)
class Tally:
    """Rounds of one draft length.

    Attributes:
        rounds: how many there were.
        accepted_at: for draft position 1, 2, ..: rounds that kept the draft there.
    """

    rounds: int
    accepted_at: tuple[int, ...]

    @property
    def by_position(self) -> list[float]:
        """Share of rounds that kept a draft; one after a refused draft counts as refused."""
        return [count / max(self.rounds, 1) for count in self.accepted_at]

    @property
    def mean_accepted(self) -> float:
        """Drafts kept in a round."""
        return sum(self.accepted_at) / max(self.rounds, 1)


def free_running(traces: Sequence[Trace], length: int) -> Tally:
    """All rounds that write the texts with `length` drafts each."""
    rounds, kept = 0, [0] * length
    for trace in traces:
        start = trace.prompt
        while start < trace.end:
            accepted = trace.accepted(start, length)
            rounds += 1
            start += accepted + 1
            for position in range(accepted):
                kept[position] += 1
    return Tally(rounds, tuple(kept))


def first_round(traces: Sequence[Trace], length: int) -> Tally:
    """The first round of each text: it follows the prompt, so no loops of the model's own flatter it."""
    counts = [trace.accepted(trace.prompt, length) for trace in traces if trace.prompt < trace.end]
    return Tally(len(counts), tuple(sum(count > position for count in counts) for position in range(length)))


def cut(
    kind: str, tokens: Sequence[int], prompt: int, new_tokens: int, drafts: Sequence[Sequence[int]], stops: Sequence[int]
) -> Trace:
    """A trace of tokens that may go on behind a stop token.

    Rounds start in the first `new_tokens` of the text, which goes on by MOST_DRAFTS, so that all drafts can be judged; those
    behind the first stop token count as refused.
    """
    last = prompt + new_tokens
    stop = next((index for index in range(prompt, len(tokens)) if tokens[index] in stops), len(tokens))
    end = max(prompt, min(stop, last))
    return Trace(kind, list(tokens[: stop + 1]), prompt, end, drafts[: end - prompt])
