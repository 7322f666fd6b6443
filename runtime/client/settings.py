"""Serving settings as options of a command: ``--set NAME=VALUE``."""

import json
from typing import Annotated, Any

import typer

from runtime.client.errors import UsageError

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A serving setting, NAME=VALUE; may be given several times (dtype=float32)."),
]


def settings_of(pairs: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs; numbers and true/false are read as JSON, everything else is text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"--set takes NAME=VALUE, not {pair!r}.")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        found[name] = value
    return found
