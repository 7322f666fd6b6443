"""fit: the dry run of a deployment, and how its answer is told."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from runtime.client import naming, output, verdicts
from runtime.client import session as sessions
from runtime.client.errors import ClientError, NotReached
from runtime.client.output import field
from runtime.client.session import Session
from runtime.client.settings import SetOption, settings_of

#: The dry run's reason where no amount of room helps.
NO_ENGINE: Final = "NoEngine"
_WORDS: Final = {
    "weights_bytes": "weights", "kv_floor_bytes": "KV cache at least", "kv_bytes_per_token": "KV cache per token",
    "workspace_bytes": "workspace", "context_bytes": "context", "headroom_bytes": "headroom",
    "total_bytes": "together", "transfer_bytes": "copied per step", "host_memory_bytes": "host memory",
}  # fmt: skip
#: Of a replica over several devices: what is of the whole model, and what every device has beside its part of that.
_OF_ALL: Final = ("weights_bytes", "kv_floor_bytes", "kv_bytes_per_token", "transfer_bytes")
_OF_EACH: Final = ("workspace_bytes", "context_bytes")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(fit)


def fit(
    ctx: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="MODEL[:VERSION|@ALIAS]")],
    replicas: Annotated[int, typer.Option(min=1)] = 1,
    settings: SetOption = None,
) -> None:
    """Say per device whether a version would fit, and why not."""
    session = sessions.of(ctx)
    ref = naming.model_ref(reference)
    version = ref.version if ref.version is not None else naming.newest_ready(session, ref.model)
    body = {"model": ref.model, "version": version, "config": settings_of(settings or []), "replicas": replicas}
    answer = session.api.post(session.path("fit"), body)
    if session.output.form == "json":
        session.output.json(answer)
    else:
        session.output.out.print(fit_table(answer))
    if not answer["fits"]:
        raise not_placed(answer)
    session.output.note(str(answer.get("message") or ""))


def ask_first(session: Session, wanted: Mapping[str, Any], anyway: bool) -> None:
    """The dry run before a deployment: say where it goes, or why it does not.

    Raises:
        ClientError: no engine runs it.
        NotReached: it fits nowhere now, nobody makes room for it, and it is not wanted ``anyway``.
    """
    answer = session.api.post(session.path("fit"), wanted)
    if answer["fits"]:
        fitting = [row for row in answer["devices"] if row["fits"]]
        session.output.note(f"Fits: {output.size(answer['need']['total_bytes'])} on {len(fitting)} device(s)")
        for line in plan_lines(answer["need"])[:1]:
            session.output.note(str(line))
        return
    session.output.err.print(fit_table(answer))
    if answer["reason"] == NO_ENGINE:
        raise not_placed(answer)
    if answer["makes_room"]:
        session.output.note("Others make room for it; it starts when they have.")
    elif not anyway:
        raise NotReached(f"{refusal(answer)} (--anyway deploys it all the same)")


def not_placed(answer: Mapping[str, Any]) -> ClientError:
    """That it finds no place now, for which one can wait; or that no engine runs it, for which one cannot."""
    return (ClientError if answer.get("reason") == NO_ENGINE else NotReached)(refusal(answer))


def refusal(answer: Mapping[str, Any]) -> str:
    """Why it does not fit, as the platform says it, and what would help."""
    would = "It could be deployed if" if answer.get("reason") == NO_ENGINE else "It would fit if"
    help_ = f" {would}: {answer['would_fit_if']}." if answer.get("would_fit_if") else ""
    return f"{answer.get('message') or 'It fits on no device now.'}{help_}"


def fit_table(answer: Mapping[str, Any]) -> RenderableType:
    """What a replica needs and how it is spread, then the verdict on each device."""
    need = answer["need"]
    rows = output.table(
        verdicts.alike(answer["devices"]),
        [
            ("node", field("node")),
            ("device", verdicts.devices),
            ("kind", field("kind")),
            ("free", lambda row: output.size(row.get("free_bytes"))),
            ("fits", field("fits")),
            ("why not", verdicts.why_not),
            ("would fit if", field("would_fit_if")),
        ],
    )
    return Group(*map(Text, need_lines(need)), *plan_lines(need), rows)


def need_lines(need: Mapping[str, Any]) -> list[str]:
    """What one replica needs; over several devices what of it is in all, on each device, and of each node."""
    devices, stages = need.get("devices", 1), need.get("stages", 1)
    if devices * stages == 1:
        return [f"needs {_parts(need, *_WORDS)}"]
    of_node = f"each of its {stages} stages takes of its node" if stages > 1 else "it takes of its node"
    return [
        f"needs {devices * stages} devices; in all {_parts(need, *_OF_ALL)}",
        f"each device takes {output.size(need['total_bytes'])}, of it {_parts(need, *_OF_EACH)}",
        f"{of_node} {output.size(need['host_memory_bytes'])} of memory and {need['cpus']:g} CPUs",
    ]


def _parts(need: Mapping[str, Any], *names: str) -> str:
    return ", ".join(f"{_WORDS[name]} {output.size(need[name])}" for name in names if need.get(name))


def plan_lines(need: Mapping[str, Any]) -> list[Text]:
    """How one replica is spread over devices, and why not otherwise; nothing for one device."""
    plan = need.get("parallel")
    if not plan:
        return []
    chosen = plan.get("chosen")
    lines = [Text(f"spread as {plan['sentence']}" if chosen else f"cannot be spread: {plan['sentence']}")]
    return lines + [Text(f"  not {other['name']}: {other['why_not']}") for other in plan.get("rejected", [])]
