"""What cannot be exported is refused in one sentence: the field, the value found, what is allowed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InputError
from paceline_export.checkpoint import open_pair
from paceline_export.config import drafter_config, target_config

TEXT = tiny.text_fields()
TARGET = target_config(TEXT, "target")
LOCAL, FULL = tiny.LOCAL, tiny.FULL
OTHER_FAMILY = "Gemma4UnifiedAssistantForCausalLM"


def refusal(folder: Path, target: Any = None, drafter: Any = None) -> str:
    """Opens directories that hold nothing but a config.json, and returns why they are refused."""
    for name, raw in (("target", target or TEXT), ("drafter", drafter or tiny.drafter_fields(TEXT))):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(raw))
    with pytest.raises(InputError) as refused:
        open_pair(folder / "target", folder / "drafter")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def ropes(kind: str, **changes: Any) -> dict[str, Any]:
    """The tiny pair's rope parameters with changes to one kind; None removes a key."""
    changed = {k: v for k, v in (tiny.ROPES[kind] | changes).items() if v is not None}
    return tiny.ROPES | {kind: changed}


# Field as the message names it, change of the config, what the message must say of value and allowed values.
TARGET_REFUSALS = [
    ("enable_moe_block", True, "true", "false or null"),
    ("num_experts", 128, "128", "null or 0"),
    ("attention_k_eq_v", True, "true", "false or null"),
    ("attention_bias", True, "true", "false or null"),
    ("use_bidirectional_attention", "vision", "vision", "null"),
    ("use_bidirectional_attention", "all", "all", "null"),
    ("hidden_activation", "silu", "silu", "gelu_pytorch_tanh"),
    ("tie_word_embeddings", False, "false", "true"),
    ("architectures", ["Gemma3ForCausalLM"], "Gemma3ForCausalLM", "Gemma4ForConditionalGeneration or Gemma4ForCausalLM"),
    ("architectures", [], "nothing", "Gemma4ForCausalLM"),
    ("layer_types", [LOCAL, FULL], "2 entries", r"num_hidden_layers \(10\) entries"),
    ("layer_types", [*TEXT["layer_types"][:9], "chunked_attention"], "chunked_attention", f"{LOCAL} or {FULL}"),
    ("num_kv_shared_layers", 10, "10", "0 to 9"),
    ("num_kv_shared_layers", 11, "11", "0 to 9"),
    ("layer_types", [LOCAL] * 9 + [FULL], "layer 9 is full_attention", "an earlier layer owns"),
    ("num_key_value_heads", 3, "3", "a divisor of 4 heads"),
    ("num_key_value_heads", 0, "0", "1 or more"),
    ("hidden_size", 0, "0", "1 or more"),
    ("hidden_size", 64.5, "64.5", "whole number"),
    ("hidden_size", True, "true", "whole number"),
    ("hidden_size", "64", "64", "whole number"),
    ("num_kv_shared_layers", -1, "-1", "whole number, 0 or more"),
    ("rms_norm_eps", 0, "0", "a number above 0"),
    ("use_double_wide_mlp", "yes", "yes", "true or false"),
    ("layer_types", "all local", "all local", "a list of strings"),
    ("eos_token_id", ["</s>"], "</s>", "a token id or a list"),
    ("final_logit_softcapping", "thirty", "thirty", "a number above 0"),
    ("per_layer_config", {"4": {"sliding_window": 8}}, "4: .*sliding_window", "head_dim, num_key_value_heads"),
    ("per_layer_config", {"full": {"head_dim": 32}}, "full", "head_dim, num_key_value_heads"),
    ("per_layer_config", {"99": {"head_dim": 32}}, "99", r"num_hidden_layers \(10\) layers"),
    ("per_layer_config", {"9" * 5000: {"head_dim": 32}}, "999", ""),
    ("num_hidden_layers", 1 << 30, "1073741824", "at most 1024"),
    ("hidden_size", 1 << 31, "2147483648", "at most 2147483647"),
    ("eos_token_id", -1, "-1", "a token id or a list"),
]


@pytest.mark.parametrize(("field", "value", "found", "allowed"), TARGET_REFUSALS)
def test_a_target_that_the_graphs_cannot_express_is_refused(
    field: str, value: object, found: str, allowed: str, tmp_path: Path
) -> None:
    message = refusal(tmp_path, target=TEXT | {field: value})
    assert_says(message, tmp_path / "target" / "config.json", field, found, allowed)


