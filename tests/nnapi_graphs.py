"""Tiny graphs of one operator each: what NNAPI takes, and for every rule of its lint what breaks this rule and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from paceline_export.lower.flatbuffer import Builtin, Subgraph, TfliteFile
from paceline_export.npu import nnapi_rules
from paceline_export.npu.nnapi_rules import FLOAT32, INT8, INT32, INT64, UINT8, Rule
from paceline_export.npu.nnapi_table import FEATURE_LEVELS, OPERATIONS, RULES

SHAPE = (1, 2, 3, 4)


@dataclass(frozen=True)
class Given:
    """A tensor of a tiny graph; one of 8 bits has a scale unless it says otherwise."""

    dtype: str
    shape: tuple[int, ...] = SHAPE
    scales: tuple[float, ...] | None = None
    zero_point: int = 0
    constant: bool = False

    def quantization(self) -> Any:
        scales = self.scales if self.scales is not None else (0.5,) if self.dtype in (INT8, UINT8) else ()
        if not scales:
            return None
        made = schema.QuantizationParametersT()
        made.scale, made.zeroPoint = np.array(scales, np.float32), np.array([self.zero_point] * len(scales), np.int64)
        return made

    def tensor(self, graph: Subgraph) -> Any:
        buffer = graph.file.constant(np.ones(self.shape, np.int8)) if self.constant else 0
        made = graph.tensor(self.shape, buffer=buffer, quantization=self.quantization())
        graph.graph.tensors[made.index].type = getattr(schema.TensorType, self.dtype.upper())
        return made


@dataclass(frozen=True)
class Example:
    """A graph of one operator."""

    operator: str
    inputs: tuple[Given | None, ...]
    outputs: tuple[Given, ...]
    options: Any = None
    version: int = 1

    def given(self, place: int, **changes: Any) -> Example:
        """With another input."""
        changed = list(self.inputs)
        found = changed[place]
        assert found is not None
        changed[place] = replace(found, **changes)
        return replace(self, inputs=tuple(changed))

    def giving(self, **changes: Any) -> Example:
        """With another first output."""
        return replace(self, outputs=(replace(self.outputs[0], **changes), *self.outputs[1:]))

    def data(self, change: Callable[[Given], Given]) -> Example:
        """With every tensor changed that has the type of the numbers it computes with."""
        place = 1 if self.operator == "EMBEDDING_LOOKUP" else 0
        first = self.inputs[place]
        assert first is not None

        def changed(each: Given | None) -> Any:
            return change(each) if each is not None and each.dtype == first.dtype else each

        return replace(self, inputs=tuple(map(changed, self.inputs)), outputs=tuple(map(changed, self.outputs)))


def options(kind: str, **values: Any) -> Any:
    made = getattr(schema, kind)()
    for name, value in values.items():
        setattr(made, name, value)
    return made


FIXED = {
    "SOFTMAX": {INT8: (1 / 256, -128), UINT8: (1 / 256, 0)},
    "LOGISTIC": {INT8: (1 / 256, -128), UINT8: (1 / 256, 0)},
    "TANH": {INT8: (1 / 128, 0), UINT8: (1 / 128, 128)},
    "L2_NORMALIZATION": {INT8: (1 / 128, 0), UINT8: (1 / 128, 128)},
}
GELU = Example("GELU", (Given(FLOAT32),), (Given(FLOAT32),))
AXES = Given(INT32, (1,), constant=True)


def example(operator: str, dtype: str) -> Example:
    """A call that NNAPI takes at the newest level, of numbers of this type."""
    x = Given(dtype)
    match operator:
        case "ADD" | "SUB" | "MUL" | "DIV":
            return Example(operator, (x, x), (x,), options(f"{operator.capitalize()}OptionsT"))
        case "FULLY_CONNECTED":
            weights = Given(dtype, (5, 4), constant=True)
            return Example(operator, (x, weights, None), (replace(x, shape=(6, 5)),), options("FullyConnectedOptionsT"))
        case "BATCH_MATMUL":
            return Example(operator, (x, replace(x, shape=(1, 2, 4, 5))), (replace(x, shape=(1, 2, 3, 5)),))
        case "SOFTMAX" | "LOGISTIC" | "TANH" | "L2_NORMALIZATION":
            made = Example(operator, (x,), (x,), options("L2NormOptionsT") if operator.startswith("L2") else None)
            if dtype == FLOAT32:
                return made
            scale, zero_point = FIXED[operator][dtype]
            return made.giving(scales=(scale,), zero_point=zero_point)
        case "MEAN" | "REDUCE_MAX" | "SUM":
            return Example(operator, (x, AXES), (replace(x, shape=(1, 2, 3, 1)),))
        case "RESHAPE":
            return Example(operator, (x, Given(INT32, (2,), constant=True)), (replace(x, shape=(6, 4)),))
        case "CONCATENATION":
            return Example(operator, (x, x), (replace(x, shape=(2, 2, 3, 4)),), options("ConcatenationOptionsT"))
        case "SLICE":
            bounds = Given(INT32, (4,), constant=True)
            return Example(operator, (x, bounds, bounds), (replace(x, shape=(1, 1, 3, 4)),))
        case "TRANSPOSE":
            return Example(operator, (x, Given(INT32, (4,), constant=True)), (x,))
        case "GATHER":
            return Example(operator, (x, Given(INT32, (1,))), (x,))
        case "TOPK_V2":
            return Example(operator, (x, Given(INT32, (), constant=True)), (x, Given(INT32)))
        case "ARG_MAX":
            return Example(operator, (x, AXES), (Given(INT32, (1, 2, 3)),))
        case "EMBEDDING_LOOKUP":
            return Example(operator, (Given(INT32, (2,)), Given(dtype, (5, 4), constant=True)), (Given(dtype, (2, 4)),))
        case "CAST":
            return Example(operator, (x,), (Given(INT32),))
        case "QUANTIZE":
            return Example(operator, (x,), (Given(UINT8),))
        case "DEQUANTIZE":
            return Example(operator, (x,), (Given(FLOAT32),))
    assert operator in ("RSQRT", "SQRT", "EXP", "LOG", "SIN", "COS"), f"{operator} has no example"
    return Example(operator, (x,), (x,))


@dataclass(frozen=True)
class Broken:
    """A graph that breaks one rule, which is asked at this level."""

    operator: str
    rule: Rule
    graph: Example
    level: int

    def __str__(self) -> str:
        return f"{self.operator}: {self.rule.sentence}"


def breaking(operator: str, rule: Rule) -> Iterator[Example]:
    """Graphs that break a rule of the table; none where nobody has thought of one."""
    if operator not in OPERATIONS:
        yield Example(operator, (Given(FLOAT32),) * 3, (Given(FLOAT32),))
        return
    operation, says = OPERATIONS[operator], rule.sentence
    good = example(operator, FLOAT32 if FLOAT32 in operation.levels else INT8)
    eights = [example(operator, each) for each in (INT8, UINT8) if each in operation.levels]
    if says.startswith("it takes "):
        yield from (good.data(partial(replace, dtype=dtype)) for dtype in ("int16", "int4", "float16", "bool"))
    elif "it takes no " in says:
        yield from (example(operator, each) for each, since in operation.levels.items() if since == rule.until)
    elif says.startswith("its version is at most"):
        yield replace(good, version=operation.version + 1)
    elif says.startswith("its tensors have"):
        least, most = operation.ranks or (0, None)
        if most is not None:
            yield good.data(lambda each: replace(each, shape=(1,) * (most + 1 - len(each.shape)) + each.shape))
        if least:
            yield good.data(lambda each: replace(each, shape=each.shape[-1:]))
    elif says.startswith("what it reads and writes is of one type"):
        yield good.giving(dtype=INT32)
        if operator in ("FULLY_CONNECTED", "BATCH_MATMUL"):
            yield from (good.given(1, dtype=dtype, scales=(0.5,)) for dtype in (INT8, "int4"))
    elif says.startswith("its tensors of 8 bits have one scale"):
        for eight in eights:
            for scales in ((), (0.5, 0.25), (0.0,), (-1.0,), (float("nan"),)):
                if operator == "FULLY_CONNECTED":
                    yield eight.given(1, scales=scales)
                written = eight.outputs[0].dtype in (INT8, UINT8)
                yield eight.giving(scales=scales) if written else eight.given(0, scales=scales)
    elif says == nnapi_rules.SAME_SCALE.sentence or (operator in FIXED and "its output of 8 bits has the scale" in says):
        for eight in eights:
            yield from (eight.giving(zero_point=1), eight.giving(scales=(0.25,)))
    else:
        yield from special(operator, rule, good)


def special(operator: str, rule: Rule, good: Example) -> Iterator[Example]:
    """Graphs for the rules that few operators have."""
    relu = schema.ActivationFunctionType.RELU
    same = [name for name, each in vars(nnapi_rules).items() if isinstance(each, Rule) and each.sentence == rule.sentence]
    match same[0] if same else rule.sentence:
        case "NO_SCALAR":
            yield good.giving(shape=())
        case "NOT_ACTIVATED":
            yield replace(good, options=options(type(good.options).__name__, fusedActivationFunction=relu))
        case "INTEGERS_NOT_ACTIVATED":
            whole = example(operator, INT32)
            yield replace(whole, options=options(type(whole.options).__name__, fusedActivationFunction=relu))
        case "WIDE_PRODUCT":
            yield from (example(operator, each).giving(scales=(0.25,)) for each in (INT8, UINT8))
        case "WIDE_DOT_PRODUCT":
            yield example(operator, UINT8).giving(scales=(0.25,))
        case "STORED_WEIGHTS":
            yield good.given(1, constant=False)
        case "BIAS":
            eight = example(operator, INT8)
            x, weights, _ = eight.inputs
            for bias in (
                Given(FLOAT32, (5,)),
                Given(INT32, (5,)),
                Given(INT32, (5,), (0.125,)),
                Given(INT32, (5,), (0.25,), zero_point=1),
            ):
                yield replace(eight, inputs=(x, weights, bias))
            yield replace(good, inputs=(*good.inputs[:2], Given(INT32, (5,))))
        case "FLAT":
            yield replace(good, options=options("FullyConnectedOptionsT", keepNumDims=True))
        case "NO_BROADCAST":
            yield good.given(1, shape=(1, 1, 4, 5))
            yield good.given(1, shape=(4, 5))
        case "STORED_SHAPE":
            yield good.given(1, constant=False)
        case "SAME_SCALES":
            yield example(operator, UINT8).given(1, scales=(0.25,))
        case "SOME_PLACES":
            yield good.given(1, shape=())
        case "LISTED_PLACES":
            yield good.given(0, shape=(1, 2))
        case "UNSIGNED":
            yield good.giving(dtype=INT8)
        case "before feature level 3 its input has 2 or 4 dimensions" | "before feature level 3 its input has 4 dimensions":
            yield good.given(0, shape=(2, 3, 4)).giving(shape=(2, 3, 4))
        case "where it begins is a constant of int32" | "the order of its dimensions is a constant of int32":
            yield from (good.given(1, constant=False), good.given(1, dtype=INT64))
        case "how many it takes is a constant of int32" | "its axis is a constant of int32 or int64":
            yield from (good.given(1, constant=False), good.given(1, dtype="int16"))
        case "its size is a constant of int32":
            yield from (good.given(2, constant=False), good.given(2, dtype=INT64))
        case "its axes are int32":
            yield good.given(1, dtype=INT64)
        case "its places are int32":
            yield good.given(0 if operator == "EMBEDDING_LOOKUP" else 1, dtype=INT64)
        case "its output is int32":
            yield good.giving(dtype=INT64)
        case "its output is float32, int32 or uint8":
            yield from (good.giving(dtype=INT8), good.giving(dtype=INT64))
        case "its output is uint8 or int8" | "its output is float32":
            yield good.giving(dtype="int16")


ASKED = [(operator, rule) for operator, rules in RULES.items() for rule in rules]
BROKEN = [
    Broken(name, rule, graph, (rule.until or FEATURE_LEVELS.stop) - 1) for name, rule in ASKED for graph in breaking(name, rule)
]


@dataclass
class Written:
    """Writes graphs of examples to a file."""

    folder: Path
    file: TfliteFile = field(default_factory=TfliteFile)

    def add(self, name: str, *examples: Example) -> Written:
        graph = Subgraph(self.file, name)
        for each in examples:
            inputs = [None if given is None else given.tensor(graph) for given in each.inputs]
            outputs = [given.tensor(graph) for given in each.outputs]
            graph.operator(getattr(Builtin, each.operator), inputs, outputs, each.options, each.version)
            graph.graph.outputs += [tensor.index for tensor in outputs]
        graph.finish()
        return self

    def save(self) -> Path:
        path = self.folder / "graph.tflite"
        path.unlink(missing_ok=True)
        self.file.save(path, lambda *_: None)
        return path
