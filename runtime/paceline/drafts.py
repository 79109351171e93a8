"""What a round proposes: drafts in a row, or a tree of them whose branches share their beginnings.

In the target's pass, row 0 is the pending token and row i is draft i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

RowPath = Sequence[int]  # rows, each behind the one before it


@dataclass(frozen=True)
class Drafts:
    """Proposed tokens.

    Attributes:
        tokens: of rows 1, 2, ..
        parents: of each the row that it follows, which comes before it.
    """

    tokens: Sequence[int]
    parents: Sequence[int]

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Drafts:
        """Each follows the one before it."""
        return cls(tokens, range(len(tokens)))

    @classmethod
    def tree(cls, nodes: Mapping[tuple[int, ...], int]) -> Drafts:
        """A tree of likely continuations, the likeliest path in the first rows.

        Args:
            nodes: place -> token. (0,) is the likeliest first token, (1,) the next likely one, (1, 0) the likeliest after
                that; the place that another one continues is there too.
        """
        places = sorted(nodes)  # so that a branch stays together, and follows all of a likelier one
        rows = {(): 0} | {place: row for row, place in enumerate(places, 1)}
        return cls([nodes[place] for place in places], [rows[place[:-1]] for place in places])

    @cached_property
    def paths(self) -> Sequence[RowPath]:
        """For each row the rows that it continues and itself; empty for a chain, where these are all the rows before."""
        if list(self.parents) == list(range(len(self.tokens))):
            return ()
        paths: list[tuple[int, ...]] = [(0,)]
        for row, parent in enumerate(self.parents, 1):
            paths.append((*paths[parent], row))
        return paths

    @property
    def depth(self) -> int:
        """Tokens of the longest path."""
        return max(map(len, self.paths), default=len(self.tokens) + 1) - 1

    def at(self, rows: Sequence[int]) -> list[int]:
        """The tokens of some rows behind the first."""
        return [self.tokens[row - 1] for row in rows]

    def following(self, row: int, token: int) -> int | None:
        """The row of a token behind a row; None where it was not proposed."""
        for draft, (proposed, parent) in enumerate(zip(self.tokens, self.parents, strict=True), 1):
            if parent == row and proposed == token:
                return draft
        return None


NOTHING = Drafts.chain(())
