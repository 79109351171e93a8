"""The small pair's tokenizer: the same kind as Gemma's, 4,096 entries instead of 262,144.

BPE with byte fallback, a visible space instead of " ", and no split into words at run time. Merges are learned
within words, so that no entry spans two of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY_SIZE = 4096
SPECIAL_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
# Newlines, an indent, a word or number or run of punctuation with the space before it.
WORDS = r"\n+|▁+(?=▁)|▁?[^\W\d_]+|▁?_+|▁?\d{1,3}|▁?[^\w\s▁]+|▁|\s"


def train(texts: Iterable[str]) -> Tokenizer:
    """Learns merges on `texts` and returns the finished tokenizer."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")
    size = VOCABULARY_SIZE - len(SPECIAL_TOKENS) - len(BYTE_TOKENS)
    # The trainer knows no byte fallback, so the byte entries are put in afterwards.
    learner.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=size, limit_alphabet=130, show_progress=False, max_token_length=24),
    )
    learned = json.loads(learner.to_str())["model"]
    entries = SPECIAL_TOKENS + BYTE_TOKENS + sorted(learned["vocab"], key=learned["vocab"].get)
    merges = [tuple(merge) for merge in learned["merges"]]
    return _assemble({entry: index for index, entry in enumerate(entries)}, merges)


def _assemble(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    bpe = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")  # as Gemma's: after "▁" it never splits
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return tokenizer
