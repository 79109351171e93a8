"""The Python API: load a bundle, generate text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from paceline.backends import open_backend
from paceline.backends.base import Backend
from paceline.bundle import Bundle, Manifest
from paceline.drafter import Drafter
from paceline.errors import InputError
from paceline.generate import MAX_DRAFT_LENGTH, FinishReason, generate
from paceline.kv_cache import KVCache
from paceline.stats import Stats
from paceline.target import Target
from paceline.text import TextStream, load_tokenizer

DEFAULT_CAPACITY = 4096
DEFAULT_DRAFT_LENGTH = 3


@dataclass(frozen=True)
class Piece:
    """One emitted token and the text it completes (often all of it, sometimes none)."""

    token: int
    text: str
    from_draft: bool
    finish_reason: FinishReason | None  # set on the last piece
    stats: Stats | None  # set on the last piece


class Model:
    """A loaded bundle. Weights are shared by all generations, each of which has a KV cache of its own."""

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer, backend: Backend, capacity: int):
        self.manifest, self.tokenizer, self.backend, self.capacity = manifest, tokenizer, backend, capacity
        self._idle: list[tuple[Target, Drafter]] = []

    def encode(self, prompt: str) -> list[int]:
        """The prompt's tokens with exactly one <bos> in front."""
        tokens: list[int] = self.tokenizer.encode(prompt).ids
        bos = self.manifest.bos_id
        while len(tokens) > 1 and tokens[0] == tokens[1] == bos:  # the prompt spelled out its own
            tokens.pop(0)
        return tokens if bos is None or tokens[:1] == [bos] else [bos, *tokens]

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int | None = None,
        draft_length: int = DEFAULT_DRAFT_LENGTH,
    ) -> Iterator[Piece]:
        """Continues a prompt greedily. The text does not depend on the draft length.

        Args:
            prompt: text, or tokens taken as they are.
            max_new_tokens: at least 1; None is no limit but the capacity.
            draft_length: drafts a round, 0 to 7; 0 is plain decoding.

        Returns:
            an iterator of pieces. Leaving it early is allowed, and ends the generation.

        Raises:
            InputError: an argument is out of range.
            CapacityError: the prompt does not fit; raised before any graph runs.
        """
        tokens = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not 0 <= draft_length <= MAX_DRAFT_LENGTH:
            raise InputError(f"draft length is {draft_length}; allowed are 0 (off) to {MAX_DRAFT_LENGTH}.")
        if max_new_tokens is not None and max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {max_new_tokens}; give 1 or more.")
        if not tokens:
            raise InputError("the prompt has no tokens; give at least one.")
        for token in tokens:
            if not 0 <= token < self.manifest.vocab_size:
                most = self.manifest.vocab_size - 1
                raise InputError(f"prompt token {token} is not in the vocabulary; ids go from 0 to {most}.")
        return self._pieces(tokens, max_new_tokens, draft_length)

    @contextmanager
    def sequence(self) -> Iterator[tuple[Target, Drafter]]:
        """The pair on an empty cache of its own, for whoever drives `paceline.generate.generate` or single calls.

        Cache and bound graphs are kept afterwards, so that the next sequence need not bind again.
        """
        if self._idle:
            sequence = self._idle.pop()
        else:
            cache = KVCache(self.manifest.caches, self.manifest.window, self.capacity)
            graphs = self.backend.bind(cache)
            sequence = (Target(graphs, cache), Drafter(graphs))
        sequence[0].cache.reset()
        try:
            yield sequence
        finally:
            self._idle.append(sequence)

    def _pieces(self, tokens: list[int], max_new_tokens: int | None, draft_length: int) -> Iterator[Piece]:
        stats, text = Stats(), TextStream(self.tokenizer)
        with self.sequence() as (target, drafter):
            for emitted in generate(
                target,
                drafter,
                tokens,
                draft_length=draft_length,
                max_new_tokens=max_new_tokens,
                stop_ids=frozenset(self.manifest.stop_ids),
                stats=stats,
            ):
                piece, last = text.push(emitted.token), emitted.finish_reason is not None
                piece += text.finish() if last else ""
                yield Piece(emitted.token, piece, emitted.from_draft, emitted.finish_reason, stats if last else None)


def load(
    bundle: str | Path,
    *,
    backend: str | None = None,
    threads: int | None = None,
    capacity: int | None = None,
    weight_cache: bool = True,
) -> Model:
    """Opens a bundle and loads its graphs.

    Args:
        bundle: the bundle's directory.
        backend: "litert" or "onnxruntime"; None takes litert where the bundle has graphs for it.
        threads: for the target's graph; None takes the machine's cores.
        capacity: KV rows, prompt and output together; None takes 4096, or the model's own limit if that is smaller.
        weight_cache: whether litert may keep packed weights in the user's cache directory.

    Raises:
        InputError: no bundle, or an altered or truncated one; or an argument is out of range.
    """
    opened = Bundle.open(Path(bundle))
    most = opened.manifest.max_positions
    capacity = min(DEFAULT_CAPACITY, most) if capacity is None else capacity
    if not 1 <= capacity <= most:
        raise InputError(f"capacity is {capacity}; this model allows 1 to {most}.")
    if threads is not None and threads < 1:
        raise InputError(f"threads is {threads}; give 1 or more.")
    runner = open_backend(opened, backend, threads, weight_cache)
    return Model(opened.manifest, load_tokenizer(opened.folder), runner, capacity)
