"""deploy, status, scale, stop, start, delete, logs: what serves, and how it is going."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from runtime.client import asking, loglines, naming, output, verdicts, waiting
from runtime.client import session as sessions
from runtime.client.commands import placement
from runtime.client.errors import ApiError, UsageError
from runtime.client.output import field
from runtime.client.session import Session
from runtime.client.settings import SetOption, settings_of

READY_SECONDS = 1800.0
DeploymentArg = Annotated[str, typer.Argument(help="Id of the deployment (or its beginning), or its endpoint's name.")]
PriorityOption = Annotated[
    str, typer.Option(help="low, normal or high: who gives way when there is not room for all (high: tenant's admins).")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (deploy, status, scale, prioritize, stop, start, delete, logs):
        app.command()(command)


def deploy(
    ctx: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="MODEL[:VERSION|@ALIAS]", help="Default: the newest ready version.")
    ],
    endpoint: Annotated[
        str, typer.Option("--endpoint", "-e", help="Name that clients call; default: the model's.")
    ] = "",
    replicas: Annotated[int, typer.Option(min=0, help="How many.")] = 1,
    settings: SetOption = None,
    weight: Annotated[int | None, typer.Option(min=0, help="Share of the endpoint's traffic.")] = None,
    priority: PriorityOption = "",
    wait: Annotated[bool, typer.Option(help="Wait until it serves.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.")] = READY_SECONDS,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also when it fits nowhere now; it waits for room.")] = False,
) -> None:
    """Deploy a version behind an endpoint, after asking where it fits."""
    session = sessions.of(ctx)
    ref = naming.model_ref(reference)
    version = ref.version if ref.version is not None else naming.newest_ready(session, ref.model)
    config = settings_of(settings or [])
    wanted = {"model": ref.model, "version": version, "config": config, "replicas": replicas}
    if replicas:
        placement.ask_first(session, wanted, anyway)
    body = {**wanted, "endpoint": endpoint or ref.model.lower(), **({"weight": weight} if weight is not None else {})}
    if priority:
        body["priority"] = priority
    made = session.api.post(session.path("deployments"), body)
    if wait and replicas:
        made = _await_ready(session, str(made["id"]), timeout)
    _show_one(session, made)


def _await_ready(session: Session, ident: str, timeout: float) -> dict[str, Any]:
    def done(row: waiting.State) -> bool:
        return 0 < int(row["desired_replicas"]) <= int(row["ready_replicas"])

    return dict(
        waiting.until(
            session,
            lambda: session.api.get(session.path("deployments", ident)),
            done=done,
            line=_line,
            show=_live,
            timeout_seconds=timeout,
        )
    )


def status(
    ctx: typer.Context,
    deployment: Annotated[str, typer.Argument(help="Id or endpoint; without it, all deployments.")] = "",
    watching: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing, until Ctrl-C.")] = False,
) -> None:
    """Show deployments, or one with its replicas."""
    session = sessions.of(ctx)
    if not deployment:
        where = session.path("deployments")
        if watching:
            waiting.watch(
                session, lambda: {"rows": list(session.api.rows(where))}, lambda s: output.table(s["rows"], _COLUMNS)
            )
            return
        session.output.rows(
            list(session.api.rows(where)), _COLUMNS, empty="Nothing is deployed yet: millpond deploy MODEL."
        )
        return
    where = session.path("deployments", naming.deployment_id(session, deployment))
    if watching:
        waiting.watch(session, lambda: session.api.get(where), _live)
        return
    _show_one(session, session.api.get(where))


def scale(ctx: typer.Context, deployment: DeploymentArg, replicas: Annotated[int, typer.Argument(min=0)]) -> None:
    """Set how many replicas a deployment should have."""
    session = sessions.of(ctx)
    where = session.path("deployments", naming.deployment_id(session, deployment))
    _show_one(session, session.api.patch(where, {"replicas": replicas}) or session.api.get(where))


def prioritize(
    ctx: typer.Context,
    deployment: DeploymentArg,
    priority: Annotated[str, typer.Argument(help="low, normal or high.")],
) -> None:
    """Say who gives way when there is not room for all."""
    session = sessions.of(ctx)
    where = session.path("deployments", naming.deployment_id(session, deployment))
    _show_one(session, session.api.patch(where, {"priority": priority}))


def stop(ctx: typer.Context, deployment: DeploymentArg) -> None:
    """Let a deployment finish what it does, and free its devices."""
    _verb(ctx, deployment, "stop")


def start(ctx: typer.Context, deployment: DeploymentArg) -> None:
    """Start a stopped deployment again."""
    _verb(ctx, deployment, "start")


def _verb(ctx: typer.Context, deployment: str, verb: str) -> None:
    session = sessions.of(ctx)
    where = session.path("deployments", naming.deployment_id(session, deployment))
    _show_one(session, session.api.post(f"{where}/{verb}") or session.api.get(where))


def delete(
    ctx: typer.Context,
    deployment: DeploymentArg,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is gone.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.")] = READY_SECONDS,
) -> None:
    """Drain a deployment and delete it."""
    session = sessions.of(ctx)
    ident = naming.deployment_id(session, deployment)
    where = session.path("deployments", ident)
    if not yes:
        asking.confirm(f"Delete the deployment {deployment}? What it serves now is finished first.", "deleted")
    session.api.delete(where)
    if wait:
        _await_gone(session, where, timeout)
    session.output.note(
        f"Deployment {ident} is {'gone' if wait else 'draining; it vanishes when nothing runs any more'}."
    )


def _await_gone(session: Session, where: str, timeout: float) -> None:
    def look() -> waiting.State:
        try:
            found: dict[str, Any] = session.api.get(where)
        except ApiError as exc:
            if exc.status != 404:
                raise
            return {"gone": True}
        return found

    waiting.until(
        session,
        look,
        done=lambda row: bool(row.get("gone")),
        line=lambda row: "gone" if row.get("gone") else _line(row),
        timeout_seconds=timeout,
    )


def logs(
    ctx: typer.Context,
    deployment: DeploymentArg,
    replica: Annotated[str, typer.Option(help="Id of the replica (or its end); default: all.")] = "",
) -> None:
    """Show the last lines of the engines' logs, readable; with --output json as they were written."""
    session = sessions.of(ctx)
    where = session.path("deployments", naming.deployment_id(session, deployment))
    replicas = [
        row
        for row in session.api.get(where)["replicas"]
        if not replica or str(row["id"]).startswith(replica) or str(row["id"]).endswith(replica)
    ]
    if not replicas:
        raise UsageError(f"There is no replica {replica!r} here." if replica else "It has no replicas, so no logs.")
    answers = {str(row["id"]): session.api.get(f"{where}/replicas/{row['id']}/logs")["lines"] for row in replicas}
    if session.output.form == "json":
        session.output.json(answers)
        return
    for row in replicas:
        lines = answers[str(row["id"])]
        if len(replicas) > 1 or not lines:
            session.output.note(f"── {_short(row)} {row['state']}" + ("" if lines else ": nothing logged yet"))
        for line in lines:
            session.output.text(loglines.readable(line))


