"""nodes: machines of the platform, for platform admins."""

from collections.abc import Callable
from typing import Annotated

import typer

from runtime.client import naming, output
from runtime.client import session as sessions
from runtime.client.output import field
from runtime.client.session import part


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Nodes (platform admins): list, join, cordon, drain, remove.", no_args_is_help=True)
    group.command(name="list")(list_nodes)
    group.command()(devices)
    group.command()(join)
    for verb, says in (
        ("cordon", "Place nothing new on a node."),
        ("uncordon", "Let a node take replicas again."),
        ("drain", "Move everything off a node."),
        ("remove", "Forget a node that will not come back."),
    ):
        group.command(name=verb, help=says)(_verb(verb))
    app.add_typer(group, name="nodes")


def list_nodes(ctx: typer.Context) -> None:
    """List the nodes."""
    session = sessions.of(ctx)
    now = session.now()
    session.output.rows(
        list(session.api.rows("/nodes")),
        [
            ("node", field("name")),
            ("state", field("state")),
            ("seen", lambda row: output.age(row.get("last_seen_at"), now)),
            ("cpus", field("cpus")),
            ("memory", lambda row: output.size(row.get("memory_bytes"))),
            ("version", field("agent_version")),
            ("id", field("id")),
        ],
        empty="No nodes yet: millpond nodes join.",
    )


def devices(ctx: typer.Context) -> None:
    """List the devices of all nodes."""
    session = sessions.of(ctx)
    session.output.rows(
        list(session.api.rows("/devices")),
        [
            ("device", field("uuid")),
            ("kind", field("kind")),
            ("product", field("product")),
            ("node", lambda row: row["node"]["name"] if isinstance(row.get("node"), dict) else row.get("node")),
            ("state", field("state")),
            ("memory", lambda row: output.size(row.get("memory_bytes"))),
            ("held", lambda row: output.size(row.get("held_bytes"))),
        ],
        empty="No devices yet: they come with nodes.",
    )


def join(
    ctx: typer.Context,
    name: Annotated[str, typer.Option(help="What people will call the machine.")] = "",
    gateway: Annotated[bool, typer.Option("--gateway", help="For a gateway instead of a node.")] = False,
) -> None:
    """Make a one-time token with which a machine joins, and show the command to run there."""
    session = sessions.of(ctx)
    made = session.api.post(
        "/nodes/tokens", {"kind": "gateway" if gateway else "node", **({"name": name} if name else {})}
    )
    session.output.one(
        made, [("token", made["token"]), ("good until", made.get("expires_at")), ("run there", made.get("command"))]
    )


def _verb(verb: str) -> Callable[[typer.Context, str], None]:
    def command(ctx: typer.Context, node: Annotated[str, typer.Argument(help="Id or name of the node.")]) -> None:
        session = sessions.of(ctx)
        row = session.api.post(f"/nodes/{part(naming.node_id(session.api, node))}/{verb}")
        session.output.one(row or {}, [("node", (row or {}).get("name", node)), ("state", (row or {}).get("state"))])

    return command
