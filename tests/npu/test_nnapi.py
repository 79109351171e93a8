"""The NNAPI lint: every rule refuses a graph that breaks it and nothing else, and whatever bytes a file has, it ends."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import mutations
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from nnapi_graphs import ASKED, BROKEN, GELU, Broken, Example, Given, Written, example, options
from rich.console import Console

from paceline.errors import InputError
from paceline_export.npu import nnapi_rules, operators
from paceline_export.npu.nnapi import PROMISED_LEVEL, Report, lint, lint_table
from paceline_export.npu.nnapi_rules import FLOAT32, INT8, INT32, INT64
from paceline_export.npu.nnapi_table import FEATURE_LEVELS, OPERATIONS, RULES


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_every_rule_has_a_graph_that_breaks_it() -> None:
    tried = {(each.operator, each.rule.sentence) for each in BROKEN}
    assert [(name, rule.sentence) for name, rule in ASKED if (name, rule.sentence) not in tried] == []
    for name, rules in RULES.items():
        assert len({rule.sentence for rule in rules}) == len(rules), name


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_a_graph_that_breaks_one_rule(broken: Broken, written: Written) -> None:
    file = written.add("step", broken.graph).save()
    found = [(each.graph, each.index, each.operator, each.rule, each.source) for each in lint(file, broken.level).findings]
    assert found == [("step", 0, broken.operator, broken.rule.sentence, broken.rule.source)]
    if broken.rule.until is not None:
        report = lint(file, broken.rule.until)
        assert (report.findings, report.needed_level) == ((), broken.rule.until)


def test_every_rule_says_where_it_is_written() -> None:
    for _, rule in [*ASKED, ("", nnapi_rules.UNKNOWN)]:
        assert rule.source.startswith(("TFLite ", "NDK ", "Arm "))
        assert "{" not in rule.source


def test_operators_of_every_type_are_taken_at_their_level(written: Written) -> None:
    for level in FEATURE_LEVELS:
        taken = [
            example(name, dtype) for name, each in OPERATIONS.items() for dtype, since in each.levels.items() if since <= level
        ]
        report = lint(Written(written.folder).add("all", *taken).save(), level)
        assert (report.operators, report.findings, report.level) == (len(taken), (), level)


def test_a_float_graph_of_every_operator_is_clean(written: Written) -> None:
    floats = [example(name, FLOAT32) for name, each in OPERATIONS.items() if FLOAT32 in each.levels]
    report = lint(written.add("float", *floats).save())
    assert report == Report(PROMISED_LEVEL, len(floats), 6, ())
    older = lint(written.save(), 5)
    assert [each.operator for each in older.findings] == ["BATCH_MATMUL"]
    assert older.needed_level == 6


def test_biases_and_shapes_that_are_allowed(written: Written) -> None:
    connected, eight = example("FULLY_CONNECTED", FLOAT32), example("FULLY_CONNECTED", INT8)
    shaped = example("RESHAPE", FLOAT32)
    allowed = [
        replace(connected, inputs=(*connected.inputs[:2], Given(FLOAT32, (5,)))),
        replace(eight, inputs=(*eight.inputs[:2], Given(INT32, (5,), (0.25,)))),
        replace(shaped, inputs=shaped.inputs[:1]),
        example("ARG_MAX", FLOAT32).given(1, dtype=INT64),
        replace(example("ADD", FLOAT32), options=options("AddOptionsT", fusedActivationFunction=1)),
    ]
    assert lint(written.add("allowed", *allowed).save()).findings == ()


@pytest.mark.parametrize(
    ("examples", "level"),
    [
        ([], 1),
        ([example("ADD", FLOAT32)], 1),
        ([example("ADD", INT8), example("MEAN", FLOAT32)], 4),
        ([example("RESHAPE", INT32), example("EXP", FLOAT32)], 6),
        ([example("RSQRT", INT8)], 7),
        ([GELU, example("SQRT", FLOAT32)], 3),
        ([replace(example("RSQRT", INT8), version=9)], 1),
    ],
)
def test_the_needed_level(examples: Sequence[Example], level: int, written: Written) -> None:
    file = written.add("graph", *examples).save()
    assert {lint(file, each).needed_level for each in FEATURE_LEVELS} == {level}


def test_all_graphs_are_looked_at_in_order(written: Written) -> None:
    written.add("b", example("ADD", FLOAT32), GELU).add("a", GELU).add("", Example("CUMSUM", GELU.inputs, GELU.outputs))
    written.file.model.signatureDefs.pop()  # a subgraph without a signature, and without a name
    report = lint(written.save())
    found = [(each.graph, each.index, each.operator) for each in report.findings]
    assert found == [("b", 1, "GELU"), ("a", 0, "GELU"), ("subgraph 2", 0, "CUMSUM")]
    assert report.findings[2].rule == nnapi_rules.UNKNOWN.sentence


def test_one_row_for_the_same_finding(written: Written) -> None:
    table = lint_table(lint(written.add("[bold]\x1b[2J", GELU, GELU, GELU).save()))
    console = Console(file=io.StringIO(), width=300)
    console.print(table)
    assert table.row_count == 1
    assert r"[bold]\x1b[2J" in console.file.getvalue()


def test_our_own_graphs(tiny_bundle: Path) -> None:
    drafter, target = (lint(tiny_bundle / f"{part}.tflite") for part in ("drafter", "target"))
    # The rows of the chosen clusters are a batch, and the activations that they are multiplied with are not.
    found = {(each.operator, each.rule) for each in drafter.findings}
    assert found == {("GELU", nnapi_rules.REFUSED["GELU"].sentence), ("BATCH_MATMUL", nnapi_rules.NO_BROADCAST.sentence)}
    assert {each.operator for each in target.findings} == {"GELU", "DYNAMIC_UPDATE_SLICE"}
    assert {each.graph for each in target.findings} >= {"decode", "verify_2", "verify_8"}


@pytest.mark.parametrize("level", [0, 9, -1])
def test_an_unknown_level_is_refused(level: int, written: Written) -> None:
    with pytest.raises(InputError, match=rf"^{level} is no NNAPI feature level; choose one from 1 to 8\.$"):
        lint(written.add("graph").save(), level)


def lacking(examples: Sequence[Example], written: Written) -> str:
    with pytest.raises(InputError, match=r"graph\.tflite is not a whole \.tflite file") as caught:
        lint(written.add("graph", *examples).save())
    return str(caught.value)


@pytest.mark.parametrize("operator", OPERATIONS)
def test_an_operator_without_its_operands_is_damage(operator: str, written: Written) -> None:
    good = example(operator, next(iter(OPERATIONS[operator].levels)))
    assert f"{operator} has no input" in lacking([replace(good, inputs=())], Written(written.folder))


def test_an_operator_without_an_output_is_damage(written: Written) -> None:
    graph = written.add("graph", example("ADD", FLOAT32)).file.model.subgraphs[0]
    graph.operators[0].outputs = []
    assert "ADD has no output" in lacking([], written)


CHANGES: list[tuple[Callable[[Any], object], str]] = [
    (lambda model: setattr(model.subgraphs[0].operators[0], "inputs", [0, 99]), "an operand that is not there"),
    (lambda model: setattr(model.subgraphs[0].operators[0], "inputs", [0, -2]), "an operand that is not there"),
    (lambda model: setattr(model.subgraphs[0].operators[0], "opcodeIndex", 7), "a code that is not there"),
    (lambda model: setattr(model.subgraphs[0].tensors[0], "buffer", 7), "a buffer that is not there"),
    (lambda model: setattr(model.subgraphs[0], "name", b"\xff"), "'utf-8' codec"),
    (lambda model: setattr(model.subgraphs[0], "name", b"a" * operators.MOST_PARTS), "more than the 1,048,576 tensors"),
    (lambda model: model.subgraphs[0].tensors[0].__dict__.update(shape=np.ones(operators.MOST_PARTS, np.int32)), "more than"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_indices_that_point_outside(change: Callable[[Any], object], words: str, written: Written) -> None:
    model = written.add("graph", example("ADD", FLOAT32)).file.model
    model.signatureDefs.clear()
    change(model)
    with pytest.raises(InputError, match=words):
        lint(written.save())


def test_a_claim_of_billions_is_refused_at_once(written: Written) -> None:
    content = bytearray(written.add("graph", example("ADD", FLOAT32), example("MUL", FLOAT32)).save().read_bytes())
    graph = schema.Model.GetRootAs(content).Subgraphs(0)._tab
    for slot in (4, 10):  # of a subgraph's tensors and operators
        changed = bytearray(content)
        struct.pack_into("<I", changed, graph.Vector(graph.Offset(slot)) - 4, 1 << 31)
        file = written.folder / "claim.tflite"
        file.write_bytes(changed)
        with pytest.raises(InputError, match="more than the 1,048,576 tensors"):
            lint(file)


@pytest.mark.parametrize(
    "content", [b"", b"TFL3", b"\0\0\0\0TFL3", b"not a model at all", b"\xff" * 64, b"\x08\0\0\0TFL3" + b"\0" * 64]
)
def test_what_is_no_model(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "graph.tflite"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"is not a whole \.tflite file \("):
        lint(file)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", ".", "pipe"):
        with pytest.raises(InputError, match=r"is not a whole \.tflite file \("):
            lint(tmp_path / name)


@pytest.mark.parametrize("mutate", [mutations.raw, mutations.head])
def test_changed_bytes_are_read_or_refused(mutate: mutations.Mutation, written: Written) -> None:
    content = (
        written.add("all", *(example(name, next(iter(each.levels))) for name, each in OPERATIONS.items())).save().read_bytes()
    )
    file, refused = written.folder / "changed.tflite", 0
    for seed in range(300):
        file.write_bytes(mutate(content, Random(seed)))
        try:
            lint_table(lint(file))
        except InputError:
            refused += 1
    assert 0 < refused < 300
