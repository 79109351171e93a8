"""Runs float32 graphs on LiteRT's interpreter, and notes the range of every tensor that it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from numpy.typing import NDArray

from paceline.machine import usable_cores


@dataclass
class ObservingRunner:
    """Runs graphs of one signature each, and notes the range of every tensor that a call has made or was given.

    Attributes:
        ranges: part -> tensor -> lowest and highest value so far.
    """

    files: Mapping[str, Path]
    ranges: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)

    def bind(self, part: str, signature: str, arrays: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """See `paceline.npu.runners.Runner`."""
        interpreter = Interpreter(
            str(self.files[part]),
            num_threads=usable_cores(),
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_preserve_all_tensors=True,
        )
        interpreter.allocate_tensors()
        listed = interpreter.get_signature_list()[signature]
        runner = interpreter._get_full_signature_list()[signature]
        inputs, outputs = runner["inputs"], runner["outputs"]
        computed = _computed(interpreter)
        ranges = self.ranges.setdefault(part, {})
        assert set(listed["inputs"]) == set(inputs)

        def note(name: str, values: NDArray[Any]) -> None:
            low, high = ranges.get(name, (0.0, 0.0))
            ranges[name] = min(low, float(values.min())), max(high, float(values.max()))

        def run() -> None:
            for name, index in inputs.items():
                interpreter.set_tensor(index, arrays[name])
                if arrays[name].dtype == np.float32:
                    note(name, arrays[name])
            interpreter.invoke()
            for name, index in outputs.items():
                arrays[name][:] = interpreter.get_tensor(index)
                if arrays[name].dtype == np.float32:
                    note(name, arrays[name])
            for index, name in computed:
                note(name, interpreter.get_tensor(index))

        return run

    def describe(self) -> str:
        """See `paceline.npu.runners.Runner`."""
        return "LiteRT's interpreter, observed"


def _computed(interpreter: Interpreter) -> list[tuple[int, str]]:
    """The float32 tensors that operators make and that have a name of their own."""
    made = {index for operator in interpreter._get_ops_details() for index in operator["outputs"]}
    details = [each for each in interpreter.get_tensor_details() if each["index"] in made and each["dtype"] == np.float32]
    return [(each["index"], each["name"]) for each in details if each["name"].startswith("a")]
