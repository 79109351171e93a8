"""The TFLite lowering: the target in six signatures that share every weight, the drafter, and the token tables.

The tables are files of their own, because prefill and drafting need rows of them without the rest, and because
LiteRT-LM wants them so. Full caches are inputs whose number of slots varies; local ones have a fixed size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from paceline import signatures
from paceline.manifest import GraphFiles
from paceline.signatures import CacheSpec, Signature
from paceline_export.checkpoint import Drafter, Target
from paceline_export.lower.caches import cache_specs, drafter_caches
from paceline_export.lower.flatbuffer import Subgraph, Tensor, TfliteFile
from paceline_export.lower.tflite_ops import Rows, TfliteOps
from paceline_export.lower.tflite_read import StoredTensors
from paceline_export.lower.tflite_weights import IntegerWeight
from paceline_export.model.drafter import draft_choice, draft_layers
from paceline_export.model.target import Embedded, fill_rows, finish_rows, per_layer_embeddings, token_embeddings
from paceline_export.rounding import Rounding
from paceline_export.weights import Progress

TARGET, DRAFTER, EMBEDDER, PER_LAYER_EMBEDDER = (
    f"{name}.tflite" for name in ("target", "drafter", "embedder", "per_layer_embedder")
)


@dataclass
class ModelFile:
    """A file under construction, and what its weights are rounded to."""

    rounding: Rounding
    source: StoredTensors | None = None  # see `TfliteFile`
    tflite: TfliteFile = field(init=False)
    integers: dict[str, IntegerWeight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tflite = TfliteFile(self.source)


@dataclass
class Entry:
    """One signature under construction."""

    ops: ClassVar[type[TfliteOps]] = TfliteOps  # of its profile
    file: ModelFile
    name: str
    signature: Signature
    op: TfliteOps = field(init=False)

    def __post_init__(self) -> None:
        self.op = self.ops(Subgraph(self.file.tflite, self.name), self.file.rounding, self.file.integers)
        self.inputs = {port.name: self.op.graph.input(port) for port in self.signature.inputs}

    def target_outputs(self, target: Target, emits: bool) -> dict[str, Tensor]:
        """Runs the target on the embeddings that are given: its logits and activations if it `emits` them, and KV writes."""
        config, weights = target.config, target.weights
        embedded = Embedded(self.inputs[signatures.EMBEDDINGS], self.inputs.get(signatures.PER_LAYER_EMBEDDINGS))
        filled = fill_rows(self.op, config, weights, embedded)
        if not emits:
            return {}
        logits, activations = finish_rows(self.op, config, weights, filled)
        return {signatures.LOGITS: logits, signatures.ACTIVATIONS: activations}

    def read_caches(self, specs: tuple[CacheSpec, ...]) -> None:
        """Gives the op set the KV rows, and what says which of them are seen."""
        for spec in specs:
            keys, values = ([self.inputs[name] for name in spec.head_names(x)] for x in (spec.key, spec.value))
            self.op.rows[spec.layer] = Rows(spec.kind, keys, values)
        for kind in dict.fromkeys(spec.kind for spec in specs):  # in order: the same export gives the same bytes
            mask = self.inputs[signatures.MASK[kind]]
            rows, slots = mask.shape[2:]
            self.op.masks[kind] = self.op.reshape(mask, 1, rows, 1, slots) if rows > 1 else mask

    def finish(self, outputs: dict[str, Tensor]) -> None:
        """Adds the signature to its file; outputs by name."""
        for port in self.signature.outputs:
            self.op.graph.output(port, outputs[port.name])
        self.op.graph.finish()


def write_pair(
    folder: Path, target: Target, drafter: Drafter, target_rounding: Rounding, drafter_rounding: Rounding, progress: Progress
) -> GraphFiles:
    """Writes all files of the format into `folder`."""
    made = {
        TARGET: _target(target, target_rounding),
        DRAFTER: _drafter(target, drafter, drafter_rounding),
        **token_tables(target, target_rounding),
    }
    parts = {name.removesuffix(".tflite"): name for name in made}
    for name, entries in made.items():
        entries[0].file.tflite.save(folder / name, progress)
    described = {name: {entry.name: entry.signature.to_json() for entry in entries} for name, entries in made.items()}
    return GraphFiles(parts, described)


def _target(target: Target, rounding: Rounding) -> list[Entry]:
    config, file, entries = target.config, ModelFile(rounding), []
    specs = cache_specs(config)
    per_layer = (len(config.layers), config.per_layer_size) if config.per_layer_size else None
    for rows, name in signatures.SIGNATURES.items():
        signature = signatures.tflite_target(specs, config.window, config.hidden_size, config.vocab_size, per_layer, rows)
        entry = Entry(file, name, signature)
        op, inputs = entry.op, entry.inputs
        entry.read_caches(specs)
        op.starts = {kind: inputs[signatures.CACHE_START[kind]] for kind in op.masks}
        op.prepare_rotation(inputs[signatures.INPUT_POS], list(config.ropes.values()))
        outputs = entry.target_outputs(target, rows in signatures.VERIFY)
        for spec in specs:
            for cache, tensors in ((spec.key, op.rows[spec.layer].keys), (spec.value, op.rows[spec.layer].values)):
                outputs |= dict(zip(spec.head_names(cache), tensors, strict=True))
        entry.finish(outputs)
        entries.append(entry)
    return entries


def _drafter(target: Target, drafter: Drafter, rounding: Rounding) -> list[Entry]:
    config, weights = drafter.config, drafter.weights
    specs = drafter_caches(target.config, drafter.config)
    entry = Entry(
        ModelFile(rounding),
        signatures.DRAFT,
        signatures.tflite_drafter(specs, config.window, config.target_hidden_size, config.scored_tokens, config.vocab_size),
    )
    entry.read_caches(specs)
    entry.op.prepare_rotation(entry.inputs[signatures.INPUT_POS], list(config.ropes.values()))
    state, projected = draft_layers(entry.op, config, weights, entry.inputs[signatures.ACTIVATIONS])
    choice = draft_choice(entry.op, config, weights, state)
    entry.finish(
        {
            signatures.DRAFT_TOKEN: choice.token,
            signatures.DRAFT_LOGIT: choice.logit,
            signatures.DRAFT_LOGSUMEXP: choice.logsumexp,
            signatures.PROJECTED_ACTIVATIONS: projected,
            signatures.DRAFT_LOGITS: choice.logits,
            **({} if choice.scored is None else {signatures.DRAFT_SCORED: choice.scored}),
        }
    )
    return [entry]


def token_tables(
    target: Target,
    rounding: Rounding,
    names: Mapping[int, str] = signatures.SIGNATURES,
    sources: Mapping[str, StoredTensors] | None = None,
) -> dict[str, list[Entry]]:
    """The files of the token tables.

    Args:
        names: rows -> signature.
        sources: file -> see `TfliteFile`.
    """
    config = target.config
    tables: dict[str, tuple[Callable[..., Tensor], str, tuple[int, ...]]]
    tables = {EMBEDDER: (token_embeddings, signatures.EMBEDDINGS, (config.hidden_size,))}
    if config.per_layer_size:
        width = (len(config.layers), config.per_layer_size)
        tables[PER_LAYER_EMBEDDER] = (per_layer_embeddings, signatures.PER_LAYER_EMBEDDINGS, width)
    made: dict[str, list[Entry]] = {}
    for file, table in tables.items():
        made[file] = _table(target, ModelFile(rounding, None if sources is None else sources[file]), *table, names)
    return made


def _table(
    target: Target,
    file: ModelFile,
    look_up: Callable[..., Tensor],
    output: str,
    width: tuple[int, ...],
    names: Mapping[int, str],
) -> list[Entry]:
    entries = []
    for rows, name in names.items():
        entry = Entry(file, name, signatures.tflite_embedder(output, rows, width))
        entry.finish({output: look_up(entry.op, target.config, target.weights, entry.inputs[signatures.TOKEN_IDS])})
        entries.append(entry)
    return entries
