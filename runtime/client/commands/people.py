"""people: every account of the platform, for platform admins."""

import sys
from typing import Annotated, Any

import typer

from runtime.client import naming, proof
from runtime.client import session as sessions
from runtime.client.errors import UsageError
from runtime.client.output import field

Person = Annotated[str, typer.Argument(help="Address or id of the account.")]
PasswordStdin = Annotated[bool, typer.Option("--password-stdin", help="Read your own password from stdin.")]
Code = Annotated[str, typer.Option(help="Code of your authenticator app, or a recovery code; asked for.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Accounts (platform admins): list, switch off and on, make admins.", no_args_is_help=True)
    group.command(name="list")(list_people)
    group.command(name="switch-off")(switch_off)
    group.command(name="switch-on")(switch_on)
    group.command(name="make-admin")(make_admin)
    group.command(name="unmake-admin")(unmake_admin)
    app.add_typer(group, name="people")


def list_people(
    ctx: typer.Context, wanted: Annotated[str, typer.Argument(help="A part of the name or the address.")] = ""
) -> None:
    """List accounts, the newest first."""
    session = sessions.of(ctx)
    session.output.rows(
        list(session.api.rows("/admin/people", {"q": wanted} if wanted else None)),
        [
            ("address", field("email")),
            ("name", field("name")),
            ("active", field("is_active")),
            ("platform admin", field("is_staff")),
            ("tenants", field("tenants")),
            ("id", field("id")),
        ],
        empty="Nobody found.",
    )


def switch_off(ctx: typer.Context, person: Person) -> None:
    """End all access of an account; what the person made stays."""
    _act(ctx, person, "switch-off")


def switch_on(ctx: typer.Context, person: Person) -> None:
    """Let an account sign in again."""
    _act(ctx, person, "switch-on")


def make_admin(ctx: typer.Context, person: Person, password_stdin: PasswordStdin = False, code: Code = "") -> None:
    """Make an account a platform admin. Asks for your own password: a token alone is not enough for this."""
    _act(ctx, person, "make-admin", _proof(password_stdin, code))


def unmake_admin(ctx: typer.Context, person: Person, password_stdin: PasswordStdin = False, code: Code = "") -> None:
    """Take the rights of a platform admin from an account. Asks for your own password; the last admin stays."""
    _act(ctx, person, "unmake-admin", _proof(password_stdin, code))


def _proof(password_stdin: bool, code: str) -> dict[str, str]:
    if not password_stdin and not sys.stdin.isatty():
        raise UsageError("There is no terminal to ask for your password: give it with --password-stdin.")
    return {"password": proof.password(from_stdin=password_stdin), "code": code}


def _act(ctx: typer.Context, person: str, verb: str, body: dict[str, str] | None = None) -> None:
    session = sessions.of(ctx)
    path = f"/admin/people/{naming.person_id(session.api, person)}/{verb}"
    row: dict[str, Any] = proof.post(session.api, path, body) if body else session.api.post(path)
    facts = [("address", row["email"]), ("active", row["is_active"]), ("platform admin", row["is_staff"])]
    session.output.one(row, [*facts, ("id", row["id"])])
