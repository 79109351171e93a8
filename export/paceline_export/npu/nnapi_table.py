"""Which TFLite operators reach NNAPI, from which feature level on, and what is asked of each: the lint's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline_export.npu import nnapi_rules as nn
from paceline_export.npu.nnapi_rules import FLOAT32, INT8, INT32, INT64, UINT8, Rule

FEATURE_LEVELS = range(1, 9)
NDK_NAMES = {"ARG_MAX": "ARGMAX", "SUM": "REDUCE_SUM"}  # where they are not TFLite's


@dataclass(frozen=True)
class Operation:
    """An operator, in short.

    Attributes:
        levels: type of its first tensor with numbers -> the feature level that takes it.
        version: the newest one of it.
        ranks: the fewest and the most dimensions of its tensors with numbers; None is any number.
        special: rules of its own.
        data: its tensors with numbers to compute with, rather than places or sizes.
    """

    levels: Mapping[str, int]
    version: int
    ranks: tuple[int, int | None] | None
    special: tuple[Rule, ...]
    data: nn.Data = nn.unary

    def rules(self, name: str) -> tuple[Rule, ...]:
        """All rules, with the operator's names in their sources."""
        delegate = "".join(part.capitalize() for part in name.split("_"))
        ranks = [] if self.ranks is None else [nn.ranks(*self.ranks, self.data)]
        found = [*nn.types(self.levels, self.data), nn.version(self.version), *ranks, *self.special]
        names = {"delegate": delegate, "ndk": NDK_NAMES.get(name, name)}
        return tuple(replace(rule, source=rule.source.format_map(names)) for rule in found)


