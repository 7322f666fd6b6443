"""experiments: two revisions side by side behind an endpoint, compared and never moved."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from runtime.client import output
from runtime.client import session as sessions
from runtime.client.errors import UsageError
from runtime.client.output import field
from runtime.client.session import Session

Ident = Annotated[str, typer.Argument(help="Id of the experiment, or its beginning or end.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Experiments: a fixed split that only compares.", no_args_is_help=True)
    group.command()(start)
    group.command(name="list")(list_)
    group.command()(show)
    group.command()(end)
    app.add_typer(group, name="experiments")


def start(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="What is found out.")],
    endpoint: Annotated[str, typer.Option("--endpoint", "-e", help="The endpoint whose traffic is split.")],
    candidate: Annotated[str, typer.Option(help="Id of the other deployment behind the endpoint.")],
    percent: Annotated[float, typer.Option(min=0.1, max=99.9, help="The candidate's share.")] = 50.0,
    seconds: Annotated[int | None, typer.Option(min=60, help="End by itself after so long.")] = None,
) -> None:
    """Split an endpoint's traffic between what serves and another deployment."""
    session = sessions.of(ctx)
    body = {
        "endpoint": endpoint,
        "name": name,
        "candidate": candidate,
        "share": round(percent * 10),
        "seconds": seconds,
    }
    _show(session, session.api.post(session.path("experiments"), body))


def list_(ctx: typer.Context) -> None:
    """List the tenant's experiments, newest first."""
    session = sessions.of(ctx)
    session.output.rows(
        list(session.api.rows(session.path("experiments"))),
        [
            ("id", lambda row: row["id"][-8:]),
            ("name", field("name")),
            ("endpoint", field("endpoint")),
            ("share", lambda row: f"{row['share'] / 10:g} %"),
            ("state", field("state")),
            ("created", field("created_at")),
        ],
        empty="No experiments yet.",
    )


def show(ctx: typer.Context, experiment: Ident) -> None:
    """Show both sides with 95 % intervals."""
    session = sessions.of(ctx)
    _show(session, session.api.get(session.path("experiments", _find(session, experiment))))


def end(ctx: typer.Context, experiment: Ident) -> None:
    """Give the weights of before back."""
    session = sessions.of(ctx)
    path = session.path("experiments", _find(session, experiment), "end")
    _show(session, session.api.post(path, {}))


def _find(session: Session, text: str) -> str:
    rows = list(session.api.rows(session.path("experiments")))
    matches = [row["id"] for row in rows if row["id"].startswith(text) or row["id"].endswith(text)]
    if len(matches) == 1:
        return str(matches[0])
    raise UsageError(f"{'Several experiments match' if matches else 'There is no experiment'} {text!r}.")


def _show(session: Session, row: Mapping[str, Any]) -> None:
    if session.output.form == "json":
        session.output.json(row)
        return
    results = row["results"]
    session.output.out.print(
        Group(
            Text(f"{row['name']}: {row['from_label']} and {row['to_label']}, {row['share'] / 10:g} %   {row['state']}"),
            Text(f"{results['baseline_requests']} and {results['candidate_requests']} requests", style="dim"),
            output.table(
                results["measures"],
                [
                    ("measure", field("measure")),
                    ("baseline", lambda item: _estimate(item["baseline"], item["unit"])),
                    ("candidate", lambda item: _estimate(item["candidate"], item["unit"])),
                    ("apart", field("apart")),
                ],
            ),
        )
    )


def _estimate(side: Mapping[str, Any], unit: str) -> str:
    if side["value"] is None:
        return ""
    low, value, high = (_amount(side[name], unit) for name in ("low", "value", "high"))
    return f"{value} ({low} to {high})"


def _amount(value: float, unit: str) -> str:
    return f"{100 * value:.2f} %" if unit == "share" else f"{value:,.0f} {unit}"
