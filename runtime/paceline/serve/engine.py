"""One worker thread that runs generations one after another, and the bounded queue in front of it.

Everything but the generations themselves happens on the server's event loop, so that nothing needs a lock.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Event
from types import TracebackType
from typing import Self

from paceline.errors import CancelledError
from paceline.generate import FinishReason
from paceline.kept_sequence import KeptSequence
from paceline.model import Model, Piece
from paceline.settings import Settings


class QueueFullError(Exception):
    """All places are taken."""


class StoppedError(Exception):
    """A generation was cancelled, because its client has gone or the server ends."""


class Generation:
    """A request's prompt, its place in the queue, and an iterator over what is written for it.

    Iterating raises what the generation raised, or StoppedError when it was cancelled.
    """

    def __init__(self, tokens: list[int], settings: Settings):
        self.tokens, self.cancel = tokens, Event()
        self.settings = replace(settings, cancel=self.cancel)
        self.loop = asyncio.get_running_loop()
        # Unbounded, because the worker must not wait for a slow reader: the KV cache's capacity is the bound.
        self.outcomes: asyncio.Queue[Piece | Exception] = asyncio.Queue()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        if self._ended:
            raise StopAsyncIteration
        outcome = await self.outcomes.get()
        if isinstance(outcome, Exception):
            raise outcome
        if outcome.finish_reason is FinishReason.CANCELLED:
            raise StoppedError
        self._ended = outcome.finish_reason is not None
        return outcome


class Engine:
    """Serves one model, whose sequence it keeps from one generation to the next. As a context manager it is open inside.

    Args:
        places: generations that may wait while one runs.
    """

    def __init__(self, model: Model, places: int):
        self.model, self.places = model, places
        self._sequence = KeptSequence(model)
        self._worker = ThreadPoolExecutor(1, "paceline")
        self._pending: dict[Generation, Future[None]] = {}  # the running one and those that wait
        self._stopping = False

    def __enter__(self) -> Self:
        self._worker.submit(self.model.draft_length, None).result()  # times calls now instead of at the first request
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._worker.shutdown()
        self._sequence.close()

    @property
    def busy(self) -> bool:
        """Whether a generation runs."""
        return any(future.running() for future in self._pending.values())

    @property
    def waiting(self) -> int:
        """Generations that have not begun."""
        return len(self._pending) - self.busy

    def submit(self, tokens: list[int], settings: Settings) -> Generation:
        """Queues a generation.

        Raises:
            QueueFullError: there is no place.
            StoppedError: the server ends.
        """
        if self._stopping:
            raise StoppedError
        if len(self._pending) > self.places:
            raise QueueFullError
        generation = Generation(tokens, settings)
        self._pending[generation] = self._worker.submit(self._work, generation)
        return generation

    def cancel(self, generation: Generation) -> None:
        """Ends a generation after its next token or chunk of the prompt, or takes it out of the queue."""
        generation.cancel.set()
        if generation in self._pending and self._pending[generation].cancel():
            self._finish(generation, StoppedError())

    def stop(self) -> None:
        """Cancels all generations and takes no more."""
        self._stopping = True
        for generation in list(self._pending):
            self.cancel(generation)

    def _work(self, generation: Generation) -> None:
        with suppress(RuntimeError):  # the event loop was closed in the midst of it: nobody listens
            tell = generation.loop.call_soon_threadsafe
            try:
                for piece in self._sequence.continue_with(generation.tokens, generation.settings):
                    if piece.finish_reason is None:
                        tell(generation.outcomes.put_nowait, piece)
                end: Piece | Exception = piece
            except CancelledError:
                end = StoppedError()
            except Exception as error:  # of any kind: the request fails, and the server goes on
                end = error
            tell(self._finish, generation, end)  # the place is free before the client knows of the end

    def _finish(self, generation: Generation, end: Piece | Exception) -> None:
        del self._pending[generation]
        generation.outcomes.put_nowait(end)
