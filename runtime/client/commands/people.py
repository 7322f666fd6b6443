"""people: every account of the platform, for platform admins."""

from typing import Annotated, Any

import typer

from runtime.client import naming
from runtime.client import session as sessions
from runtime.client.output import field

Person = Annotated[str, typer.Argument(help="Address or id of the account.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Accounts (platform admins): list, switch off, switch on.", no_args_is_help=True)
    group.command(name="list")(list_people)
    group.command(name="switch-off")(switch_off)
    group.command(name="switch-on")(switch_on)
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


def _act(ctx: typer.Context, person: str, verb: str) -> None:
    session = sessions.of(ctx)
    row: dict[str, Any] = session.api.post(f"/admin/people/{naming.person_id(session.api, person)}/{verb}")
    session.output.one(row, [("address", row["email"]), ("active", row["is_active"]), ("id", row["id"])])