UP_TO_4, MATRICES = (0, 4), (2, 4)
NUMBERS = {FLOAT32: 1, UINT8: 1, INT8: 4}
NUMBERS_FROM_2 = {FLOAT32: 2, UINT8: 3, INT8: 4}
CURVES = {FLOAT32: 1, UINT8: 3, INT8: 4}
CHOICES = {FLOAT32: 3, INT32: 3, UINT8: 3, INT8: 4}
UNARY, BINARY, JOINED = ((nn.one_type(data), nn.one_scale(data)) for data in (nn.unary, nn.binary, nn.joined))
REDUCED = (nn.NO_SCALAR, nn.integers(1, "its axes", nn.NDK))
FLOATS = Operation({FLOAT32: 3}, 1, None, (nn.one_type(nn.unary),))
OPERATIONS = {
    "ADD": Operation({**NUMBERS, INT32: 4}, 2, UP_TO_4, (*BINARY, nn.INTEGERS_NOT_ACTIVATED), nn.binary),
    "SUB": Operation({**NUMBERS_FROM_2, INT32: 4}, 3, UP_TO_4, (*BINARY, nn.INTEGERS_NOT_ACTIVATED), nn.binary),
    # Version 3 of MUL is taken where an accelerator is named, which a file cannot do.
    "MUL": Operation({**NUMBERS, INT32: 4}, 2, UP_TO_4, (*BINARY, nn.INTEGERS_NOT_ACTIVATED, nn.WIDE_PRODUCT), nn.binary),
    "DIV": Operation({FLOAT32: 2}, 1, UP_TO_4, (nn.one_type(nn.binary),), nn.binary),
    "FULLY_CONNECTED": Operation(
        NUMBERS, 5, MATRICES, (*BINARY, nn.STORED_WEIGHTS, nn.BIAS, nn.FLAT, nn.WIDE_DOT_PRODUCT), nn.binary
    ),
    "BATCH_MATMUL": Operation({FLOAT32: 6, INT32: 6, INT8: 6}, 2, MATRICES, (*BINARY, nn.NO_BROADCAST), nn.binary),
    "SOFTMAX": Operation(NUMBERS, 2, UP_TO_4, (*UNARY, nn.SHARES, nn.rank_before(3, [2, 4]))),
    "LOGISTIC": Operation(NUMBERS, 2, UP_TO_4, (*UNARY, nn.SHARES)),
    "TANH": Operation(CURVES, 2, UP_TO_4, (*UNARY, nn.SIGNED)),
    "L2_NORMALIZATION": Operation(CURVES, 2, UP_TO_4, (*UNARY, nn.SIGNED, nn.NOT_ACTIVATED, nn.rank_before(3, [4]))),
    "RSQRT": Operation({FLOAT32: 3, UINT8: 7, INT8: 7}, 2, None, UNARY),
    **dict.fromkeys(["SQRT", "EXP", "LOG", "SIN", "COS"], FLOATS),
    "MEAN": Operation(NUMBERS_FROM_2, 2, UP_TO_4, (*UNARY, nn.SAME_SCALE, *REDUCED)),
    "REDUCE_MAX": Operation({FLOAT32: 3, UINT8: 3, INT8: 4}, 2, UP_TO_4, (*UNARY, nn.SAME_SCALE, *REDUCED)),
    "SUM": Operation({FLOAT32: 3}, 1, UP_TO_4, (nn.one_type(nn.unary), *REDUCED)),
    "RESHAPE": Operation({**NUMBERS, INT32: 6}, 1, UP_TO_4, (*UNARY, nn.SAME_SCALE, nn.STORED_SHAPE)),
    "CONCATENATION": Operation(NUMBERS, 2, UP_TO_4, (*JOINED, nn.NOT_ACTIVATED, nn.SAME_SCALES), nn.joined),
    "SLICE": Operation(
        CHOICES,
        2,
        None,
        (
            *UNARY,
            nn.SAME_SCALE,
            nn.constant(1, "where it begins", source=nn.SIZES),
            nn.constant(2, "its size", source=nn.SIZES),
        ),
    ),
    "TRANSPOSE": Operation(
        {FLOAT32: 2, UINT8: 2, INT8: 4},
        2,
        UP_TO_4,
        (*UNARY, nn.SAME_SCALE, nn.constant(1, "the order of its dimensions", source=nn.BOTH)),
    ),
    "GATHER": Operation(CHOICES, 2, None, (*UNARY, nn.SAME_SCALE, nn.integers(1, "its places", nn.DELEGATE), nn.SOME_PLACES)),
    "TOPK_V2": Operation(CHOICES, 2, None, (*UNARY, nn.SAME_SCALE, nn.constant(1, "how many it takes"))),
    "ARG_MAX": Operation(
        CHOICES,
        2,
        None,
        (
            nn.one_scale(nn.read),
            nn.constant(1, "its axis", [INT32, INT64], nn.BOTH),
            nn.output_types([INT32], nn.DELEGATE),
        ),
        nn.read,
    ),
    "EMBEDDING_LOOKUP": Operation(
        {FLOAT32: 1},
        1,
        (2, None),
        (nn.one_type(nn.looked_up), nn.integers(0, "its places", nn.NDK), nn.LISTED_PLACES),
        nn.looked_up,
    ),
    # The delegate lets int8 pass, which the header casts to itself only.
    "CAST": Operation({FLOAT32: 3, INT32: 3, UINT8: 3}, 1, None, (nn.output_types([FLOAT32, INT32, UINT8], nn.NDK),), nn.read),
    "QUANTIZE": Operation(
        {FLOAT32: 3, UINT8: 3, INT8: 4},
        2,
        None,
        (nn.one_scale(nn.unary), nn.output_types([UINT8, INT8], nn.DELEGATE), nn.UNSIGNED),
        nn.read,
    ),
    # Level 3 takes int8 whose zero point is 0, which nobody can count on.
    "DEQUANTIZE": Operation(
        {UINT8: 1, INT8: 4}, 2, UP_TO_4, (nn.one_scale(nn.read), nn.output_types([FLOAT32], nn.NDK)), nn.read
    ),
}
RULES: Mapping[str, tuple[Rule, ...]] = {name: operation.rules(name) for name, operation in OPERATIONS.items()} | {
    name: (rule,) for name, rule in nn.REFUSED.items()
}


def rules_of(operator: str) -> tuple[Rule, ...]:
    """What NNAPI asks of an operator; one rule that every call breaks, where it takes none."""
    return RULES.get(operator, (nn.UNKNOWN,))
