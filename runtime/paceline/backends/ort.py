"""The onnxruntime backend: KV tensors are bound to the cache's own memory, as input and as output of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from paceline import signatures
from paceline.backends.base import DraftStep, Verified, identity
from paceline.backends.masks import Masks, path_of
from paceline.backends.names import ONNXRUNTIME
from paceline.backends.ports import require_signature
from paceline.bundle import Bundle
from paceline.drafts import RowPath
from paceline.errors import InputError
from paceline.kv_cache import KVCache
from paceline.manifest import Manifest
from paceline.signatures import MAIN, VARIES, CacheKind, Port, in_steps

# Kernels of a matrix product take rows in pairs, or the last of an odd number goes through others, which sum in another order
# (every single row, and on CPUs with AVX-512 each last one). Rows in pairs are all alike, bit for bit, so a call has an even
# number of them, the last one of which nobody may read.
ROWS_TOGETHER = 2
TYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}
DRAFTER_THREADS = 1  # a step is too small to share, and its spinning workers would slow the target's


class OrtBackend:
    """Sessions of both graphs, without any state of a sequence."""

    name = ONNXRUNTIME

    def __init__(self, bundle: Bundle, threads: int | None):
        """Loads the graphs.

        Args:
            bundle: an opened bundle that holds ONNX graphs.
            threads: for the target; None lets onnxruntime take the physical cores.

        Raises:
            InputError: the bundle has no ONNX graphs, onnxruntime cannot load them, or they are not those of the manifest.
        """
        graphs = bundle.manifest.graphs.get(ONNXRUNTIME)
        if graphs is None:
            raise InputError(f"{bundle.folder} has no ONNX graphs; export it with --format onnx.")
        self.manifest = bundle.manifest
        self.target = _session(bundle.folder / graphs.parts["target"], threads or 0)
        self.drafter = _session(bundle.folder / graphs.parts["drafter"], DRAFTER_THREADS)
        m = bundle.manifest
        target = signatures.onnx_target(m.caches, m.hidden_size, m.vocab_size)
        drafter = signatures.onnx_drafter(m.drafter_caches, m.hidden_size, m.scored_tokens, m.vocab_size)
        for part, session, wanted in (("target", self.target, target), ("drafter", self.drafter, drafter)):
            inputs, outputs = ([_port(each) for each in held] for held in (session.get_inputs(), session.get_outputs()))
            require_signature(bundle.folder / graphs.parts[part], MAIN, wanted, inputs, outputs)

    def bind(self, cache: KVCache) -> OrtGraphs:
        """See `Backend.bind`."""
        return OrtGraphs(self, cache)

    def embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32] | None:
        """See `Backend.embeddings`; the table is inside the graphs."""
        return None

    def describe(self) -> str:
        """See `Backend.describe`."""
        threads = self.target.get_session_options().intra_op_num_threads or "all"
        return f"onnxruntime {ort.__version__}, {', '.join(self.target.get_providers())}, {threads} threads"

    def identity(self, manifest: Manifest) -> dict[str, Any]:
        """See `Backend.identity`."""
        return identity(ONNXRUNTIME, "onnxruntime", manifest)


class OrtGraphs:
    """Both graphs on one cache; implements `Graphs`."""

    def __init__(self, backend: OrtBackend, cache: KVCache):
        self.backend, self.cache = backend, cache
        self._verify_calls: dict[int, _TargetCall] = {}
        self._drafter = _DrafterCall(backend, cache)

    def prefill(self, tokens: NDArray[np.int64]) -> None:
        """See `Graphs.prefill`."""
        _TargetCall(self.backend, self.cache, in_steps(len(tokens), ROWS_TOGETHER), emit=False).run(tokens)

    def verify(self, tokens: NDArray[np.int64], paths: Sequence[RowPath]) -> Verified:
        """See `Graphs.verify`. Bindings are kept, one for each number of rows."""
        rows = in_steps(len(tokens), ROWS_TOGETHER)
        if rows not in self._verify_calls:
            self._verify_calls[rows] = _TargetCall(self.backend, self.cache, rows, emit=True)
        call = self._verify_calls[rows]
        call.run(tokens, paths)
        return Verified(call.logits[: len(tokens)], call.activations[: len(tokens)])

    def draft(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        """See `Graphs.draft`."""
        return self._drafter.run(token, hidden)


class _TargetCall:
    """A binding of the target for T rows. Its small inputs are rewritten in place from call to call."""

    def __init__(self, backend: OrtBackend, cache: KVCache, count: int, emit: bool):
        manifest = backend.manifest
        self.cache, self.session = cache, backend.target
        self.io = self.session.io_binding()
        self.tokens, self.input_pos = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.starts = {kind: np.zeros(1, np.int64) for kind in dict.fromkeys(spec.kind for spec in cache.specs)}
        self.masks = Masks(cache, count)
        self.emit = np.array(emit)
        rows_out = count if emit else 0
        self.logits = np.zeros((rows_out, manifest.vocab_size), np.float32)
        self.activations = np.zeros((rows_out, manifest.hidden_size), np.float32)
        for name, array in (
            (signatures.TOKENS, self.tokens),
            (signatures.INPUT_POS, self.input_pos),
            (signatures.EMIT, self.emit),
            *((signatures.CACHE_START[kind], start) for kind, start in self.starts.items()),
        ):
            _bind(self.io.bind_input, name, array)
        for name, array in ((signatures.LOGITS, self.logits), (signatures.ACTIVATIONS, self.activations)):
            if emit:
                _bind(self.io.bind_output, name, array)
            else:  # no rows, and so no memory to bind
                self.io.bind_output(name, "cpu")

    def run(self, tokens: NDArray[np.int64], paths: Sequence[RowPath] = ()) -> None:
        length, count = self.cache.length, len(self.tokens)
        if self.masks.cover(length + count):
            self._bind_caches()
        self.tokens[: len(tokens)] = tokens
        for kind, start in self.starts.items():
            start[0] = length - (self.cache.local_start if kind is CacheKind.LOCAL else 0)
        for row in range(count):
            path = path_of(row, paths)
            self.input_pos[row] = length + len(path) - 1
            self.masks.show(row, length, path)
        self.session.run_with_iobinding(self.io)

    def _bind_caches(self) -> None:
        for kind in self.starts:
            mask = self.masks.arrays[kind]
            slots = mask.shape[3]
            _bind(self.io.bind_input, signatures.MASK[kind], mask.reshape(-1, 1, slots))
            for name, view in self.cache.heads(kind, slots).items():
                _bind(self.io.bind_input, name, view[0])
                _bind(self.io.bind_output, signatures.present(name), view[0])


class _DrafterCall:
    """The drafter's binding. Its views of the cache are bound again whenever the committed rows have changed."""

    def __init__(self, backend: OrtBackend, cache: KVCache):
        manifest = backend.manifest
        self.cache, self.session = cache, backend.drafter
        self.offset = manifest.draft_position_offset
        self.caches = manifest.drafter_caches
        self.io = self.session.io_binding()
        self.bound: tuple[int, int] | None = None
        self.token, self.input_pos = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.hidden = np.zeros((1, manifest.hidden_size), np.float32)
        self.state = np.zeros((1, manifest.hidden_size), np.float32)
        self.choice, self.logit, self.logsumexp = np.zeros(1, np.int64), np.zeros(1, np.float32), np.zeros(1, np.float32)
        _bind(self.io.bind_input, signatures.TOKEN, self.token)
        _bind(self.io.bind_input, signatures.ACTIVATIONS, self.hidden)
        _bind(self.io.bind_input, signatures.INPUT_POS, self.input_pos)
        _bind(self.io.bind_output, signatures.DRAFT_TOKEN, self.choice)
        _bind(self.io.bind_output, signatures.DRAFT_LOGIT, self.logit)
        _bind(self.io.bind_output, signatures.DRAFT_LOGSUMEXP, self.logsumexp)
        _bind(self.io.bind_output, signatures.PROJECTED_ACTIVATIONS, self.state)
        self.logits, self.scored = np.zeros(manifest.scored_tokens, np.float32), np.arange(manifest.scored_tokens)
        _bind(self.io.bind_output, signatures.DRAFT_LOGITS, self.logits)
        if manifest.scored_tokens < manifest.vocab_size:
            _bind(self.io.bind_output, signatures.DRAFT_SCORED, self.scored)

    def run(self, token: int, hidden: NDArray[np.float32]) -> DraftStep:
        cache = self.cache
        if self.bound != (cache.length, cache.local_start):
            for spec in self.caches:
                for name in (spec.key, spec.value):
                    for head, view in enumerate(spec.head_names(name)):
                        _bind(self.io.bind_input, view, cache.view(spec, name, head))
            self.bound = (cache.length, cache.local_start)
            # Constant in a round: every step stands where the pending token will be written.
            self.input_pos[0] = cache.length + self.offset
        self.token[0] = token
        self.hidden[0] = hidden
        self.session.run_with_iobinding(self.io)
        choice, logit, logsumexp = int(self.choice[0]), float(self.logit[0]), float(self.logsumexp[0])
        return DraftStep(choice, logit, logsumexp, self.state[0], self.logits, self.scored)


def _bind(bind: Callable[..., None], name: str, array: NDArray[Any]) -> None:
    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _port(held: ort.NodeArg) -> Port:
    """A graph's input or output; a size that varies has a name, or none."""
    return Port(held.name, TYPES.get(held.type, held.type), tuple(VARIES if size is None else size for size in held.shape))


def _session(file: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors are raised, the rest is noise to a user
    try:
        return ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        raise InputError(f"{file}: onnxruntime {ort.__version__} cannot load it ({error}); export the bundle again.") from None
