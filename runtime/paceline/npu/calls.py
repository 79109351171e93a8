"""The pair's calls on a neural processor: inputs as integers, a run, and what came out as numbers again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import signatures
from paceline.backends.base import DraftStep, Verified
from paceline.backends.masks import path_of, seen_rows
from paceline.drafts import RowPath
from paceline.kv_cache import KVCache, aligned_zeros
from paceline.npu.profile import NpuProfile
from paceline.npu.rows import NpuRows
from paceline.npu.runners import Runner, TokenTables
from paceline.npu.scales import least
from paceline.npu.signatures import COSINES, MASK, SINES, TOKEN, draft_name, new_slots, of_step, signature_name
from paceline.signatures import Signature


class StaticCall:
    """A signature on memory of its own and the KV tensors.

    Attributes:
        arrays: inputs and outputs by name, the integers that the graph sees.
    """

    def __init__(self, runner: Runner, profile: NpuProfile, part: str, name: str, signature: Signature, kv: Mapping[str, Any]):
        self.profile, self.part = profile, part
        ports = (*signature.inputs, *signature.outputs)
        self.arrays = {p.name: kv[p.name] if p.name in kv else aligned_zeros(p.sizes, p.dtype) for p in ports}
        self.run = runner.bind(part, name, self.arrays)

    def put(self, name: str, numbers: NDArray[np.float32]) -> None:
        """Gives an input its numbers."""
        scale, array = self.profile.scale(self.part, name), self.arrays[name]
        array[:] = numbers if scale is None else scale.integers(numbers, self.profile.dtype)

    def numbers(self, name: str) -> NDArray[np.float32]:
        """What an output says."""
        scale, array = self.profile.scale(self.part, name), self.arrays[name]
        return array if scale is None else scale.numbers(array)

    def rotate(self, positions: NDArray[np.int64]) -> None:
        """Gives the call its positions [T]."""
        for kind, rotation in self.profile.rotations.items():
            if COSINES[kind] in self.arrays:
                cosines, sines = rotation.tables(positions)
                self.put(COSINES[kind], cosines[None, :, None])
                self.put(SINES[kind], sines[None, :, None])

    def see(self, cache: KVCache, row: int, committed: int, path: RowPath = ()) -> None:
        """Lets a row see the cache rows below `committed` and new rows, a path; of a window the newest."""
        for kind, name in MASK.items():
            if name not in self.arrays:
                continue
            line = self.arrays[name][0, 0, row]
            base, first, seen = seen_rows(cache, kind, committed, path)
            line[:], shown = self._mask_values(name)
            line[first - base : committed - base] = shown
            old = line.shape[0] - self._added
            line[[old + each for each in seen]] = shown

    @property
    def _added(self) -> int:
        """New rows that a mask has room for."""
        return 0 if self.part == "drafter" else new_slots(self.arrays[signatures.EMBEDDINGS].shape[1])

    def _mask_values(self, name: str) -> tuple[Any, Any]:
        """Of slots that a row does not see, and of those that it does."""
        scale = self.profile.scale(self.part, name)
        return (signatures.MASKED, 0.0) if scale is None else (least(self.profile.dtype), scale.zero_point)


class NpuTarget:
    """The target's calls on one cache."""

    def __init__(
        self, runner: Runner, profile: NpuProfile, listed: Mapping[str, Signature], rows: NpuRows, tables: TokenTables
    ):
        self.runner, self.profile, self.listed, self.rows, self.tables = runner, profile, listed, rows, tables
        self._calls: dict[tuple[int, int], StaticCall] = {}  # context and rows

    def prefill(self, tokens: NDArray[np.int64]) -> None:
        """See `Graphs.prefill`."""
        first, most = self.rows.cache.length, self.profile.rows[-1]
        for start, count in self.rows.pieces(first, len(tokens)):
            piece = tokens[start - first : start - first + count]
            for offset in range(0, count, most):
                self._run(piece[offset : offset + most], start + offset, ())

    def verify(self, tokens: NDArray[np.int64], paths: Sequence[RowPath]) -> Verified:
        """See `Graphs.verify`. Where larger caches begin in its midst it is two calls; paths then have to be plain."""
        first, found = self.rows.cache.length, []
        for start, count in self.rows.pieces(first, len(tokens)):
            call = self._run(tokens[start - first : start - first + count], start, paths)
            found.append([call.numbers(name)[0, :count] for name in (signatures.LOGITS, signatures.ACTIVATIONS)])
        return Verified(*(rows[0] if len(rows) == 1 else np.concatenate(rows) for rows in zip(*found, strict=True)))

    def _run(self, tokens: NDArray[np.int64], start: int, paths: Sequence[RowPath]) -> StaticCall:
        cache, count = self.rows.cache, len(tokens)
        rows = min(size for size in self.profile.rows if size >= count)
        key = self.rows.context, rows
        if key not in self._calls:
            name = signature_name(rows, self.rows.context, self.profile.contexts)
            self._calls[key] = StaticCall(self.runner, self.profile, "target", name, self.listed[name], self.rows.arrays)
        call = self._calls[key]
        for name, embedded in self.tables.look_up(tokens, rows).items():
            call.put(name, embedded)
        seen = [path_of(row, paths) for row in range(rows)]
        call.rotate(np.array([start + len(path) - 1 for path in seen]))
        for row, path in enumerate(seen):
            call.see(cache, row, start, path)
        call.run()
        self.rows.write(call.arrays, start, count)
        return call