@pytest.mark.parametrize("method", ["gptq", "compressed-tensors", None])
def test_a_quantised_checkpoint_is_refused_by_its_method(method: str | None, tmp_path: Path) -> None:
    message = refusal(tmp_path, target=TEXT | {"quantization_config": {"quant_method": method, "bits": 4}})
    assert_says(message, tmp_path / "target" / "config.json", "quantization_config.quant_method", method or "null", "null")


@pytest.mark.parametrize(
    ("kind", "changes", "field", "found", "allowed"),
    [
        (FULL, {"rope_type": "yarn"}, "rope_type", "yarn", "default or proportional"),
        (LOCAL, {"rope_type": None}, "rope_type", "missing", ""),
        (LOCAL, {"rope_theta": None}, "rope_theta", "missing", ""),
        (FULL, {"rope_theta": -1}, "rope_theta", "-1", "a number above 0"),
        (FULL, {"factor": 8.0}, "factor", "8.0", "null or 1.0"),
        (FULL, {"partial_rotary_factor": 2.0}, "partial_rotary_factor", "2.0", "at most 1"),
    ],
)
def test_a_rotation_that_is_not_implemented_is_refused(
    kind: str, changes: dict[str, Any], field: str, found: str, allowed: str, tmp_path: Path
) -> None:
    message = refusal(tmp_path, target=TEXT | {"rope_parameters": ropes(kind, **changes)})
    assert_says(message, tmp_path / "target" / "config.json", f"rope_parameters.{kind}.{field}", found, allowed)


REQUIRED = [
    "architectures", "head_dim", "hidden_size", "intermediate_size", "layer_types", "max_position_embeddings",
    "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "sliding_window",
    "vocab_size",
]  # fmt: skip


@pytest.mark.parametrize("absent", ["no key", "null"])
@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_field_is_named(field: str, absent: str, tmp_path: Path) -> None:
    fields = TEXT | {field: None}
    if absent == "no key":
        fields.pop(field)
    assert_says(refusal(tmp_path, target=fields), tmp_path / "target" / "config.json", field, "is missing", "")


@pytest.mark.parametrize(
    ("changes", "field", "found", "allowed"),
    [
        ({"architectures": [OTHER_FAMILY]}, "architectures", OTHER_FAMILY, "Gemma4AssistantForCausalLM"),
        ({"num_centroids": 60}, "num_centroids", "60", "a divisor of vocab_size 512"),
        ({"num_centroids": 0}, "num_centroids", "0", "1 or more"),
        ({"centroid_intermediate_top_k": 65}, "centroid_intermediate_top_k", "65", r"1 to num_centroids \(64\)"),
        ({"centroid_intermediate_top_k": 0}, "centroid_intermediate_top_k", "0", "1 to num_centroids"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings", "false", "true"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.quant_method", "awq", "null"),
        ({"text_config": 7}, "text_config", "7", "a JSON object"),
        ({"text_config": None}, "text_config", "is missing", ""),
    ],
)  # fmt: skip
def test_a_drafter_that_the_graphs_cannot_express_is_refused(
    changes: dict[str, Any], field: str, found: str, allowed: str, tmp_path: Path
) -> None:
    message = refusal(tmp_path, drafter=tiny.drafter_fields(TEXT) | changes)
    assert_says(message, tmp_path / "drafter" / "config.json", field, found, allowed)


@pytest.mark.parametrize(
    ("field", "value", "found", "allowed"),
    [
        ("final_logit_softcapping", 30.0, "30.0", "null"),
        ("hidden_size_per_layer_input", 8, "8", "0 or null"),
        ("enable_moe_block", True, "true", "false or null"),
        ("attention_k_eq_v", True, "true", "false or null"),
        ("use_bidirectional_attention", "vision", "vision", "null"),
    ],
)
def test_a_drafters_text_section_is_held_to_the_same_rules(
    field: str, value: object, found: str, allowed: str, tmp_path: Path
) -> None:
    drafter = tiny.drafter_fields(TEXT)
    drafter["text_config"] |= {field: value}
    assert_says(
        refusal(tmp_path, drafter=drafter), tmp_path / "drafter" / "config.json", f"text_config.{field}", found, allowed
    )


