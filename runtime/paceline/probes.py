"""Why a bundle drafts badly: each probe is an experiment that tells one way of wiring a pair wrongly from all others.

Some of these faults leave acceptance nearly as it is, so most probes look at numbers and not at texts. They raise FailedError
with the fault's name, and SkippedError where there is nothing to try.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from paceline.checks import FailedError, SkippedError, Trial, acceptance
from paceline.costs import SCALE, pretend_context
from paceline.drafter import Drafter
from paceline.kv_cache import KVCache
from paceline.model import Model
from paceline.prompts import PROMPTS
from paceline.signatures import CacheKind, CacheSpec

CONTEXT = 40  # rows, where a probe needs no particular number
PAST_THE_WINDOW = 20  # rows that have left the window but not the local cache
# Rounding of int4 weights and int8 activations stays far below; a hidden state of another place is nowhere near.
SAME_LOGITS, SCALES_AGREE = 0.25, 0.2
SMALL_LOGIT = 5.0  # where a soft cap of 30 changes less than 1 %
FLOAT16_BITS, BFLOAT16_BITS = 13, 16  # of a float32 mantissa that are zero in a number of these
EIGHT_BITS = 127


def trials(model: Model) -> list[Trial]:
    """All probes of a model, by the name of what they look at."""
    return [
        ("vocabulary", partial(vocabulary, model)),
        ("layers that are read", partial(layers, model)),
        ("KV rows that are read", partial(visible_rows, model)),
        ("rows that are not committed", partial(stale_rows, model)),
        ("precision of KV rows", partial(precision, model)),
        ("position in a round", partial(position, model)),
        ("hidden state and embedding", partial(hidden_state, model)),
        ("acceptance", partial(fit, model)),
    ]


def vocabulary(model: Model) -> str:
    """Tokenizer and manifest speak of the same tokens, and a prompt begins with one <bos>."""
    manifest, tokenizer = model.manifest, model.tokenizer
    size = tokenizer.get_vocab_size()
    if size > manifest.vocab_size:
        raise FailedError(
            f"vocabulary mismatch: the tokenizer has {size:,} tokens, the model {manifest.vocab_size:,}; it is another model's."
        )
    bos = tokenizer.token_to_id("<bos>")
    if bos is not None and bos != manifest.bos_id:
        raise FailedError(f"bos mismatch: <bos> is {bos} to the tokenizer and {manifest.bos_id} to the manifest.")
    for token in manifest.stop_ids:
        if tokenizer.id_to_token(token) is None:
            raise FailedError(f"vocabulary mismatch: the stop token {token} is not in the tokenizer.")
    if manifest.bos_id is not None and model.encode("a").count(manifest.bos_id) != 1:
        raise FailedError("bos mismatch: a prompt does not begin with one <bos>.")
    stops = ", ".join(str(tokenizer.id_to_token(token)) for token in manifest.stop_ids)
    return f"{size:,} tokens of {manifest.vocab_size:,}, <bos> is {manifest.bos_id}, texts end with {stops}"


def layers(model: Model) -> str:
    """A drafter reads the rows of the last local and of the last full layer that own some."""
    manifest = model.manifest
    last = {spec.kind: spec.layer for spec in manifest.caches}  # the later one stays
    wanted = tuple(sorted(last.values()))
    if tuple(sorted(manifest.drafter_layers)) != wanted:
        raise FailedError(
            f"wrong KV binding: the drafter reads layers {list(manifest.drafter_layers)}, and its target shares the rows of "
            f"{list(wanted)}."
        )
    return f"the drafter reads layers {', '.join(map(str, wanted))}: the last of each kind that owns KV rows"


def visible_rows(model: Model) -> str:
    """What a drafter sees: not a local layer's rows that have left the window, and all rows of a full one."""
    window = model.manifest.window
    context = window + PAST_THE_WINDOW
    if context > model.capacity:
        raise SkippedError(f"the window has {window} rows and the KV cache {model.capacity}; give --capacity {context} or more")
    with model.sequence() as (target, drafter):
        pretend_context(target, context, np.random.default_rng(0))
        before = _draft(model, drafter)
        for spec in model.manifest.drafter_caches:
            seen = not np.array_equal(before, _with_changed_row(target.cache, spec, partial(_draft, model, drafter)))
            if seen and spec.kind is CacheKind.LOCAL:
                raise FailedError(
                    f"local and full KV swapped: the drafter sees a row of local layer {spec.layer} that has left the window."
                )
            if not seen and spec.kind is CacheKind.FULL:
                raise FailedError(
                    f"local and full KV swapped: the drafter does not see the first row of full layer {spec.layer}."
                )
    return f"behind {context} rows the drafter sees {window} of its local layer and all of its full one"


def stale_rows(model: Model) -> str:
    """What rejected drafts leave behind is seen by nobody."""
    with model.sequence() as (target, drafter):
        pretend_context(target, CONTEXT, np.random.default_rng(0))
        found = []
        for filled in (0.0, 3.0):
            _fill_behind(target.cache, CONTEXT, filled)
            drafted = _draft(model, drafter)
            _fill_behind(target.cache, CONTEXT, filled)
            found.append((drafted, target.verify([5, 6]).logits.copy()))
    for who, one, other in zip(("drafter", "target"), *found, strict=True):
        if not np.array_equal(one, other):
            raise FailedError(f"stale KV rows visible: what lies behind the committed rows changes what the {who} says.")
    return f"whatever lies behind {CONTEXT} committed rows changes nothing"