class NpuDrafter:
    """The drafter's calls on one cache.

    Where there is an unrolled signature, the first step of a round runs it, and the steps that follow are answered by what it
    has computed, as long as they go on with its own tokens and states; others are calls of one step.
    """

    def __init__(
        self,
        runner: Runner,
        profile: NpuProfile,
        listed: Mapping[str, Signature],
        rows: NpuRows,
        tables: TokenTables,
        offset: int,
    ):
        self.runner, self.profile, self.listed, self.rows = runner, profile, listed, rows
        self.tables, self.offset = tables, offset
        self._calls: dict[tuple[int, int], StaticCall] = {}  # context and steps
        self._shown: dict[tuple[int, int], tuple[int, int]] = {}  # the same -> where a call's masks were made
        self._ahead: list[DraftStep] = []  # the last step that was given out, and those behind it

    def draft(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        """See `Graphs.draft`."""
        self.rows.at(self.rows.cache.length)
        if self._ahead:
            last, *later = self._ahead
            if later and token == last.token and hidden is last.state:
                self._ahead = later
                return later[0]
        self._ahead = self._steps(token, hidden)
        return self._ahead[0]

    def _steps(self, token: int, hidden: NDArray[np.float32]) -> list[DraftStep]:
        begun = self._place in {self._shown.get((self.rows.context, steps)) for steps in (1, self._most)}
        steps = 1 if begun else self._most
        call = self._prepared(steps)
        if steps == 1:
            embedded = self.tables.look_up(np.array([token]), 1)[signatures.EMBEDDINGS]
            call.put(signatures.ACTIVATIONS, np.concatenate([embedded, hidden[None, None]], axis=2))
        else:
            call.arrays[TOKEN][0] = token
            call.put(signatures.ACTIVATIONS, hidden[None, None])
        call.run()
        return [_step(call, step) for step in range(steps)]

    @property
    def _most(self) -> int:
        return self.profile.draft_steps[-1]

    @property
    def _place(self) -> tuple[int, int]:
        """Where the committed rows are; it changes from round to round."""
        return self.rows.cache.length, self.rows.cache.local_start

    def _prepared(self, steps: int) -> StaticCall:
        cache, key = self.rows.cache, (self.rows.context, steps)
        if key not in self._calls:
            name = draft_name(steps, self.rows.context, self.profile.contexts)
            self._calls[key] = StaticCall(self.runner, self.profile, "drafter", name, self.listed[name], self.rows.arrays)
        call = self._calls[key]
        if self._shown.get(key) != self._place:
            # Constant in a round: every step stands where the pending token will be written.
            call.rotate(np.array([cache.length + self.offset]))
            call.see(cache, 0, cache.length)
            self._shown[key] = self._place
        return call


def _step(call: StaticCall, step: int) -> DraftStep:
    """What a call says of one of its steps."""
    logits = call.numbers(of_step(signatures.LOGITS, step)).reshape(-1)
    scored = call.arrays.get(of_step(signatures.DRAFT_SCORED, step))
    best = int(logits.argmax())
    largest = float(logits[best])
    logsumexp = largest + float(np.log(np.exp(logits - largest).sum()))
    state = call.numbers(of_step(signatures.PROJECTED_ACTIVATIONS, step))[0, 0]
    tokens = np.arange(len(logits)) if scored is None else scored
    return DraftStep(int(tokens[best]), largest, logsumexp, state, logits, tokens)
