"""`python -m runtime.embedded up|stop|status`."""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from runtime.embedded import checks, places, simulated
from runtime.embedded import status as status_file
from runtime.embedded.errors import EmbeddedError
from runtime.embedded.places import Places
from runtime.embedded.screen import Screen
from runtime.embedded.up import Options, stop_running
from runtime.embedded.up import up as run_up

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def up(
    sample: Annotated[bool, typer.Option(help="Publish and serve the sample model on the first start.")] = True,
    simulate: Annotated[
        list[str] | None,
        typer.Option(help=f"Add a simulated node, like dgx-h100 or dgx-h100:3 ({', '.join(simulated.machines())})."),
    ] = None,
) -> None:
    """Run Millpond on this machine until Ctrl-C."""
    here = _places()
    try:
        nodes = tuple(simulated.read(simulate or []))
    except EmbeddedError as error:
        Screen(Console(stderr=True)).error(str(error))
        raise typer.Exit(2) from error
    raise typer.Exit(run_up(here, Options(with_sample=sample, simulate=nodes), Screen(), os.environ))


@app.command()
def stop() -> None:
    """Stop the Millpond that runs on this state folder."""
    raise typer.Exit(stop_running(_places(), Screen()))


@app.command()
def status() -> None:
    """Show the processes of the Millpond that runs on this state folder."""
    here = _places()
    report = status_file.read(here.status)
    if checks.holder(here.lock) is None or report is None:
        typer.echo(f"Nothing runs on {here.home}.")
        raise typer.Exit(3)
    table = Table("process", "state", "pid", "restarts", "log")
    for row in report.programs:
        table.add_row(row.name, row.state, str(row.pid or ""), str(row.restarts), os.path.basename(row.log))
    Console().print(table)
    Screen().say(f"Logs: {here.logs}")  # a line of its own: in the table a narrow terminal would cut it


def _places() -> Places:
    try:
        return places.read(os.environ)
    except EmbeddedError as error:
        Screen(Console(stderr=True)).error(str(error))
        raise typer.Exit(2) from error


if __name__ == "__main__":
    sys.exit(app())
