"""A `.litertlm` file, which Google's LiteRT-LM runs with and without speculative decoding: the weights of a bundle in graphs of
its own profile, the tokenizer, and what the runtime has to know of the model.

The same bundle gives the same bytes.
"""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

from litert_lm_builder import litertlm_builder, litertlm_core
from litert_lm_builder.runtime.proto import llm_metadata_pb2, sampler_params_pb2

from paceline.bundle import CHAT_TEMPLATE, Bundle, sha256
from paceline.errors import InputError
from paceline.manifest import MOST
from paceline.partial import remove_abandoned, workshop
from paceline.reading import read_text
from paceline.sampling import Sampling, checkpoint_sampling
from paceline.signatures import VERIFY
from paceline.text import THOUGHT_CLOSES, THOUGHT_OPENS, TOKENIZER_FILE
from paceline_export.lower.litertlm import write_graphs
from paceline_export.lower.litertlm_signatures import LiteRtLmProfile
from paceline_export.lower.tflite import DRAFTER, EMBEDDER, PER_LAYER_EMBEDDER, TARGET
from paceline_export.preflight import require_room
from paceline_export.stored import open_stored
from paceline_export.weights import Progress

MOST_DRAFTS = max(VERIFY) - 1
SECTIONS = {
    EMBEDDER: litertlm_builder.TfLiteModelType.EMBEDDER,
    PER_LAYER_EMBEDDER: litertlm_builder.TfLiteModelType.PER_LAYER_EMBEDDER,
    TARGET: litertlm_builder.TfLiteModelType.PREFILL_DECODE,
    DRAFTER: litertlm_builder.TfLiteModelType.MTP_DRAFTER,
}
# What the builder writes into the header of every file anew: an id by chance, and the time.
RANDOM_ID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME, NO_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00"), b"1970-01-01T00:00:00.000000+00:00"


def pack(bundle: Bundle, out: Path, profile: LiteRtLmProfile, progress: Progress) -> None:
    """Writes the file, complete or not at all.

    Args:
        bundle: with TFLite graphs.
        progress: called after every piece of a tensor.

    Raises:
        InputError: the bundle lacks what is needed, `out` exists, a size is out of range, or disk or memory will not do.
    """
    manifest = bundle.manifest
    if out.exists():
        raise InputError(f"{out} exists already; choose another name with -o, or remove it first.")
    if not 1 <= profile.context <= manifest.max_positions:
        raise InputError(f"context is {profile.context}; this model allows 1 to {manifest.max_positions}.")
    if not 1 <= profile.draft_length <= MOST_DRAFTS:
        raise InputError(f"draft length is {profile.draft_length}; allowed are 1 to {MOST_DRAFTS}.")
    pair = open_stored(bundle)
    weights = sum(len(tensor.content) for tensors in pair.tensors.values() for tensor in tensors.values())
    remove_abandoned(out.parent, out.name)
    require_room(out, 2 * weights, 0)  # the sections, and the file that is made of them
    with workshop(out) as folder:
        files = write_graphs(folder, pair, profile, manifest.draft_position_offset, progress)
        metadata = folder / "metadata"
        metadata.write_bytes(_metadata(bundle, profile.context).SerializeToString(deterministic=True))
        builder = litertlm_builder.LitertLmFileBuilder()
        builder.add_llm_metadata(str(metadata))
        builder.add_hf_tokenizer(str(bundle.folder / TOKENIZER_FILE))
        for file, kind in SECTIONS.items():
            if file in files:
                builder.add_tflite_model(str(folder / file), kind)
        made = folder / "made"
        with open(made, "xb") as stream:
            builder.build(stream, validate_metadata=True)
        _settle_header(made, sha256(folder / TARGET))
        made.rename(out)


def _metadata(bundle: Bundle, context: int) -> llm_metadata_pb2.LlmMetadata:
    manifest, made = bundle.manifest, llm_metadata_pb2.LlmMetadata()
    if manifest.bos_id is not None:
        made.start_token.token_ids.ids.append(manifest.bos_id)
    for token in manifest.stop_ids:
        made.stop_tokens.add().token_ids.ids.append(token)
    made.max_num_tokens = context
    made.llm_model_type.gemma4.SetInParent()
    text = read_text(bundle.folder / CHAT_TEMPLATE) if CHAT_TEMPLATE in manifest.files else ""
    made.jinja_prompt_template = text
    made.supports_thinking, made.supports_function_calling = "enable_thinking" in text, "tools" in text
    if made.supports_thinking:
        thought = made.channels.add()
        thought.channel_name, thought.is_reasoning_channel = "thought", True
        thought.start, thought.end = f"{THOUGHT_OPENS}thought\n", THOUGHT_CLOSES
    _set_sampler(made.sampler_params, checkpoint_sampling(bundle))
    return made


def _set_sampler(made: sampler_params_pb2.SamplerParameters, sampling: Sampling) -> None:
    """LiteRT-LM's sampler has top-k and top-p; with speculative decoding it is greedy whatever is said here.

    Greedy is the likeliest of one, because the type of that name is not implemented (0.18).
    """
    greedy = sampling.temperature == 0
    made.type, made.temperature = sampler_params_pb2.SamplerParameters.TOP_P, 1.0 if greedy else sampling.temperature
    made.k = 1 if greedy else min(sampling.top_k or 0, MOST)
    made.p = 1.0 if greedy or sampling.top_p is None else sampling.top_p


def _settle_header(file: Path, content_hash: str) -> None:
    """Makes the header's id a function of the content, and its time none."""
    with open(file, "r+b") as stream:
        stream.seek(litertlm_core.HEADER_END_LOCATION_BYTE_OFFSET)
        header = stream.read(int.from_bytes(stream.read(8), "little") - litertlm_core.HEADER_BEGIN_BYTE_OFFSET)
        header, ids = RANDOM_ID.subn(str(UUID(content_hash[:32])).encode(), header)
        header, times = TIME.subn(NO_TIME, header)
        assert (ids, times) == (1, 1), "the builder writes another header than it did"
        stream.seek(litertlm_core.HEADER_BEGIN_BYTE_OFFSET)
        stream.write(header)
