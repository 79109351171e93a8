"""Google's LiteRT-LM against paceline on the same weights: `python tests/bench/litert_lm.py BUNDLE [TOKENS]`.

The bundle is packed for a context of TOKENS, to all of which LiteRT-LM attends in every call, and both runtimes continue one
prompt greedily up to TOKENS tokens in all, plain and with three drafts a round, in turns, each time in a process of its own
with two threads. Tokens per second are of decoding alone, the best of the repeats. LiteRT-LM says itself how fast it was and
how often its drafter was right.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline.bundle import Bundle
from paceline_export.litertlm import pack
from paceline_export.lower.litertlm_signatures import LiteRtLmProfile

REPEATS, THREADS, DRAFTS = 2, 2, 3
PROMPT = "A queue keeps items in the order in which they arrive. A producer adds an item at the back, and a consumer takes the "
GOOGLE = """
import json, sys, litert_lm
file, cache, speculative, prompt, tokens, threads = json.loads(sys.argv[1])
engine = litert_lm.Engine(
    file, litert_lm.Backend.CPU(thread_count=threads), max_num_tokens=tokens, cache_dir=cache,
    enable_speculative_decoding=speculative, enable_benchmark=True,
)
with engine.create_session() as session:
    session.run_prefill([prompt])
    session.run_decode()
    print(json.dumps(session.get_benchmark_info().last_decode_tokens_per_second))
"""
OURS = """
import json, sys, paceline
bundle, drafts, prompt, tokens, threads = json.loads(sys.argv[1])
model = paceline.load(bundle, backend="litert", threads=threads, capacity=tokens)
pieces = list(model.generate(prompt, draft_length=drafts))
print(json.dumps([pieces[-1].stats.tokens_per_s, pieces[-1].stats.accepted / (pieces[-1].stats.drafted or 1)]))
"""


def main() -> None:
    bundle, tokens = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 192
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pair.litertlm"
        pack(Bundle.open(bundle), file, LiteRtLmProfile(tokens, DRAFTS), lambda *_: None)
        print(f"packed: {file.stat().st_size / 1e9:.2f} GB", flush=True)
        speeds: dict[tuple[str, str], list[float]] = {}
        shares: dict[tuple[str, str], str] = {}
        for _ in range(REPEATS):
            for way, drafts in (("plain", 0), (f"{DRAFTS} drafts", DRAFTS)):
                out, log = run(GOOGLE, [str(file), folder, bool(drafts), PROMPT, tokens, THREADS])
                speeds.setdefault(("LiteRT-LM", way), []).append(json.loads(out))
                found = re.findall(r"Success rate: ([\d.]+)", log)
                shares["LiteRT-LM", way] = found[-1] if found else ""
                out, _ = run(OURS, [str(bundle), drafts, PROMPT, tokens, THREADS])
                speed, share = json.loads(out)
                speeds.setdefault(("paceline", way), []).append(speed)
                shares["paceline", way] = f"{share:.3f}" if drafts else ""
        print("| runtime | drafting | tokens/s | drafts accepted |\n|---|---|---|---|")
        for (runtime, way), found in speeds.items():
            print(f"| {runtime} | {way} | {max(found):.1f} | {shares[runtime, way]} |")


def run(script: str, arguments: list[object]) -> tuple[str, str]:
    """The last line that a script prints, and what it says on stderr."""
    command = [sys.executable, "-c", script, json.dumps(arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1], done.stderr


if __name__ == "__main__":
    main()
