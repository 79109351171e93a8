"""What a subcommand says when torch is not installed; the commands import it late, so that --help is quick and lists all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import InputError


@contextmanager
def torch_for(what: str) -> Iterator[None]:
    """Around the imports of what needs torch. Raises InputError where it lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"{what} needs the package {error.name}; install it with: pip install 'paceline[torch]'") from None
