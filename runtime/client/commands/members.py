"""members, invitations, service-accounts: who works in a tenant, and what works there without being a person."""

import sys
from typing import Annotated, Any

import typer

from runtime.client import naming
from runtime.client import session as sessions
from runtime.client.commands import keys
from runtime.client.errors import UsageError
from runtime.client.output import field
from runtime.client.session import Session

Role = Annotated[str, typer.Option("--role", help="viewer, developer, admin or owner.")]
ServiceRole = Annotated[str, typer.Option("--role", help="viewer, developer or admin.")]
Account = Annotated[str, typer.Argument(help="Name or id of the service account.")]
Invitation = Annotated[str, typer.Argument(help="Invited address, or id of the invitation.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Members of the tenant: list, set a role, remove.", no_args_is_help=True)
    group.command(name="list")(list_members)
    group.command(name="set")(set_role)
    group.command()(remove)
    app.add_typer(group, name="members")
    group = typer.Typer(help="Invitations: list, create, resend, revoke, accept.", no_args_is_help=True)
    group.command(name="list")(list_invitations)
    group.command(name="create")(invite)
    for command in (resend, revoke, accept):
        group.command()(command)
    app.add_typer(group, name="invitations")
    group = typer.Typer(
        help="Service accounts: members that are no person. List, create, set a role, disable, enable, delete, keys.",
        no_args_is_help=True,
    )
    group.command(name="list")(list_accounts)
    group.command(name="create")(create_account)
    group.command(name="set")(set_account_role)
    for verb in (disable, enable, delete):
        group.command()(verb)
    group.command(name="keys")(list_account_keys)
    group.command(name="create-key")(create_account_key)
    app.add_typer(group, name="service-accounts")


def list_members(ctx: typer.Context) -> None:
    """List the members."""
    session = sessions.of(ctx)
    session.output.rows(
        list(session.api.rows(session.path("members"))),
        [
            ("address", field("email")),
            ("name", field("name")),
            ("role", field("role")),
            ("since", field("created_at")),
            ("id", field("id")),
        ],
        empty="No members yet: millpond invitations create ADDRESS.",
    )


def set_role(
    ctx: typer.Context, address: Annotated[str, typer.Argument(help="Address of a member.")], role: Role = "developer"
) -> None:
    """Give a member another role. Who is no member yet is invited; platform admins may add an account at once."""
    session = sessions.of(ctx)
    row = session.api.post(session.path("members"), {"email": address, "role": role})
    session.output.one(row, [("address", row["email"]), ("role", row["role"]), ("id", row["id"])])


def remove(
    ctx: typer.Context, member: Annotated[str, typer.Argument(help="Address or id of the member; yourself to leave.")]
) -> None:
    """Take a member out; what they made stays."""
    session = sessions.of(ctx)
    ident = naming.one_of(session, "members", member, "member", "email")
    session.api.send("DELETE", session.path("members", ident))
    session.output.note(f"{member} is no member of {session.tenant} any more.")


def list_invitations(ctx: typer.Context) -> None:
    """List the invitations that nobody has accepted yet."""
    session = sessions.of(ctx)
    session.output.rows(
        list(session.api.rows(session.path("invitations"))),
        [
            ("address", field("email")),
            ("role", field("role")),
            ("by", field("created_by")),
            ("sent", field("sent_at")),
            ("good until", field("expires_at")),
            ("id", field("id")),
        ],
        empty="No open invitations.",
    )


def invite(
    ctx: typer.Context,
    address: Annotated[str, typer.Argument(help="Whom to invite.")],
    role: Role = "developer",
) -> None:
    """Invite an address. Without mail on the platform, the link to hand over is shown once."""
    session = sessions.of(ctx)
    _sent(session, session.api.post(session.path("invitations"), {"email": address, "role": role}))


def resend(ctx: typer.Context, invitation: Invitation) -> None:
    """Make a new link, good for seven days; the one before is dead."""
    session = sessions.of(ctx)
    ident = naming.one_of(session, "invitations", invitation, "invitation", "email")
    _sent(session, session.api.post(session.path("invitations", ident, "resend")))


def _sent(session: Session, row: dict[str, Any]) -> None:
    lines = [("address", row["email"]), ("role", row["role"]), ("good until", row["expires_at"]), ("id", row["id"])]
    if row["link"]:
        lines.append(("link", row["link"]))
        session.output.note("The link is shown only now: hand it to the invited person, and to nobody else.")
    else:
        session.output.note(f"The invitation went out by mail to {row['email']}.")
    session.output.one(row, lines)


def revoke(ctx: typer.Context, invitation: Invitation) -> None:
    """Make the link worthless."""
    session = sessions.of(ctx)
    ident = naming.one_of(session, "invitations", invitation, "invitation", "email")
    session.api.send("DELETE", session.path("invitations", ident))
    session.output.note(f"The invitation {invitation} is revoked.")


def accept(ctx: typer.Context) -> None:
    """Accept an invitation with the account you are signed in with. The link is asked for, or read from stdin."""
    session = sessions.of(ctx)
    text = typer.prompt("Link", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    token = text.strip().rstrip("/").rpartition("/")[2]
    if not token.startswith("mpi_"):
        raise UsageError("That is no invitation: give the whole link, as it was sent.")
    row = session.api.post("/invitations/accept", {"token": token})
    session.output.one(row, [("tenant", row["slug"]), ("name", row["name"]), ("role", row["role"])])


def list_accounts(ctx: typer.Context) -> None:
    """List the service accounts."""
    session = sessions.of(ctx)
    session.output.rows(
        list(session.api.rows(session.path("service-accounts"))),
        [
            ("name", field("name")),
            ("role", field("role")),
            ("keys", field("live_keys")),
            ("state", lambda row: "disabled" if row.get("disabled_at") else "active"),
            ("by", field("created_by")),
            ("id", field("id")),
        ],
        empty="No service accounts yet: millpond service-accounts create NAME.",
    )


def create_account(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="What acts under it.")],
    role: ServiceRole = "developer",
) -> None:
    """Make a service account; give it a key with `service-accounts create-key`."""
    session = sessions.of(ctx)
    _show(session, session.api.post(session.path("service-accounts"), {"name": name, "role": role}))


