"""Typed access to a parsed config.json, with one clear sentence when a field is not what we can use."""

from __future__ import annotations

import json
import re
from typing import Any

from paceline.errors import InputError
from paceline.manifest import MOST

_REQUIRED: Any = object()


class Fields:
    """A JSON object together with the words that name it in messages."""

    def __init__(self, raw: object, where: str, prefix: str = ""):
        if not isinstance(raw, dict):
            raise InputError(f"{where}: {prefix.rstrip('.') or 'the file'} is {raw!r}; a JSON object is needed.")
        self.raw: dict[str, Any] = raw
        self.where = where
        self.prefix = prefix

    def section(self, name: str) -> Fields:
        """The object under `name`."""
        return Fields(self._get(name, _REQUIRED), self.where, f"{self.prefix}{name}.")

    def whole(self, name: str, default: Any = _REQUIRED, least: int = 0) -> int:
        """A count: a whole number, not negative. None counts as absent."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise self.refusal(name, value, f"a whole number, {least} or more, and at most {MOST}")
        return value

    def size(self, name: str, default: Any = _REQUIRED) -> int:
        """A size: a whole number above zero. None counts as absent."""
        return self.whole(name, default, least=1)

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        """A number above zero."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.refusal(name, value, "a number above 0")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A number above zero, or None when the field is null or absent."""
        return None if self.raw.get(name) is None else self.number(name)

    def boolean(self, name: str, default: bool) -> bool:
        """true or false; null counts as absent."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.refusal(name, value, "true or false")
        return value

    def strings(self, name: str) -> list[str]:
        """A list of strings."""
        value = self._get(name, _REQUIRED)
        if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
            raise self.refusal(name, value, "a list of strings")
        return value

    def choice(self, name: str, *allowed: str) -> str:
        """One of these strings."""
        value = self._get(name, _REQUIRED)
        if value not in allowed:
            raise self.refusal(name, value, " or ".join(allowed))
        return str(value)

    def ids(self, name: str) -> tuple[int, ...]:
        """A token id or a list of them; empty when the field is null or absent."""
        value = self.raw.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(x, int) and not isinstance(x, bool) and 0 <= x <= MOST for x in values):
            raise self.refusal(name, value, "a token id or a list of token ids")
        return tuple(values)

    def allow(self, name: str, *allowed: object) -> None:
        """Refuses any value but these; a field that is absent passes."""
        if name in self.raw and self.raw[name] not in allowed:
            found = self.raw[name]
            if name == "quantization_config" and isinstance(found, dict):
                name, found = "quantization_config.quant_method", found.get("quant_method")
            raise self.refusal(name, found, " or ".join(_json(x) for x in allowed))

    def layer_overrides(self, names: tuple[str, ...]) -> dict[int, dict[str, int]]:
        """`per_layer_config` as transformers >= 5.24 saves it: layer index -> sizes that differ in that layer."""
        raw = self.raw.get("per_layer_config")
        if raw is None:
            return {}
        overrides: dict[int, dict[str, int]] = {}
        for key in Fields(raw, self.where, f"{self.prefix}per_layer_config.").raw:
            section = self.section("per_layer_config").section(key)
            unknown = set(section.raw) - set(names)
            if unknown or not re.fullmatch("[0-9]{1,9}", key):
                raise self.refusal("per_layer_config", f"{key}: {sorted(section.raw)}", f"per layer {', '.join(names)}")
            overrides[int(key)] = {name: section.size(name) for name in section.raw}
        return overrides

    def refusal(self, name: str, found: object, allowed: str) -> InputError:
        """The error to raise when `name` holds `found` and only `allowed` can be used."""
        return InputError(f"{self.where}: {self.prefix}{name} is {_json(found)}; paceline supports {allowed}.")

    def _get(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise InputError(f"{self.where}: {self.prefix}{name} is missing; is this the config.json of the model?")
        return default


def _json(value: object) -> str:
    """A value as config.json spells it, where that differs from Python's spelling."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