def _short(row: Mapping[str, Any]) -> str:
    return str(row.get("short_id") or str(row["id"])[-8:])


def _named(value: Any) -> str:
    """The name of something that the API gives as a name or as an object with one."""
    return str(value.get("name", "")) if isinstance(value, dict) else str(value or "")


def _numbered(value: Any) -> str:
    return str(value.get("number", "")) if isinstance(value, dict) else str(value or "")


def _what(row: Mapping[str, Any]) -> str:
    return f"{_named(row.get('model'))}:{_numbered(row.get('version'))}"


def _ready(row: Mapping[str, Any]) -> str:
    return f"{row['ready_replicas']}/{row['desired_replicas']}"


_COLUMNS = [
    ("endpoint", lambda row: _named(row.get("endpoint"))),
    ("model", _what),
    ("ready", _ready),
    ("state", field("state")),
    ("message", field("sentence")),
    ("id", field("id")),
]


def _line(row: Mapping[str, Any]) -> str:
    sentence = f": {row['sentence']}" if row.get("sentence") else ""
    return f"{_named(row.get('endpoint'))} {_what(row)} {_ready(row)} ready, {row['state']}{sentence}"


def _live(row: Mapping[str, Any]) -> RenderableType:
    return Group(Text(_line(row)), output.table(row.get("replicas") or [], _REPLICA_COLUMNS))


def _progress(row: Mapping[str, Any]) -> str:
    done = row.get("progress")
    return f"{100 * done:.0f} %" if isinstance(done, int | float) and row["state"] != "ready" else ""


_REPLICA_COLUMNS = [
    ("replica", _short),
    ("state", field("state")),
    ("", _progress),
    ("node", lambda row: _named(row.get("node"))),
    ("device", lambda row: row["device"].get("product") if isinstance(row.get("device"), dict) else row.get("device")),
    ("restarts", field("restarts")),
    ("message", lambda row: row.get("message") or row.get("reason")),
]


def _show_one(session: Session, row: Mapping[str, Any]) -> None:
    lines = [
        ("deployment", row["id"]),
        ("endpoint", _named(row.get("endpoint"))),
        ("model", _what(row)),
        ("ready", _ready(row)),
        ("priority", row.get("priority")),
        ("state", row["state"]),
        ("", row.get("sentence")),
    ]
    session.output.one(row, [line for line in lines if line[1] not in (None, "")])
    if session.output.form == "table" and row.get("replicas"):
        session.output.out.print(output.table(row["replicas"], _REPLICA_COLUMNS))
        for replica in row["replicas"]:
            _show_spread(session, replica)
        for replicas in verdicts.waiting_alike(row["replicas"]):
            _show_waiting(session, replicas)


def _show_spread(session: Session, replica: Mapping[str, Any]) -> None:
    """Over which devices a replica is spread, and why so."""
    need = (replica.get("explanation") or {}).get("need") or {}
    for line in placement.plan_lines(need)[:1] if replica["state"] != "pending" else []:
        session.output.out.print(Text(f"{_short(replica)} on {', '.join(replica.get('nodes') or [])}: {line}"))


def _show_waiting(session: Session, replicas: list[Mapping[str, Any]]) -> None:
    """Of replicas that wait for the same, the verdict on every device that was judged, and what would help."""
    told = replicas[0]["explanation"]
    rows = verdicts.alike(told["devices"])
    names = ", ".join(map(_short, replicas))
    session.output.out.print(Text(f"Why {names} {'waits' if len(replicas) == 1 else 'wait'}"))
    columns = [
        ("node", field("node")), ("device", verdicts.devices), ("why not", verdicts.why_not),
        ("would fit if", field("would_fit_if")),
    ]  # fmt: skip
    session.output.out.print(output.table(rows, columns))
    shown = sum(not device.get("fits") for device in told["devices"])
    if more := sum((told.get("refused") or {}).values()) - shown:
        session.output.out.print(Text(f"{more} more devices refuse; these stand nearest."))
    if told.get("would_fit_if"):
        session.output.out.print(Text(f"It would fit if: {told['would_fit_if']}."))
