"""keys: the tenant's API keys. A key's text is shown once, when it is made."""

from typing import Annotated, Any

import typer

from runtime.client import naming
from runtime.client import session as sessions
from runtime.client.output import field


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="API keys: list, create, revoke.", no_args_is_help=True)
    group.command(name="list")(list_keys)
    group.command()(create)
    group.command()(revoke)
    app.add_typer(group, name="keys")


def list_keys(ctx: typer.Context) -> None:
    """List the tenant's keys."""
    session = sessions.of(ctx)
    rows = list(session.api.rows(session.path("keys")))
    session.output.rows(
        rows,
        [
            ("name", field("name")),
            ("key", field("masked")),
            ("scopes", field("scopes")),
            ("expires", field("expires_at")),
            ("last used", field("last_used_at")),
            ("state", lambda row: "revoked" if row.get("revoked_at") else "active"),
            ("id", field("id")),
        ],
        empty="No keys yet: millpond keys create NAME.",
    )


def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="What will use the key.")],
    scope: Annotated[list[str] | None, typer.Option(help="inference (default) or manage; may be given twice.")] = None,
    expires: Annotated[str, typer.Option(help="When it ends: an ISO time.")] = "",
    endpoint: Annotated[
        list[str] | None, typer.Option(help="Only for this endpoint; may be given several times.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1)] = None,
    max_parallel_requests: Annotated[int | None, typer.Option(min=1)] = None,
) -> None:
    """Make a key. Its text goes to stdout, alone, once."""
    session = sessions.of(ctx)
    body: dict[str, Any] = {"name": name, "scopes": scope or ["inference"]}
    if expires:
        body["expires_at"] = expires
    if endpoint:
        body["allowed_endpoints"] = endpoint
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "max_parallel_requests": max_parallel_requests,
    }
    body.update({name: number for name, number in limits.items() if number is not None})
    made = session.api.post(session.path("keys"), body)
    if session.output.form == "json":
        session.output.json(made)
        return
    session.output.note(f"Key {made['name']!r} of {session.tenant}, shown only now:")
    session.output.text(made["key"])


def revoke(ctx: typer.Context, key: Annotated[str, typer.Argument(help="Id or name of the key.")]) -> None:
    """Refuse a key from now on; it cannot be undone."""
    session = sessions.of(ctx)
    row = session.api.post(session.path("keys", naming.key_id(session, key), "revoke"))
    known_by = row.get("acknowledged_by")
    session.output.one(
        row,
        [("key", row["name"]), ("revoked", row["revoked_at"]), ("known to gateways", known_by)][: 3 if known_by else 2],
    )
