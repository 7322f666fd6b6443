"""Proving who calls: the password, and the code of a second factor where there is one. Never taken as arguments."""

import sys
from typing import Any

import typer

from runtime.client.api import Api
from runtime.client.errors import ApiError, UsageError


def password(*, from_stdin: bool) -> str:
    """The password, from a line of stdin or asked for."""
    return sys.stdin.readline().rstrip("\r\n") if from_stdin else typer.prompt("Password", hide_input=True, err=True)


def post(api: Api, path: str, body: dict[str, str]) -> Any:
    """The answer to a call that carries a password; the code is asked for where there is one and a terminal."""
    try:
        return api.post(path, body)
    except ApiError as exc:
        if exc.code != "second_factor_needed":
            raise
        if not sys.stdin.isatty():
            raise UsageError("This account has a second factor: give its code with --code.") from None
    return api.post(path, {**body, "code": typer.prompt("Code of the authenticator app", err=True)})