def precision(model: Model) -> str:
    """KV rows are float32 numbers, and not coarser ones in the shape of float32."""
    with model.sequence() as (target, _):
        target.prefill(model.encode(PROMPTS[0])[:CONTEXT])
        rows = {spec: target.cache.view(spec, spec.key, 0).reshape(-1, spec.head_dim) for spec in model.manifest.drafter_caches}
        kinds = {spec.layer: _coarse(values) for spec, values in rows.items()}
    coarse = {layer: kind for layer, kind in kinds.items() if kind}
    if coarse:
        layer, kind = next(iter(coarse.items()))
        raise FailedError(
            f"quantised KV: the rows of layer {layer} hold {kind} numbers, which costs acceptance and changes texts."
        )
    return "KV rows are float32"


def position(model: Model) -> str:
    """A draft step does not move by itself: all of a round stand where the pending token will."""
    with model.sequence() as (target, drafter):
        pretend_context(target, CONTEXT, np.random.default_rng(0))
        steps = [_draft(model, drafter) for _ in range(3)]
    if not all(np.array_equal(steps[0], step) for step in steps):
        raise FailedError("position moving during a round: the same draft step, made again, gives another state.")
    offset = model.manifest.draft_position_offset
    return f"the same draft step gives the same state; it stands at the pending token's position {offset:+d}"


def hidden_state(model: Model) -> str:
    """Logits are the token table times the hidden state that the drafter gets, and embeddings its rows times sqrt(D)."""
    width, tokens = model.manifest.hidden_size, model.encode(PROMPTS[0])[:CONTEXT]
    with model.sequence() as (target, _):
        target.prefill(tokens[:-1])
        verified = target.verify(tokens[-1:])
        logits, hidden = verified.logits[0].copy(), verified.activations[0].copy()
    tried = np.random.default_rng(0).permutation(len(logits))[:2048]
    tried = tried[np.abs(logits[tried]) < SMALL_LOGIT][:256]
    table = model.backend.embeddings(tried.tolist())
    if table is None:
        raise SkippedError(
            f"{model.backend.name} has the token table inside its graphs; a bundle with TFLite graphs can be probed"
        )
    products = table @ hidden / np.sqrt(width)
    scale = float(logits[tried] @ products / (products @ products))
    error = float(np.linalg.norm(logits[tried] - scale * products) / np.linalg.norm(logits[tried]))
    if abs(scale / np.sqrt(width) - 1) < SCALES_AGREE:
        raise FailedError(
            f"embedding not scaled: the token table's rows are {scale:.3g} times too small; they need sqrt({width})."
        )
    if not error < SAME_LOGITS or abs(scale - 1) > SCALES_AGREE:
        raise FailedError(
            "hidden state of another place: the token table times what the target hands to the drafter is not its logits "
            f"({error:.0%} off, {scale:.2g} times as large); it must be the state after the final norm."
        )
    return f"{len(tried)} logits are the table times the hidden state, {error:.1%} off; embeddings are scaled by sqrt({width})"


def fit(model: Model) -> str:
    """Where the wiring is right and the drafter is wrong all the same, it is not of this target."""
    try:
        return acceptance(model)
    except FailedError as error:
        found = str(error).partition(";")[0]
    raise FailedError(
        f"drafter of another target: {found}. If nothing else is wrong here, it was trained for other weights, as when the "
        "target was fine-tuned later; export the pair that belongs together, or run with --draft off."
    )


def _draft(model: Model, drafter: Drafter) -> NDArray[np.float32]:
    """The state of one made-up draft step, [D]."""
    hidden = SCALE * np.random.default_rng(1).standard_normal(model.manifest.hidden_size, np.float32)
    return drafter.graphs.draft(5, hidden).state.copy()


def _with_changed_row(cache: KVCache, spec: CacheSpec, measure: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
    """What is measured while the oldest row of a layer is another; it is put back."""
    rows = [cache.buffers[name][:, :, 0] for name in (spec.key, spec.value)]
    kept = [row.copy() for row in rows]
    for row in rows:
        row[:] = np.random.default_rng(2).standard_normal(row.shape, np.float32)
    try:
        return measure()
    finally:
        for row, old in zip(rows, kept, strict=True):
            row[:] = old


def _fill_behind(cache: KVCache, length: int, value: float) -> None:
    for spec in cache.specs:
        first = length - (cache.local_start if spec.kind is CacheKind.LOCAL else 0)
        for name in (spec.key, spec.value):
            cache.buffers[name][:, :, first:] = value


def _coarse(values: NDArray[np.float32]) -> str | None:
    """What smaller kind of number rows [T, H] consist of; None for float32."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    for kind, unused in (("bfloat16", BFLOAT16_BITS), ("float16", FLOAT16_BITS)):
        if not (bits & ((1 << unused) - 1)).any():
            return kind
    steps = values / (np.abs(values).max(axis=1, keepdims=True) / EIGHT_BITS)
    return "8-bit" if np.abs(steps - np.rint(steps)).max() < 0.01 else None
