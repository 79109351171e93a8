"""The model card of a bundle, for the person who opens its directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.backends.names import NPU
from paceline.npu.profile import profile_file
from paceline.stored_weights import read_weights, summary
from paceline_export.checkpoint import Drafter, Target
from paceline_export.lower.tflite import TARGET
from paceline_export.tokenizer import TOKENIZER_BINARY

LITERTLM = "litertlm"  # graphs of another profile with the weights of the TFLite ones, in a file of its own
PACKED = "model.litertlm"


def model_card(target: Target, drafter: Drafter, folder: Path, formats: Sequence[str], recipe: str) -> str:
    """The text of a bundle's README.md.

    Args:
        folder: with all other files of the bundle.
        formats: that it was exported in.
    """
    rows = "\n".join(f"| {f.name} | {f.stat().st_size:,} |" for f in sorted(folder.iterdir()))
    config, small = target.config, drafter.config
    packed = f"""
With Google's LiteRT-LM, which drafts greedily:

    litert-lm run {PACKED} --prompt "Once upon a time" --speculative-decoding true
"""
    app = """
On Android, with the app of paceline's android_demo, which lists what is pushed to its folder:

    adb push THIS_DIRECTORY /sdcard/Android/data/dev.paceline.demo/files/models/
"""
    static = """
On a neural processor, once its compiler has made programs of the graphs for it:

    paceline npu compile THIS_DIRECTORY --soc SM8750
    paceline npu emulate THIS_DIRECTORY --soc SM8750
"""
    return f"""# paceline bundle

A Gemma 4 target ({len(config.layers)} layers, width {config.hidden_size}, vocabulary {config.vocab_size:,}) and its \
multi-token-prediction drafter ({len(small.layers)} layers, width {small.hidden_size}) as {" and ".join(formats)} graphs that \
share the target's KV cache. Text only; up to {config.max_positions:,} tokens of prompt and output.

Stored as `{recipe}`; {summary(read_weights(folder))}. `weights.json` lists every tensor. How fast the bundle is, and what is \
accepted, depends on device and text: `paceline bench` and `paceline calibrate` measure it.

## How to run it
On a desktop, from the command line:

    paceline run THIS_DIRECTORY -p "Once upon a time" --stats
    paceline chat THIS_DIRECTORY
    paceline verify THIS_DIRECTORY

From Python:

    import paceline
    with paceline.load("THIS_DIRECTORY") as model:
        for piece in model.generate("Once upon a time", max_new_tokens=128):
            print(piece.text, end="")
{app if all((folder / file).is_file() for file in (TARGET, TOKENIZER_BINARY)) else ""}\
{packed if LITERTLM in formats else ""}{static if (folder / profile_file(NPU)).is_file() else ""}
## Files
| file | bytes |
|---|---|
{rows}
"""
