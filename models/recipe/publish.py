"""Writes the trained pair the way checkpoints are published: two Hugging Face folders and the measurements."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import data
import pair
import torch

PAD = 0
STOPS = (data.EOS, 5)  # and <turn|>
TOKENIZER_FIELDS: dict[str, Any] = {
    "bos_token": "<bos>",
    "clean_up_tokenization_spaces": False,
    "eos_token": "<eos>",
    "model_max_length": pair.TARGET.max_positions,
    "pad_token": "<pad>",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
}
TARGET_GENERATION: dict[str, Any] = {"bos_token_id": data.BOS, "eos_token_id": list(STOPS), "pad_token_id": PAD}
DRAFTER_GENERATION: dict[str, Any] = {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "constant"}
# Gemma 4's turns. Every newline is written out, so that no engine's handling of white space around tags matters.
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\\n' + (message['content'] | trim) + '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|turn>model\\n' -}}
{%- endif -%}
"""


def publish(work: Path, output: Path) -> None:
    """Writes output/target, output/drafter and output/measurements.json from the results in the work folder."""
    _publish_model(work, output, "target", pair.TARGET_FIELDS, TARGET_GENERATION)
    (output / "target" / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _publish_model(work, output, "drafter", pair.DRAFTER_FIELDS, DRAFTER_GENERATION)
    shutil.copy(work / "measurements.json", output / "measurements.json")


def _publish_model(work: Path, output: Path, name: str, fields: dict[str, Any], generation: dict[str, Any]) -> None:
    folder = output / name
    pair.save(folder, fields, torch.load(work / f"{name}.pt"))
    shutil.copy(work / "tokenizer.json", folder / "tokenizer.json")
    _write_json(folder / "tokenizer_config.json", TOKENIZER_FIELDS)
    _write_json(folder / "generation_config.json", generation)


def _write_json(file: Path, fields: dict[str, Any]) -> None:
    file.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
