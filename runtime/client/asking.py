"""Asking a person before what cannot be taken back."""

import typer

from runtime.client.errors import UsageError


def confirm(question: str, done: str) -> None:
    """Return when the answer is yes.

    Raises:
        UsageError: it is no, or nobody can be asked; nothing was ``done`` ("deleted").
    """
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        typer.echo(err=True)  # the question stands without an end of line
        raise UsageError(f"Nothing was {done}. Answer y, or say --yes where nobody can be asked.") from None
