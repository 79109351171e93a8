"""One model's weights on their way to integers: what each is rounded to, and what that cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt

from paceline_export.quantize import Quantized, Scheme, quantize
from paceline_export.recipes import Schemes
from paceline_export.weights import Pieces


@dataclass(frozen=True)
class Rounding:
    """Schemes of the weights that are not float32.

    Attributes:
        errors: weight -> norm of the difference of the norm of the weight; known once a lowering has written it.
    """

    schemes: Schemes
    errors: dict[str, float] = field(default_factory=dict)

    def scheme(self, name: str) -> Scheme | None:
        """None where a weight stays float32."""
        return self.schemes.get(name)

    def round(self, name: str, pieces: Pieces) -> Iterator[Quantized]:
        """Rounds a weight piece by piece, and notes its error at the end."""
        error = norm = 0.0
        for piece in pieces():
            rounded = quantize(piece, self.schemes[name])
            error, norm = error + rounded.squared_error, norm + rounded.squared_norm
            yield rounded
        self.errors[name] = sqrt(error / norm) if norm else 0.0
