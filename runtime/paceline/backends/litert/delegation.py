"""Which operators of a signature XNNPACK takes, found by running it once under LiteRT's profiler."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from paceline.backends.litert.expected import expected_signatures, require_signatures
from paceline.backends.litert.model import CompiledModel, Environment, TensorBuffer
from paceline.backends.names import LITERT
from paceline.bundle import Bundle
from paceline.kv_cache import aligned_zeros
from paceline.signatures import GROWTH_SLOTS

NAMES = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
MATRIX_PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL")


@dataclass(frozen=True)
class Delegation:
    """One signature's operators.

    Attributes:
        operators: how many the file has, by TFLite's name.
        own: how many LiteRT ran in its own kernels, by TFLite's name.
        by_xnnpack: how many XNNPACK ran, by its name; it splits and joins operators as it likes.
    """

    operators: Counter[str]
    own: Counter[str]
    by_xnnpack: Counter[str]

    @property
    def delegated(self) -> Counter[str]:
        """How many XNNPACK took."""
        return self.operators - self.own

    @property
    def products(self) -> int:
        """Matrix products, which is where the time goes."""
        return sum(self.operators[name] for name in MATRIX_PRODUCTS)

    @property
    def delegated_products(self) -> int:
        """Matrix products that XNNPACK took."""
        return sum(self.delegated[name] for name in MATRIX_PRODUCTS)

    def __str__(self) -> str:
        left = ", ".join(f"{count} {name}" for name, count in sorted(self.own.items())) or "none"
        return (
            f"XNNPACK ran {self.delegated.total()} of {self.operators.total()} operators, "
            f"{self.delegated_products} of {self.products} matrix products; left to LiteRT: {left}"
        )


def delegation(
    environment: Environment, bundle: Bundle, part: str, signature: str, weight_cache: Path | None = None
) -> Delegation:
    """Runs a signature of an opened bundle's part once, on zeros and the smallest caches.

    Raises:
        InputError: LiteRT refuses the file, or the signature is not the one that the bundle should have.
    """
    file = bundle.folder / bundle.manifest.graphs[LITERT].parts[part]
    model = CompiledModel(environment, file, threads=1, weight_cache=weight_cache, only=signature, profiled=True)
    require_signatures(file, model, {signature: expected_signatures(bundle.manifest, part)[signature]})
    call = model.bind(signature)
    shapes = {tensor.name: tensor for tensor in (*call.info.inputs, *call.info.outputs)}
    arrays = {
        name: aligned_zeros(tuple(GROWTH_SLOTS if size < 0 else size for size in tensor.shape), tensor.dtype)
        for name, tensor in shapes.items()
    }
    call.set_buffers({name: TensorBuffer(environment, array) for name, array in arrays.items()})
    by_xnnpack, own = call.profile()
    return Delegation(_operators(model.content, signature), own, by_xnnpack)


def _operators(content: NDArray[np.uint8], signature: str) -> Counter[str]:
    """The operators that a file has for a signature; of its weights nothing is read."""
    model = schema.Model.GetRootAs(content)
    definitions = [model.SignatureDefs(i) for i in range(model.SignatureDefsLength())]
    (graph,) = (d.SubgraphIndex() for d in definitions if d.SignatureKey() == signature.encode())
    subgraph = model.Subgraphs(graph)
    codes = [model.OperatorCodes(i).BuiltinCode() for i in range(model.OperatorCodesLength())]
    used = [subgraph.Operators(i).OpcodeIndex() for i in range(subgraph.OperatorsLength())]
    return Counter(NAMES[codes[index]] for index in used)
