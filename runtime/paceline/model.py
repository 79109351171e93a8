"""The Python API: load a bundle, generate text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack
from warnings import warn

from tokenizers import Tokenizer

from paceline.backends import open_backend
from paceline.backends.base import Backend
from paceline.backends.names import LITERT
from paceline.bundle import Bundle
from paceline.chat_template import ChatTemplate
from paceline.draft_length import Adaptive, AdaptiveLimits, CallCosts, DraftLength, Fixed, Off
from paceline.drafter import Drafter
from paceline.errors import InputError, PacelineError
from paceline.generate import MAX_DRAFT_LENGTH, FinishReason, generate
from paceline.kv_cache import KVCache
from paceline.ngram import Lookup
from paceline.npu.placement import ON_CPU, Placement, longest_context, open_placed
from paceline.rules import Rule, rule_for
from paceline.sampling import GREEDY, Sampling, checkpoint_sampling
from paceline.settings import GenerateOptions, Settings
from paceline.stats import Stats
from paceline.target import Target
from paceline.text import StopTexts, TextStream, Thoughts, encode, load_tokenizer

DEFAULT_CAPACITY = 4096
Way = int | AdaptiveLimits | None  # so many drafts in each round, or as many as pay; None is within the manifest's limits


@dataclass(frozen=True)
class Piece:
    """One emitted token and the text it completes (often all of it, sometimes none).

    Attributes:
        thought: whether it belongs to what the model thinks before it answers; the tokens around a thought do too.
        finish_reason, stats: set on the last piece.
    """

    token: int
    text: str
    from_draft: bool
    thought: bool
    finish_reason: FinishReason | None
    stats: Stats | None


class Model:
    """A loaded bundle. Weights are shared by all generations, each of which has a KV cache of its own.

    Generations take turns: a model serves one thread at a time, and only `cancel` may be used from another one. As a context
    manager it is closed at the end.

    Attributes:
        threads: as they were asked for.
        sampling: what the checkpoint's generation_config.json asks for.
    """

    def __init__(
        self,
        bundle: Bundle,
        tokenizer: Tokenizer,
        backend: Backend,
        capacity: int,
        threads: int | None = None,
        sampling: Sampling = GREEDY,
    ):
        self.bundle, self.manifest, self.tokenizer = bundle, bundle.manifest, tokenizer
        self._backend: Backend | None = backend
        self.capacity, self.threads, self.sampling = capacity, threads, sampling
        self._costs: CallCosts | None = None
        self._idle: list[tuple[Target, Drafter]] = []

    @property
    def backend(self) -> Backend:
        """What runs the graphs. Raises PacelineError once the model is closed."""
        if self._backend is None:
            raise PacelineError("the model is closed; load the bundle again.")
        return self._backend

    @cached_property
    def template(self) -> ChatTemplate:
        """The bundle's chat template. Raises InputError where it has none, or one that cannot be read."""
        return ChatTemplate.load(self.bundle.folder, self.manifest, self.tokenizer)

    def close(self) -> None:
        """Frees the graphs and all caches, once the generations have ended that still use them."""
        self._backend = None
        self._idle.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def encode(self, prompt: str) -> list[int]:
        """The prompt's tokens with exactly one <bos> in front. Raises InputError as `paceline.text.encode`."""
        tokens = encode(self.tokenizer, prompt)
        bos = self.manifest.bos_id
        while len(tokens) > 1 and tokens[0] == tokens[1] == bos:  # the prompt spelled out its own
            tokens.pop(0)
        return tokens if bos is None or tokens[:1] == [bos] else [bos, *tokens]

    def prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt: those of `encode`, or given ones as they are.

        Raises:
            InputError: there is none, or one is not in the vocabulary.
        """
        tokens = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise InputError("the prompt has no tokens; give at least one.")
        for token in tokens:
            if not 0 <= token < self.manifest.vocab_size:
                most = self.manifest.vocab_size - 1
                raise InputError(f"prompt token {token} is not in the vocabulary; ids go from 0 to {most}.")
        return tokens

    def generate(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Iterator[Piece]:
        """Continues a prompt. What is written, or how it is distributed, does not depend on the draft length.

        Args:
            prompt: text, or tokens taken as they are.
            options: see `GenerateOptions`.

        Returns:
            an iterator of pieces. Leaving it early is allowed, and ends the generation.

        Raises:
            InputError: an argument is out of range.
            CapacityError: the prompt does not fit; raised before any graph runs.
            CancelledError: `cancel` was set before the first token; later the last piece says so.
        """
        settings = Settings(**options)
        tokens = self.prompt_tokens(prompt)
        rule = rule_for(settings.sampling, settings.drafting, self.manifest.vocab_size, tokens)
        return self._in_a_new_sequence(tokens, rule, settings)

    def generate_many(
        self, prompts: Sequence[str | Sequence[int]], *, at_once: int = 4, **options: Unpack[GenerateOptions]
    ) -> Iterator[tuple[int, Piece]]:
        """Continues several prompts in turns, each with a KV cache of its own; the texts are those of one by one.

        Args:
            prompts: each as for `generate`.
            at_once: how many are begun at a time; each takes the memory of a cache.
            options: of all of them.

        Returns:
            an iterator of pieces, each with the index of its prompt.

        Raises:
            InputError, CapacityError: as `generate`.
        """
        if at_once < 1:
            raise InputError(f"at_once is {at_once}; give 1 or more.")
        generations = [(index, self.generate(prompt, **options)) for index, prompt in enumerate(prompts)]
        return _in_turns(generations, at_once)

    def _in_a_new_sequence(self, tokens: list[int], rule: Rule, settings: Settings) -> Iterator[Piece]:
        with self.sequence() as (target, drafter):
            yield from self.continue_sequence(target, drafter, tokens, rule, Lookup(tokens), settings)

    def continue_sequence(
        self, target: Target, drafter: Drafter, tokens: list[int], rule: Rule, lookup: Lookup, settings: Settings
    ) -> Iterator[Piece]:
        """Generates behind the rows that a sequence holds.

        Args:
            tokens: that follow these rows, at least one.
            rule, lookup: those of all the text so far, `tokens` included.
        """
        stats, text, stops = Stats(), TextStream(self.tokenizer), StopTexts(settings.stop)
        thoughts = Thoughts(self.tokenizer)
        emitted = generate(
            target,
            drafter,
            tokens,
            rule=rule,
            draft_length=self.draft_length(settings.draft_length),
            max_new_tokens=settings.max_new_tokens,
            stop_ids=frozenset(self.manifest.stop_ids),
            stats=stats,
            lookup=lookup,
            cancel=settings.cancel,
        )
        for each in emitted:
            reason = each.finish_reason
            completed, thought = thoughts.push(each.token, text.push(each.token) + (text.finish() if reason else ""))
            piece, stopped = stops.push(completed)
            if stopped:
                reason = FinishReason.STOP
            elif reason:
                piece += stops.finish()
            elif settings.cancel and settings.cancel.is_set():
                reason, piece = FinishReason.CANCELLED, piece + text.finish() + stops.finish()
            yield Piece(each.token, piece, each.from_draft, thought, reason, stats if reason else None)
            if reason:
                return

    def draft_length(self, wanted: Way) -> DraftLength:
        """The policy of one generation; all but a number is adaptive, for which calls are timed once on this device."""
        if isinstance(wanted, int):
            return Fixed(wanted)
        if self.capacity < MAX_DRAFT_LENGTH + 2:  # no room to measure in
            return Off()
        if self._costs is None:
            from paceline.calibration import calibrated  # it drives a model itself

            self._costs = calibrated(self, self.threads)
        return Adaptive(self._costs, wanted or self.manifest.adaptive)

    @contextmanager
    def sequence(self) -> Iterator[tuple[Target, Drafter]]:
        """The pair on an empty cache of its own, for whoever drives `paceline.generate.generate` or single calls.

        Cache and bound graphs are kept afterwards, so that the next sequence need not bind again.
        """
        backend = self.backend
        if self._idle:
            sequence = self._idle.pop()
        else:
            cache = KVCache(self.manifest.caches, self.manifest.window, self.capacity)
            graphs = backend.bind(cache)
            sequence = (Target(graphs, cache), Drafter(graphs))
        sequence[0].cache.reset()
        try:
            yield sequence
        finally:
            if self._backend:
                self._idle.append(sequence)


def _in_turns(generations: Sequence[tuple[int, Iterator[Piece]]], at_once: int) -> Iterator[tuple[int, Piece]]:
    waiting, active = deque(generations), deque[tuple[int, Iterator[Piece]]]()
    while waiting or active:
        while waiting and len(active) < at_once:
            active.append(waiting.popleft())
        index, pieces = active.popleft()
        for piece in islice(pieces, 1):
            yield index, piece
            active.append((index, pieces))


def load(
    bundle: str | Path | Bundle,
    *,
    backend: str | None = None,
    threads: int | None = None,
    capacity: int | None = None,
    weight_cache: bool = True,
    placement: Placement = ON_CPU,
    note: Callable[[str], None] = warn,
) -> Model:
    """Opens a bundle and loads its graphs.

    Args:
        bundle: the bundle's directory, or what `Bundle.open` made of it.
        backend: "litert" or "onnxruntime"; None takes litert where the bundle has graphs for it.
        threads: for the target's graph; None takes the machine's cores.
        capacity: KV rows, prompt and output together; None takes 4096, or the model's own limit if that is smaller.
        weight_cache: whether litert may keep packed weights in the user's cache directory.
        placement: target, drafter or both on an NPU, explicitly.
        note: called with a sentence when the CPU takes over for an NPU, which `placement` must allow.

    Raises:
        InputError: no bundle, or an altered or truncated one; or an argument is out of range.
    """
    opened = bundle if isinstance(bundle, Bundle) else Bundle.open(Path(bundle))
    most = opened.manifest.max_positions
    if placement.on_npu:
        if backend not in (None, LITERT):
            raise InputError(
                f"backend is {backend!r}, and what does not run on an NPU runs on {LITERT}; leave the backend away."
            )
        most = min(most, longest_context(opened))
    capacity = min(DEFAULT_CAPACITY, most) if capacity is None else capacity
    if not 1 <= capacity <= most:
        raise InputError(f"capacity is {capacity}; this model allows 1 to {most}.")
    if threads is not None and threads < 1:
        raise InputError(f"threads is {threads}; give 1 or more.")
    runner = open_placed(opened, placement, threads, weight_cache, note) if placement.on_npu else None
    if runner is None:
        runner = open_backend(opened, backend, threads, weight_cache)
    return Model(opened, load_tokenizer(opened.folder), runner, capacity, threads, checkpoint_sampling(opened))