def set_account_role(ctx: typer.Context, account: Account, role: ServiceRole = "developer") -> None:
    """Give it another role; its keys follow at once."""
    session = sessions.of(ctx)
    _show(session, session.api.patch(session.path("service-accounts", _id(session, account)), {"role": role}))


def _show(session: Session, row: dict[str, Any]) -> None:
    state = "disabled" if row["disabled_at"] else "active"
    session.output.one(row, [("name", row["name"]), ("role", row["role"]), ("state", state), ("id", row["id"])])


def _id(session: Session, account: str) -> str:
    return naming.one_of(session, "service-accounts", account, "service account", "name")


def disable(ctx: typer.Context, account: Account) -> None:
    """Revoke all its keys now, and let it have no new ones."""
    session = sessions.of(ctx)
    row = session.api.post(session.path("service-accounts", _id(session, account), "disable"))
    session.output.note(f"{row['name']} is disabled; {row['keys_revoked']} keys are revoked.")


def enable(ctx: typer.Context, account: Account) -> None:
    """Let it have keys again; revoked ones stay revoked."""
    session = sessions.of(ctx)
    _show(session, session.api.post(session.path("service-accounts", _id(session, account), "enable")))


def delete(ctx: typer.Context, account: Account) -> None:
    """Revoke all its keys now, and forget it. It cannot be undone."""
    session = sessions.of(ctx)
    session.api.send("DELETE", session.path("service-accounts", _id(session, account)))
    session.output.note(f"The service account {account} is deleted, and all its keys are revoked.")


def list_account_keys(ctx: typer.Context, account: Account) -> None:
    """List the keys of a service account; edit, rotate and revoke them with `millpond keys`."""
    session = sessions.of(ctx)
    session.output.rows(
        list(session.api.rows(session.path("service-accounts", _id(session, account), "keys"))),
        keys.COLUMNS,
        empty=f"No keys yet: millpond service-accounts create-key {account} NAME.",
    )


def create_account_key(
    ctx: typer.Context,
    account: Account,
    name: Annotated[str, typer.Argument(help="What will use the key.")],
    scope: Annotated[list[str] | None, typer.Option(help="manage (default) or inference; may be given twice.")] = None,
    expires: keys.Expires = "",
    endpoint: keys.Endpoints = None,
    address: keys.Addresses = None,
) -> None:
    """Make a key of a service account. Its text is shown once."""
    session = sessions.of(ctx)
    body: dict[str, Any] = {"name": name, "scopes": scope or ["manage"]}
    given = {"expires_at": expires, "allowed_endpoints": endpoint, "allowed_addresses": address}
    body |= {key: value for key, value in given.items() if value}
    keys.show_secret(session, session.api.post(session.path("service-accounts", _id(session, account), "keys"), body))
