"""endpoints: the names that clients call, what they promise, and what keeps a caller on one variant."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from runtime.client import session as sessions
from runtime.client.errors import UsageError
from runtime.client.output import field

OBJECTIVES = ("ttft_p95_ms", "itl_p95_ms", "e2e_p95_ms", "error_rate")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Endpoints: list, edit.", no_args_is_help=True)
    group.command(name="list")(list_endpoints)
    group.command()(edit)
    app.add_typer(group, name="endpoints")


def list_endpoints(ctx: typer.Context) -> None:
    """List the tenant's endpoints."""
    session = sessions.of(ctx)
    session.output.rows(
        list(session.api.rows(session.path("endpoints"))),
        [
            ("name", field("name")),
            ("state", field("state")),
            ("promises", lambda row: _promises(row["slo"])),
            ("sticky", field("sticky")),
            ("granted to", lambda row: [grant["tenant"] for grant in row["grants"]]),
        ],
        empty="No endpoints yet: millpond deploy MODEL.",
    )


def _promises(slo: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in slo.items())


def edit(
    ctx: typer.Context,
    endpoint: Annotated[str, typer.Argument(help="Name of the endpoint.")],
    ttft_p95_ms: Annotated[float | None, typer.Option(help="Time to the first token, 95th percentile.")] = None,
    itl_p95_ms: Annotated[float | None, typer.Option(help="Time between tokens, 95th percentile.")] = None,
    e2e_p95_ms: Annotated[float | None, typer.Option(help="Time to the end, 95th percentile.")] = None,
    error_rate: Annotated[float | None, typer.Option(help="Fraction of requests that may fail, 0 to 1.")] = None,
    sticky: Annotated[str, typer.Option(help="What keeps a caller on one variant: none, key, user, header.")] = "",
    no: Annotated[list[str] | None, typer.Option("--no", help=f"Take a promise back: {', '.join(OBJECTIVES)}.")] = None,
) -> None:
    """Change what an endpoint promises, and what keeps a caller on one variant."""
    session = sessions.of(ctx)
    path = session.path("endpoints", endpoint)
    given = dict(zip(OBJECTIVES, (ttft_p95_ms, itl_p95_ms, e2e_p95_ms, error_rate), strict=True))
    chosen = {name: value for name, value in given.items() if value is not None}
    away = {name.replace("-", "_") for name in no or []}
    if unknown := away - set(OBJECTIVES):
        raise UsageError(f"--no takes {', '.join(OBJECTIVES)}, not {sorted(unknown)[0]!r}.")
    body: dict[str, Any] = {"sticky": sticky} if sticky else {}
    if chosen or away:
        kept = {name: value for name, value in session.api.get(path)["slo"].items() if name not in away}
        body["slo"] = {**kept, **chosen}
    if not body:
        raise UsageError("Say what to change: see `millpond endpoints edit --help`.")
    row = session.api.patch(path, body)
    lines = [("endpoint", row["name"]), ("promises", _promises(row["slo"])), ("sticky", row["sticky"])]
    session.output.one(row, lines)
