"""Options of how the target chooses tokens, the same for every command that generates."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import replace

from paceline.rules import Drafting
from paceline.sampling import Sampling

NUMBERS = {
    "temperature": (float, "0 is greedy"),
    "top_k": (int, "only the K likeliest tokens"),
    "top_p": (float, "only the likeliest tokens that have this share together"),
    "min_p": (float, "only tokens at least this times as likely as the likeliest"),
    "repetition_penalty": (float, "for tokens of prompt and output; 1 is off"),
    "presence_penalty": (float, "for tokens of the output; 0 is off"),
    "frequency_penalty": (float, "for tokens of the output, each time; 0 is off"),
    "seed": (int, "the same seed and options give the same text (default: another one each time)"),
}


def configure(parser: ArgumentParser, about: str) -> None:
    """Adds the options; `about` says what they change. See `chosen`."""
    group = parser.add_argument_group("sampling", about)
    for name, (kind, text) in NUMBERS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X" if kind is float else "N", help=text)
    group.add_argument("--ban", type=int, action="append", default=[], metavar="ID", help="never emit this token (repeatable)")
    group.add_argument(
        "--bias", type=bias, action="append", default=[], metavar="ID=X", help="add X to a token's logit (repeatable)"
    )
    group.add_argument(
        "--drafting",
        type=Drafting,
        choices=list(Drafting),
        default=Drafting.GREEDY,
        metavar="|".join(each.value for each in Drafting),
        help="how drafts are drawn and judged: the likeliest, as one path or as a tree; or sampled, where the target samples, "
        "and judged singly or as a block. The text is the same, or as likely, in all",
    )


def chosen(options: Namespace, base: Sampling) -> Sampling:
    """What the options make of `base`.

    Raises:
        InputError: a value is out of range.
    """
    given = {name: value for name, value in vars(options).items() if name in NUMBERS and value is not None}
    banned = base.banned | frozenset(options.ban)
    return replace(base, **given, banned=banned, logit_bias=dict(base.logit_bias) | dict(options.bias))


def bias(text: str) -> tuple[int, float]:
    """The value of --bias."""
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a token id and a number, such as 106=-5") from None
