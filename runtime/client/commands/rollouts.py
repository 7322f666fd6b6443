"""rollouts: a new revision behind an endpoint, step by step."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from runtime.client import naming, output, waiting
from runtime.client import session as sessions
from runtime.client.errors import ClientError, NotReached, UsageError
from runtime.client.output import field
from runtime.client.session import Session
from runtime.client.settings import SetOption, settings_of

LIVE = ("planned", "running", "rolling_back")

Ident = Annotated[str, typer.Argument(help="Id of the rollout, or the name of its endpoint (its newest rollout).")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Rollouts: start, preview, status, and the buttons.", no_args_is_help=True)
    group.command()(start)
    group.command()(preview)
    group.command(name="list")(list_rollouts)
    group.command()(status)
    group.command()(log)
    for name, told in (
        ("pause", "Stop moving on; the shares stay as they are."),
        ("resume", "Go on with the step, which is held and judged anew."),
        ("promote", "Give the candidate everything, without waiting for the judge."),
        ("roll-back", "Give the baseline everything."),
        ("abort", "End without moving anything."),
    ):
        group.command(name=name, help=told)(_verb(name))
    app.add_typer(group, name="rollouts")


def _wish(
    session: Session, reference: str, settings: list[str] | None, values: Mapping[str, Any], shares: str
) -> dict[str, Any]:
    ref = naming.model_ref(reference)
    version = ref.version if ref.version is not None else naming.newest_ready(session, ref.model)
    body = {"model": ref.model, "version": str(version), "config": settings_of(settings or []), **values}
    if shares:
        try:
            body["shares"] = [int(share) for share in shares.split(",")]
        except ValueError:
            raise UsageError(f"--shares takes percentages like 5,25,50,100, not {shares!r}.") from None
    return body


Reference = Annotated[str, typer.Argument(metavar="MODEL[:VERSION|@ALIAS]", help="What to roll out.")]
Endpoint = Annotated[str, typer.Option("--endpoint", "-e", help="The endpoint whose traffic moves.")]
Strategy = Annotated[str, typer.Option(help="canary, rolling or blue_green.")]
Capacity = Annotated[str, typer.Option(help="spare, squeeze or in_place: where the first new replica finds room.")]
Shares = Annotated[str, typer.Option(help="Percentages of a canary, for instance 5,25,50,100.")]
Replicas = Annotated[int, typer.Option(min=0, help="Replicas at the end; 0: as many as the baseline has.")]
Hold = Annotated[int, typer.Option("--hold", min=0, help="Seconds to hold each step.")]
Requests = Annotated[int, typer.Option("--min-requests", min=1, help="Requests a verdict needs on each side.")]


def start(
    ctx: typer.Context,
    reference: Reference,
    endpoint: Endpoint,
    strategy: Strategy = "canary",
    capacity: Capacity = "spare",
    shares: Shares = "",
    replicas: Replicas = 0,
    hold: Hold = 300,
    min_requests: Requests = 100,
    settings: SetOption = None,
    auto_rollback: Annotated[bool, typer.Option(help="Roll back by itself on a failed verdict.")] = True,
    accept: Annotated[str, typer.Option(help="The sentence of a plan with a gap, word for word.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay until it has ended.")] = False,
) -> None:
    """Roll a version out behind an endpoint."""
    session = sessions.of(ctx)
    values = {
        "strategy": strategy,
        "capacity": capacity,
        "replicas": replicas,
        "hold_seconds": hold,
        "min_requests": min_requests,
        "auto_rollback": auto_rollback,
        "accept": accept,
    }
    body = _wish(session, reference, settings, values, shares)
    made = session.api.post(session.path("endpoints", endpoint, "rollouts"), body)
    if follow:
        made = _follow(session, str(made["id"]))
    _show(session, made)


def preview(
    ctx: typer.Context,
    reference: Reference,
    endpoint: Endpoint,
    strategy: Strategy = "canary",
    capacity: Capacity = "spare",
    shares: Shares = "",
    replicas: Replicas = 0,
    settings: SetOption = None,
) -> None:
    """Say what a rollout would do and cost, and where the room could come from."""
    session = sessions.of(ctx)
    values = {"strategy": strategy, "capacity": capacity, "replicas": replicas}
    body = _wish(session, reference, settings, values, shares)
    answer = session.api.post(session.path("endpoints", endpoint, "rollouts", "preview"), body)
    if session.output.form == "json":
        session.output.json(answer)
        return
    if answer.get("reason"):
        raise ClientError(f"{answer['sentence']} ({answer['reason']})")
    session.output.out.print(
        Group(
            _steps(answer["plan"]["steps"], -1),
            Text(answer["sentence"]),
            output.table(
                answer["offers"],
                [
                    ("capacity", field("capacity")),
                    ("possible", field("possible")),
                    ("cost", field("sentence")),
                    ("to accept", lambda row: row["accept"]),
                ],
            ),
        )
    )


def list_rollouts(ctx: typer.Context) -> None:
    """List the tenant's rollouts, newest first."""
    session = sessions.of(ctx)
    session.output.rows(
        list(session.api.rows(session.path("rollouts"))),
        [
            ("id", lambda row: row["id"][-8:]),
            ("endpoint", field("endpoint")),
            ("from", field("from_label")),
            ("to", field("to_label")),
            ("strategy", field("strategy")),
            ("state", field("state")),
            ("step", lambda row: f"{row['step'] + 1} of {len(row['plan']['steps'])}"),
            ("created", field("created_at")),
        ],
        empty="No rollouts yet: millpond rollouts start MODEL --endpoint NAME.",
    )


