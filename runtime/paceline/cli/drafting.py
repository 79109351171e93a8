"""The option of how many drafts a round has, the same for every command that generates."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError

from paceline.generate import MAX_DRAFT_LENGTH


def configure(parser: ArgumentParser) -> None:
    """Adds --draft; see `draft_length`."""
    parser.add_argument(
        "--draft",
        type=draft_length,
        default=None,
        metavar="auto|N|off",
        help=f"drafts a round: as many as pay on this device (auto, the default), 1 to {MAX_DRAFT_LENGTH}, or off; "
        "the text is the same",
    )


def draft_length(text: str) -> int | None:
    """The value of --draft; None is auto."""
    if text == "auto":
        return None
    if text == "off":
        return 0
    if text.isdigit() and 1 <= int(text) <= MAX_DRAFT_LENGTH:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is neither auto nor off nor a number from 1 to {MAX_DRAFT_LENGTH}")
