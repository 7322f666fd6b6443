"""nodes: machines of the platform, for platform admins."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from runtime.client import asking, naming, output
from runtime.client import session as sessions
from runtime.client.output import Format, field
from runtime.client.session import part


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Nodes (platform admins): list, show, join, cordon, drain, remove.", no_args_is_help=True)
    group.command(name="list")(list_nodes)
    group.command(name="show")(show_node)
    group.command()(devices)
    group.command()(join)
    for verb, says in (
        ("cordon", "Place nothing new on a node."),
        ("uncordon", "Let a node take replicas again."),
    ):
        group.command(name=verb, help=says)(_verb(verb))
    group.command()(drain)
    group.command()(remove)
    group.command(name="fault-domain")(fault_domain)
    app.add_typer(group, name="nodes")
    one = typer.Typer(help="Devices (platform admins): list, show, events, care for them.", no_args_is_help=True)
    one.command(name="list")(devices)
    one.command(name="show")(show_device)
    one.command(name="events")(health_events)
    for verb, says in (
        ("quarantine", "Move everything off a device and place nothing there."),
        ("return", "Take a device back into service; one that was sent away is watched first."),
        ("retire", "Take a device out of service for good."),
    ):
        one.command(name=verb, help=says)(_device_verb(verb))
    app.add_typer(one, name="devices")


def list_nodes(ctx: typer.Context) -> None:
    """List the nodes."""
    session = sessions.of(ctx)
    now = session.now()
    session.output.rows(
        list(session.api.rows("/nodes")),
        [
            ("node", field("name")),
            ("state", _state),
            ("seen", lambda row: output.age(row.get("last_seen_at"), now)),
            ("cpus", field("cpus")),
            ("memory", lambda row: output.size(row.get("memory_bytes"))),
            ("version", field("agent_version")),
            ("id", field("id")),
        ],
        empty="No nodes yet: millpond nodes join.",
    )


def show_node(ctx: typer.Context, node: Annotated[str, typer.Argument(help="Id or name of the node.")]) -> None:
    """Show a node and the walls that its host offers around engines, with the reason for each that it lacks."""
    session = sessions.of(ctx)
    row = session.api.get(f"/nodes/{part(naming.node_id(session.api, node))}")
    lines = [
        ("node", row.get("name")),
        ("state", _state(row)),
        ("message", row.get("message")),
        ("replicas here", row.get("replica_count")),
        ("cpus", row.get("cpus")),
        ("memory", output.size(row.get("memory_bytes"))),
        ("devices", len(row.get("devices") or ())),
        ("agent", row.get("agent_version")),
        ("address for ranks", row.get("rank_address") or "none: it takes part in no replica over several nodes"),
    ]
    session.output.one(row, lines)
    if session.output.form is Format.TABLE:
        session.output.rows(
            row.get("walls") or [],
            [("wall", field("name")), ("used", lambda wall: "yes" if wall["used"] else "no"), ("how", field("detail"))],
            empty="Its agent has not said what the host offers.",
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
            ("why", field("reason")),
            ("memory", lambda row: output.size(row.get("memory_bytes"))),
            ("held", lambda row: output.size(row.get("held_bytes"))),
        ],
        empty="No devices yet: they come with nodes.",
    )


def show_device(ctx: typer.Context, device: Annotated[str, typer.Argument(help="UUID or id of the device.")]) -> None:
    """Show a device, what it waits for, and what happened to it."""
    session = sessions.of(ctx)
    now = session.now()
    row = session.api.get(f"/devices/{part(naming.device_id(session.api, device))}")
    session.output.one(row, _device_lines(row))
    events = row.get("health_events") or []
    if session.output.form is Format.TABLE:
        session.output.rows(
            events,
            [
                ("when", lambda event: output.age(event.get("at"), now)),
                ("what", field("code")),
                ("message", field("message")),
            ],
            empty="Nothing has happened to it.",
        )


def health_events(
    ctx: typer.Context,
    like: Annotated[str, typer.Option(help="A part of a code, a node's name or a device's UUID.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the newest first.")] = 50,
) -> None:
    """List what nodes and devices said about their health, and what the fault policy decided."""
    session = sessions.of(ctx)
    now = session.now()
    session.output.rows(
        list(session.api.rows("/health-events", {"q": like} if like else None, most=limit)),
        [
            ("when", lambda event: output.age(event.get("at"), now)),
            ("what", field("code")),
            ("node", field("node")),
            ("device", field("device_uuid")),
            ("decided", field("decision")),
            ("times", field("times")),
            ("message", field("message")),
        ],
        empty="Nothing was said.",
    )


def _device_lines(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        ("device", row.get("uuid")),
        ("product", row.get("product")),
        ("kind", row.get("kind")),
        ("node", row.get("node")),
        ("state", row.get("state")),
        ("why", row.get("reason")),
        ("message", row.get("message")),
        ("waits for", row.get("repair")),
        ("to run there", row.get("repair_command")),
        ("held as", ", ".join(sorted({each["isolation"] for each in row.get("partitions") or ()}))),
        ("memory", output.size(row.get("memory_bytes"))),
        ("held", output.size(row.get("held_bytes"))),
    ]


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


def fault_domain(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(help="Id or name of the node.")],
    name: Annotated[str, typer.Argument(help='A rack, a power feed; "" is the node by itself.')],
) -> None:
    """Say what a node fails together with: replicas of a deployment are spread over such domains."""
    session = sessions.of(ctx)
    row = session.api.post(f"/nodes/{part(naming.node_id(session.api, node))}/fault-domain", {"name": name})
    session.output.one(row, [("node", row["name"]), ("fault domain", row["fault_domain"] or "the node by itself")])


def _state(row: Mapping[str, Any]) -> str:
    """The state; of one that has not been heard of for too long, that it is silent."""
    return f"{row.get('state')}, silent" if row.get("silent") else str(row.get("state"))


def drain(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(help="Id or name of the node.")],
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Replicas stop at once, whether their successors have a place or not.")
    ] = False,
) -> None:
    """Move everything off a node, for maintenance: each replica stops when its successor elsewhere is ready."""
    session = sessions.of(ctx)
    where = f"/nodes/{part(naming.node_id(session.api, node))}/drain"
    row = session.api.post(where, {"accept_gap": accept_gap})
    lines = [("node", row["name"]), ("state", row["state"]), ("message", row.get("message"))]
    session.output.one(row, [*lines, ("replicas here", row.get("replica_count"))])


def remove(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(help="Id or name of the node.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget a node that will not come back. What it still runs is taken for ended."""
    session = sessions.of(ctx)
    ident = naming.node_id(session.api, node)
    if not yes:
        asking.confirm(f"Remove the node {node}? What it held is given away, whether it still runs or not.", "removed")
    row = session.api.post(f"/nodes/{part(ident)}/remove") or {}
    session.output.one(row, [("node", row.get("name", node)), ("state", row.get("state"))])


def _verb(verb: str) -> Callable[[typer.Context, str], None]:
    def command(ctx: typer.Context, node: Annotated[str, typer.Argument(help="Id or name of the node.")]) -> None:
        session = sessions.of(ctx)
        row = session.api.post(f"/nodes/{part(naming.node_id(session.api, node))}/{verb}")
        session.output.one(row or {}, [("node", (row or {}).get("name", node)), ("state", (row or {}).get("state"))])

    return command


def _device_verb(verb: str) -> Callable[[typer.Context, str, str], None]:
    def command(
        ctx: typer.Context,
        device: Annotated[str, typer.Argument(help="UUID or id of the device.")],
        message: Annotated[str, typer.Option(help="Why, for whoever reads it later.")] = "",
    ) -> None:
        session = sessions.of(ctx)
        path = f"/devices/{part(naming.device_id(session.api, device))}/{verb}"
        row = session.api.post(path, {"message": message}) or {}
        session.output.one(row, _device_lines(row))

    return command
