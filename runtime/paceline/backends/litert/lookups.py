"""The token tables of a bundle: what a target and a drafter are given for tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import signatures
from paceline.backends.litert.model import CompiledModel, Environment, TensorBuffer
from paceline.kv_cache import aligned_zeros
from paceline.signatures import SIGNATURES

TABLES = ("embedder", "per_layer_embedder")  # parts; the second one where a model has it


class Lookup:
    """Rows of the tables for a fixed number of tokens.

    Attributes:
        tokens: int32 [1, T], the tokens of the next `run`.
    """

    def __init__(
        self, environment: Environment, models: Mapping[str, CompiledModel], rows: int, outputs: Mapping[str, TensorBuffer]
    ):
        """Binds the calls to the buffers that the rows go to, by name; tables that none of them is for are left out."""
        self.tokens = aligned_zeros((1, rows), np.int32)
        token_ids = TensorBuffer(environment, self.tokens)
        self._calls = []
        for part in TABLES:
            if part in models:
                call = models[part].bind(SIGNATURES[rows])
                (output,) = (tensor.name for tensor in call.info.outputs)
                if output in outputs:
                    call.set_buffers({signatures.TOKEN_IDS: token_ids, output: outputs[output]})
                    self._calls.append(call)

    def run(self, tokens: NDArray[Any]) -> None:
        """Writes the rows of `tokens`, at most T; behind them are those of token 0."""
        self.tokens[0, : len(tokens)] = tokens
        self.tokens[0, len(tokens) :] = 0
        for call in self._calls:
            call.run()


class TokenTables:
    """The tables on arrays of their own, for whoever computes with the rows outside LiteRT."""

    def __init__(self, environment: Environment, models: Mapping[str, CompiledModel], sizes: Mapping[str, tuple[int, ...]]):
        """Takes the parts of a bundle; `sizes` are those of a row, by output."""
        self.environment, self.models, self.sizes = environment, models, sizes
        self._lookups: dict[int, tuple[Lookup, dict[str, NDArray[np.float32]]]] = {}

    def look_up(self, tokens: NDArray[Any], rows: int) -> dict[str, NDArray[np.float32]]:
        """The rows of `tokens`, padded to `rows`: output -> float32 [1, rows, ..], valid until the next call."""
        if rows not in self._lookups:
            arrays = {name: aligned_zeros((1, rows, *size)) for name, size in self.sizes.items()}
            buffers = {name: TensorBuffer(self.environment, array) for name, array in arrays.items()}
            self._lookups[rows] = Lookup(self.environment, self.models, rows, buffers), arrays
        lookup, arrays = self._lookups[rows]
        lookup.run(tokens)
        return arrays