def status(
    ctx: typer.Context,
    rollout: Ident,
    watching: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing, until Ctrl-C.")] = False,
) -> None:
    """Show a rollout: its step, the last verdict, and both sides."""
    session = sessions.of(ctx)
    ident = _find(session, rollout)
    if watching:
        waiting.watch(session, lambda: session.api.get(session.path("rollouts", ident)), _picture)
        return
    _show(session, session.api.get(session.path("rollouts", ident)))


def log(ctx: typer.Context, rollout: Ident) -> None:
    """Show what happened in a rollout, newest first."""
    session = sessions.of(ctx)
    rows = list(session.api.rows(session.path("rollouts", _find(session, rollout), "log")))
    session.output.rows(
        rows,
        [
            ("at", field("at")),
            ("step", lambda row: row["step"] + 1),
            ("kind", field("kind")),
            ("what", field("sentence")),
            ("by", field("actor")),
        ],
        empty="Nothing has happened yet.",
    )


def _verb(name: str) -> Any:
    def command(ctx: typer.Context, rollout: Ident) -> None:
        session = sessions.of(ctx)
        path = session.path("rollouts", _find(session, rollout), name)
        _show(session, session.api.post(path, {}))

    return command


def _find(session: Session, text: str) -> str:
    """The id of a rollout: whole, its beginning or end, or the newest of an endpoint."""
    rows = list(session.api.rows(session.path("rollouts")))
    for row in rows:
        if text in (row["id"], row["endpoint"]):
            return str(row["id"])
    matches = [row["id"] for row in rows if row["id"].startswith(text) or row["id"].endswith(text)]
    if len(matches) == 1:
        return str(matches[0])
    raise UsageError(f"{'Several rollouts match' if matches else 'There is no rollout'} {text!r}.")


def _follow(session: Session, ident: str) -> dict[str, Any]:
    def done(row: waiting.State) -> bool:
        if row["state"] == "paused":
            raise NotReached(f"{row['message']} Resume, promote or roll back.")
        return row["state"] not in LIVE

    ended = dict(
        waiting.until(
            session,
            lambda: session.api.get(session.path("rollouts", ident)),
            done=done,
            line=_line,
            show=_picture,
            timeout_seconds=86_400.0,
            every_seconds=2.0,
        )
    )
    if ended["state"] != "promoted":
        raise NotReached(ended["message"])
    return ended


def _line(row: waiting.State) -> str:
    said = (row.get("verdict") or {}).get("sentence") or row["message"]
    return f"{row['state']}, step {row['step'] + 1} of {len(row['plan']['steps'])}: {said}"


def _show(session: Session, row: Mapping[str, Any]) -> None:
    if session.output.form == "json":
        session.output.json(row)
    else:
        session.output.out.print(_picture(row))


def _picture(row: Mapping[str, Any]) -> RenderableType:
    verdict = row.get("verdict") or {}
    parts: list[RenderableType] = [
        Text(f"{row['endpoint']}: {row['from_label']} → {row['to_label']}   {row['state']}   id {row['id']}"),
        Text(row["message"], style="dim"),
        _steps(row["plan"]["steps"], row["step"]),
    ]
    if verdict.get("sentence"):
        seen = (
            f" ({verdict['candidate_requests']} requests of the candidate)" if "candidate_requests" in verdict else ""
        )
        parts.append(Text(verdict["sentence"] + seen))
    return Group(*parts)


def _steps(steps: list[dict[str, Any]], current: int) -> RenderableType:
    rows = [{**step, "number": number, "now": number == current} for number, step in enumerate(steps)]
    return output.table(
        rows,
        [
            ("step", lambda row: f"{'▸' if row['now'] else ' '} {row['number'] + 1}"),
            ("share", lambda row: f"{row['share']} %"),
            ("candidate", lambda row: row["candidate_replicas"]),
            ("baseline", lambda row: row["baseline_after"]),
            ("held for", lambda row: f"{row['hold_seconds']} s, {row['min_requests']} requests"),
            ("judged", field("judged")),
        ],
    )