@pytest.mark.parametrize(
    ("changes", "text_changes", "field", "found", "wanted"),
    [
        ({"backbone_hidden_size": 128}, {}, "backbone_hidden_size", 128, 64),
        ({}, {"vocab_size": 1024}, "vocab_size", 1024, 512),
        ({}, {"sliding_window": 32}, "sliding_window", 32, 16),
        ({}, {"head_dim": 8}, "head_dim of sliding_attention layer 0", 8, 16),
        ({}, {"global_head_dim": 64}, "head_dim of full_attention layer 3", 64, 32),
        ({}, {"num_key_value_heads": 2}, "num_key_value_heads of sliding_attention layer 0", 2, 1),
        ({}, {"rope_parameters": ropes(LOCAL, rope_theta=5e5)}, "rope_theta of sliding_attention layer 0", 5e5, 1e4),
        ({}, {"rope_parameters": ropes(FULL, rope_theta=1e4)}, "rope_theta of full_attention layer 3", 1e4, 1e6),
        (
            {},
            {"rope_parameters": ropes(FULL, partial_rotary_factor=0.5)},
            "rotated fraction of full_attention layer 3",
            0.5,
            0.25,
        ),
    ],
)
def test_a_drafter_of_another_target_is_refused_with_both_numbers(
    changes: dict[str, Any], text_changes: dict[str, Any], field: str, found: float, wanted: float, tmp_path: Path
) -> None:
    """Before any weight is read: there is no weight file, and the misfit is what the message is about."""
    drafter = tiny.drafter_fields(TEXT, **changes)
    drafter["text_config"] |= text_changes
    message = refusal(tmp_path, drafter=drafter)
    assert f"the drafter does not fit its target: {field} is {found}, the target has {wanted}" in message
    assert str(tmp_path / "drafter") in message


def test_a_drafter_with_a_kind_of_layer_that_its_target_lacks_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, target=TEXT | {"layer_types": [LOCAL] * 10})
    assert_says(message, tmp_path / "drafter" / "config.json", "layer_types", "layer 3 is full_attention", "")


def test_a_pair_that_fits_is_refused_only_for_its_missing_weights(tmp_path: Path) -> None:
    """What the misfit tests above stand on: with the right drafter, weights are what is asked for next."""
    assert "neither model.safetensors nor model.safetensors.index.json" in refusal(tmp_path)


JSON = (
    st.none()
    | st.booleans()
    | st.integers(-4, 70)
    | st.floats()
    | st.sampled_from(["", LOCAL, "²"])
    | st.just([])
    | st.just({})
)


@settings(max_examples=300)
@given(
    field=st.sampled_from(sorted(TEXT)), value=JSON | st.lists(JSON, max_size=2) | st.dictionaries(st.sampled_from("04²"), JSON)
)
def test_no_value_of_any_field_gets_past_as_another_error(field: str, value: object) -> None:
    """A config is accepted or refused; nothing else is ever raised, on either side of the pair."""
    drafter = tiny.drafter_fields(TEXT)
    drafter["text_config"] |= {field: value}
    for read in (
        lambda: target_config(TEXT | {field: value}, "target").ropes,
        lambda: target_config({"architectures": ["Gemma4ForCausalLM"], "text_config": TEXT | {field: value}}, "target"),
        lambda: drafter_config(drafter, "drafter", TARGET),
        lambda: drafter_config(tiny.drafter_fields(TEXT) | {field: value}, "drafter", TARGET),
    ):
        try:
            read()
        except InputError as error:
            assert str(error).count("\n") == 0  # noqa: PT017 - not raising is as good


@pytest.mark.parametrize("raw", [[], "text", 3, None])
def test_a_config_that_is_not_an_object_is_refused(raw: object, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps(raw))
    shutil.copytree(tmp_path / "target", tmp_path / "drafter")
    with pytest.raises(InputError, match="a JSON object is needed"):
        open_pair(tmp_path / "target", tmp_path / "drafter")


def assert_says(message: str, file: Path, field: str, found: str, allowed: str) -> None:
    """File, field, value and allowed values, in this order."""
    assert re.search(f"^{re.escape(str(file))}: .*{re.escape(field)} .*{found}.*{allowed}", message), message
