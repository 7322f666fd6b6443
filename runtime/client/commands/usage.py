"""usage, quota: what was used, and what may be held."""

from typing import Annotated

import typer

from runtime.client import output, quotas
from runtime.client import session as sessions
from runtime.client.output import field, moment

HOURS = ("gpu_hours", "idle_gpu_hours", "cpu_hours", "idle_cpu_hours")
NUMBERS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(usage)
    app.command()(quota)


def usage(
    ctx: typer.Context,
    by: Annotated[
        str, typer.Option(help="hour, day, month, key, endpoint, model, revision, or caller (of your endpoints).")
    ] = "day",
    since: Annotated[str, typer.Option("--from", help="Beginning, an ISO time; default: seven days ago.")] = "",
    until: Annotated[str, typer.Option("--to", help="End, an ISO time; default: now.")] = "",
    devices: Annotated[
        bool,
        typer.Option(
            "--devices",
            help="GPU-hours held and idle instead, by device, deployment, endpoint, model, revision or time.",
        ),
    ] = False,
) -> None:
    """Show requests, tokens and cost; with --devices what was held of GPUs."""
    session = sessions.of(ctx)
    query = {"group_by": by, **({"from": since} if since else {}), **({"to": until} if until else {})}
    answer = session.api.get(session.path("usage", "devices") if devices else session.path("usage"), query)
    if session.output.form == "json":
        session.output.json(answer)
        return
    rows = answer["rows"]
    if rows and session.output.form == "table":
        rows = [*rows, {"label": "total", **answer["totals"]}]
    columns = [_hours(name) for name in HOURS] if devices else [_count(name) for name in NUMBERS]
    session.output.rows(
        rows,
        [
            (by, field("label")),
            *columns,
            (f"cost ({answer['currency']})", field("cost")),
        ],
        empty=f"Nothing was used between {moment(answer['from'])} and {moment(answer['to'])}.",
    )


def _hours(name: str) -> output.Column:
    return (name.replace("_", " "), lambda row: f"{row[name]:.2f}")


def _count(name: str) -> output.Column:
    return (name.replace("_", " "), lambda row: output.count(row[name]))


def quota(ctx: typer.Context) -> None:
    """Show what the tenant holds and may hold."""
    session = sessions.of(ctx)
    quotas.show(session, session.api.get(session.path("quota")))
