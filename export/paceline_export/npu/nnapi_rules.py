"""What NNAPI asks of an operator, as rules that say where they are written; `nnapi_table.py` says which has which.

An operator reaches NNAPI through TFLite's delegate, whose Validate() refuses what it cannot translate; what it lets pass must
also be what NNAPI's header describes, or a driver refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose

from paceline_export.npu.operators import Call, Operand

FLOAT32, INT32, INT8, UINT8, INT64 = "float32", "int32", "int8", "uint8", "int64"
EIGHT_BITS = (INT8, UINT8)
# The table fills in the operator's names.
DELEGATE = "TFLite nnapi_delegate.cc, Validate(), kTfLiteBuiltin{delegate}"
NDK = "NDK NeuralNetworks.h, ANEURALNETWORKS_{ndk}"
BOTH = f"{DELEGATE}; {NDK}"
NO_CASE = "TFLite nnapi_delegate.cc, Validate(): operators that it has no case for are refused"
SIZES = "TFLite kernels/slice.cc, Prepare(), and core/subgraph.cc, ModifyGraphWithDelegate(): sizes are known beforehand"
DRIVERS = "Arm android-nn-driver, FullyConnectedTests: it refuses other weights, which the header allows"


@dataclass(frozen=True)
class Rule:
    """What NNAPI asks of an operator.

    Attributes:
        sentence: what holds where the rule is kept.
        source: where it is written.
        broken: whether a call breaks it.
        until: the feature level from which on it is asked no more; None asks it at every level.
    """

    sentence: str
    source: str
    broken: Callable[[Call], bool]
    until: int | None = None


Data = Callable[[Call], Sequence[Operand]]


def read(call: Call) -> Sequence[Operand]:
    """The input, of an operator whose output is of a type of its own."""
    return (call.input(0),)


def unary(call: Call) -> Sequence[Operand]:
    return call.input(0), call.output


def binary(call: Call) -> Sequence[Operand]:
    return call.input(0), call.input(1), call.output


def joined(call: Call) -> Sequence[Operand]:
    return call.input(0), *(each for each in call.inputs[1:] if each is not None), call.output


def looked_up(call: Call) -> Sequence[Operand]:
    return call.input(1), call.output


def spoken(names: Iterable[str], word: str) -> str:
    """Names as words: a, b and c."""
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


def types(levels: Mapping[str, int], data: Data) -> list[Rule]:
    """The types that it takes, each from some feature level on."""
    made = [Rule(f"it takes {spoken(levels, 'and')}", BOTH, lambda call: data(call)[0].type not in levels)]
    for level in sorted({*levels.values()} - {1}):
        late = [each for each, since in levels.items() if since == level]
        made.append(_not_before(level, late, data))
    return made


def _not_before(level: int, late: Sequence[str], data: Data) -> Rule:
    sentence = f"before feature level {level} it takes no {spoken(late, 'or')}"
    return Rule(sentence, BOTH, lambda call: data(call)[0].type in late, level)


def version(most: int) -> Rule:
    """The newest version of it that the delegate knows."""
    return Rule(f"its version is at most {most}", DELEGATE, lambda call: call.version > most)


def ranks(least: int, most: int | None, data: Data) -> Rule:
    """The number of dimensions of its tensors."""
    allowed = f"at least {least}" if most is None else f"{least} to {most}" if least else f"at most {most}"

    def broken(call: Call) -> bool:
        return any(len(each.shape) < least or (most is not None and len(each.shape) > most) for each in data(call))

    return Rule(f"its tensors have {allowed} dimensions", NDK, broken)


def rank_before(level: int, allowed: Sequence[int]) -> Rule:
    """The number of dimensions that early feature levels take."""
    words = " or ".join(map(str, allowed))
    sentence = f"before feature level {level} its input has {words} dimensions"
    return Rule(sentence, BOTH, lambda call: len(call.input(0).shape) not in allowed, level)


def one_type(data: Data) -> Rule:
    """Weights of int8 or int4 under an input of float32 break it, too."""
    sentence = "what it reads and writes is of one type: nothing hybrid, no int4 weights"
    return Rule(sentence, NDK, lambda call: len({each.type for each in data(call)}) > 1)


def scaled(*tensors: Operand) -> bool:
    """Whether all of them have 8 bits and one scale, so that their scales can be compared."""
    return all(each.type in EIGHT_BITS and each.scales == 1 and each.scale > 0 for each in tensors)


def one_scale(data: Data) -> Rule:
    """Per-channel weights break it."""

    def broken(call: Call) -> bool:
        return any(each.type in EIGHT_BITS and not scaled(each) for each in data(call))

    source = f"{NDK}, and of the operand types TENSOR_QUANT8_ASYMM and TENSOR_QUANT8_ASYMM_SIGNED"
    return Rule("its tensors of 8 bits have one scale each, above 0, and none for each channel", source, broken)


def differ(one: Operand, other: Operand) -> bool:
    """Whether two tensors of 8 bits give the same number different values."""
    alike = scaled(one, other) and one.type == other.type
    return alike and (one.scale, one.zero_point) != (other.scale, other.zero_point)


SAME_SCALE = Rule(
    "its input and output of 8 bits have one scale and zero point", NDK, lambda call: differ(call.input(0), call.output)
)
NO_SCALAR = Rule("its output is no scalar", NDK, lambda call: not call.output.shape)


def _fixed(fraction: int, zero_points: Mapping[str, int]) -> Rule:
    def broken(call: Call) -> bool:
        out = call.output
        return scaled(out) and (out.scale, out.zero_point) != (1 / fraction, zero_points[out.type])

    points = " and ".join(f"zero point {point} in {each}" for each, point in zero_points.items())
    return Rule(f"its output of 8 bits has the scale 1/{fraction}, with {points}", NDK, broken)


SHARES = _fixed(256, {INT8: -128, UINT8: 0})  # of what is between 0 and 1
SIGNED = _fixed(128, {INT8: 0, UINT8: 128})


def constant(place: int, what: str, allowed: Sequence[str] = (INT32,), source: str = DELEGATE) -> Rule:
    """An input that has to be in the file."""

    def broken(call: Call) -> bool:
        return not (call.input(place).constant and call.input(place).type in allowed)

    return Rule(f"{what} is a constant of {spoken(allowed, 'or')}", source, broken)


def integers(place: int, what: str, source: str) -> Rule:
    """An input that may be computed."""
    return Rule(f"{what} are int32", source, lambda call: call.input(place).type != INT32)


def output_types(allowed: Sequence[str], source: str) -> Rule:
    """Of an operator whose output is of a type of its own."""
    return Rule(f"its output is {spoken(allowed, 'or')}", source, lambda call: call.output.type not in allowed)


def _computed_shape(call: Call) -> bool:
    shape = call.optional(1)  # old files have it as an option
    return shape is not None and not shape.constant


def _too_narrow(call: Call) -> bool:
    one, other, out = binary(call)
    return scaled(one, other, out) and out.scale <= one.scale * other.scale


def _other_bias(call: Call) -> bool:
    x, weights, bias = call.input(0), call.input(1), call.optional(2)
    if bias is None:  # the delegate adds one of zeros
        return False
    if x.type not in EIGHT_BITS:
        return bias.type != FLOAT32
    fits = bias.scales == 1 and isclose(bias.scale, x.scale * weights.scale, rel_tol=1e-6)
    return bias.type != INT32 or not fits or bias.zero_point != 0


def _broadcast(call: Call) -> bool:
    one, other = call.input(0).shape, call.input(1).shape
    return len(one) != len(other) or one[:-2] != other[:-2]


NOT_ACTIVATED = Rule("no activation function is part of it", DELEGATE, lambda call: call.activated)
INTEGERS_NOT_ACTIVATED = Rule(
    "in int32 no activation function is part of it", BOTH, lambda call: call.activated and call.input(0).type == INT32
)
WIDE_PRODUCT = Rule("the scale of its output of 8 bits is above the product of its inputs' scales", NDK, _too_narrow)
WIDE_DOT_PRODUCT = Rule(
    "before feature level 3 the scale of its uint8 output is above the product of its inputs' scales",
    BOTH,
    lambda call: call.output.type == UINT8 and _too_narrow(call),
    until=3,
)
STORED_WEIGHTS = Rule("its weights are a constant", DRIVERS, lambda call: not call.input(1).constant)
BIAS = Rule("its bias is float32, and where it has 8 bits, int32 with the scale of input times weights", NDK, _other_bias)
FLAT = Rule("before feature level 4 its output has two dimensions", DELEGATE, lambda call: call.keeps_dims, until=4)
NO_BROADCAST = Rule("its inputs have the same leading dimensions", BOTH, _broadcast)
STORED_SHAPE = Rule("its shape is a constant", DELEGATE, _computed_shape)
SAME_SCALES = Rule(
    "before feature level 3 its uint8 inputs have the output's scale and zero point",
    BOTH,
    lambda call: call.output.type == UINT8 and any(differ(each, call.output) for each in joined(call)),
    until=3,
)
SOME_PLACES = Rule("its places are no scalar", DELEGATE, lambda call: not call.input(1).shape)
LISTED_PLACES = Rule("its places have one dimension", NDK, lambda call: len(call.input(0).shape) != 1)
UNSIGNED = Rule("before feature level 4 its output is uint8", DELEGATE, lambda call: call.output.type == INT8, until=4)

REFUSED = {
    "GELU": Rule("NNAPI has no GELU; with tanh it can be said in operators that it has", NO_CASE, lambda _: True),
    "DYNAMIC_UPDATE_SLICE": Rule(
        "NNAPI writes no caches; new rows can be outputs, and be written outside of the graph", NO_CASE, lambda _: True
    ),
}
UNKNOWN = Rule("it is none of the operators that are known to reach NNAPI", NO_CASE, lambda _: True)
