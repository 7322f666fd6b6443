"""The ``millpond`` command: options of every command, and the boundary where errors become exit codes.

Options of every command (--server, --profile, --tenant, --output, --quiet) may stand before or after the command.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from runtime.base.version import VERSION
from runtime.client.commands import (
    account,
    deployments,
    endpoints,
    experiments,
    inference,
    keys,
    layouts,
    limits,
    members,
    models,
    nodes,
    people,
    placement,
    rollouts,
    usage,
)
from runtime.client.errors import ClientError, Exit
from runtime.client.output import Format, Output
from runtime.client.session import ENV_SERVER, ENV_TENANT, Session

EPILOG: Final = (
    "Every command takes --server, --profile, --tenant/-t, --output/-o table|json|csv and --quiet/-q. "
    "Exit codes: 0 done, 1 refused or failed, 2 wrong use, 3 not signed in or not allowed, 4 not found, "
    "5 the platform cannot be reached, 6 what was waited for did not come, 130 interrupted."
)
_WITH_VALUE: Final = frozenset({"--server", "--profile", "--tenant", "-t", "--output", "-o"})
_ALONE: Final = frozenset({"--quiet", "-q"})

app = typer.Typer(
    name="millpond",
    help="Serve models on a shared pool of GPUs: upload, deploy, call, watch.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millpond {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    server: Annotated[str, typer.Option(help=f"URL of the control plane (or {ENV_SERVER}).")] = "",
    profile: Annotated[str, typer.Option(help="Profile of the configuration file.")] = "",
    tenant: Annotated[str, typer.Option("--tenant", "-t", help=f"Slug of the tenant (or {ENV_TENANT}).")] = "",
    output: Annotated[Format, typer.Option("--output", "-o", help="How results are written.")] = Format.TABLE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Results and errors only.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Serve models on a shared pool of GPUs: upload, deploy, call, watch."""
    ctx.obj = Session(os.environ, server=server, profile=profile, tenant=tenant, form=output, quiet=quiet)


for module in (
    account, models, deployments, endpoints, rollouts, experiments, inference, keys, members, usage, limits, nodes,
    layouts, people, placement,
):  # fmt: skip
    module.register(app)


def hoisted(args: Sequence[str]) -> list[str]:
    """``args`` with the options of every command moved to the front, wherever they stood.

    What follows ``--``, and the arguments of ``serve`` (which are the engine's), stay where they are.
    """
    front: list[str] = []
    rest: list[str] = []
    waiting = list(args)
    while waiting:
        arg = waiting.pop(0)
        if arg in ("--", inference.SERVE) and (arg == "--" or not rest):
            return [*front, *rest, arg, *waiting]
        if arg in _WITH_VALUE and waiting:
            front += [arg, waiting.pop(0)]
        elif arg in _ALONE or ("=" in arg and arg.partition("=")[0] in _WITH_VALUE):
            front.append(arg)
        else:
            rest.append(arg)
    return front + rest


def command_line() -> Callable[..., Any]:
    """The command with all others below it.

    Boxes are for lists of commands. In a box of options, eighty columns cut the names of the options themselves.
    """
    made = typer.main.get_command(app)
    waiting: list[Any] = [made]
    while waiting:
        each = waiting.pop()
        below = getattr(each, "commands", {})
        waiting += below.values()
        if not below:
            each.rich_markup_mode = None
    return made


def run(args: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    try:
        command_line()(args=hoisted(args), prog_name="millpond", standalone_mode=True)
    except ClientError as exc:
        Output().failure(exc)
        return int(exc.exit_code)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing more to say
        return int(Exit.DONE)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(Exit.FAILED)
    return int(Exit.DONE)


def main() -> None:
    """Entry point of the console script and of ``python -m runtime.client``."""
    sys.exit(run(sys.argv[1:]))
