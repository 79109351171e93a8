"""Prompt lookup: drafts without a drafter, copied from where the text's last tokens occurred before.

Source: A. Saxena, "Prompt Lookup Decoding" (2023). It pays where the output repeats the input: rewriting, code, summaries.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST, SHORTEST = 4, 2  # tokens that must agree; a single one agrees by chance too often


class Lookup:
    """Proposes what followed the latest earlier occurrence of the longest n-gram that ends the text.

    A token costs the same at any length of text, and about half a kilobyte, because the index of n-grams grows with it.
    """

    def __init__(self, tokens: Iterable[int] = ()):
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its latest occurrence
        self._start: int | None = None  # of what would be proposed
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        """The text's next token, of the prompt or of the output."""
        self._tokens.append(token)
        length = len(self._tokens)
        self._start = None
        for size in range(SHORTEST, min(LONGEST, length) + 1):  # the longest that is known comes last
            gram = tuple(self._tokens[-size:])
            self._start = self._after.get(gram, self._start)
            self._after[gram] = length

    def propose(self, most: int) -> list[int]:
        """Up to `most` tokens to follow the text: `most` of them, or none where its last tokens are new.

        Where the earlier occurrence is so near that its continuation reaches the end of the text, the text is taken to
        go on repeating itself.
        """
        if self._start is None:
            return []
        period = len(self._tokens) - self._start
        return [self._tokens[self._start + index % period] for index in range(most)]
