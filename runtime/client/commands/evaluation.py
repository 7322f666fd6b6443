"""models evaluate: whether a model would run here, and where, before it is uploaded."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from runtime.client import output
from runtime.client import session as sessions
from runtime.client.commands.placement import fit_table, refusal
from runtime.client.errors import NotReached, UsageError
from runtime.client.output import field
from runtime.client.settings import SetOption, settings_of

CONFIG_NAME: Final = "config.json"
#: What the platform takes; published configs have a few thousand bytes.
MAX_CONFIG_BYTES: Final = 256 * 1024


def evaluate(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(help="A config.json, or a folder with one.")],
    settings: SetOption = None,
    replicas: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Judge a model by its config.json: its size, what a replica needs, and where it would fit now."""
    session = sessions.of(ctx)
    body = {"config": read_config(path), "serving": settings_of(settings or []), "replicas": replicas}
    answer = session.api.post(session.path("evaluations"), body)
    placement = answer["placement"]
    if session.output.form == "table":
        session.output.one(answer, _lines(answer))
        session.output.out.print()
        session.output.out.print(output.table(answer["needs"], _NEEDS))
        session.output.out.print()
        session.output.out.print(fit_table(placement))
    else:
        session.output.json(answer)
    if not answer["served"]:
        where = "It would fit here otherwise." if placement["fits"] else refusal(placement)
        raise NotReached(f"An upload would be rejected ({answer['reason']}): {answer['message']} {where}")
    if not placement["fits"]:
        raise NotReached(refusal(placement))
    session.output.note(str(placement["message"]))


def read_config(path: Path) -> dict[str, Any]:
    """The object in a config.json at ``path``, or in the folder ``path``.

    Raises:
        UsageError: there is none, or it is no JSON object.
    """
    file = path / CONFIG_NAME if path.is_dir() else path
    try:
        with file.open("rb") as source:
            data = source.read(MAX_CONFIG_BYTES + 1)
    except OSError as exc:
        raise UsageError(f"{file} cannot be read ({exc.strerror}); give a config.json, or a folder with one.") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise UsageError(f"{file} has more than {MAX_CONFIG_BYTES} bytes; give the config.json of the model.")
    try:
        found = json.loads(data, parse_float=_finite, parse_constant=_finite)
        json.dumps(found, ensure_ascii=False).encode()  # halves of letters can be read, and not be sent
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{file} is no JSON object; give the config.json of the model.")
    return found


def _finite(text: str) -> float:
    """A number that JSON can have: NaN, Infinity and 1e400 are none."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _lines(answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    counted = "" if answer["exact"] else " (by the formulas of decoders in general)"
    return [
        ("architecture", answer["architecture"] or "not stated"),
        ("served here", answer["served"]),
        ("parameters", f"{output.count(answer['parameters'])}{counted}"),
        ("context", output.count(answer["max_model_len"])),
    ]


def _bytes(name: str) -> output.Column:
    return name.removesuffix("_bytes").replace("_", " "), lambda row: output.size(row.get(name))


_NEEDS: Final[list[output.Column]] = [
    ("one replica on", field("kind")),
    *(_bytes(name) for name in ("weights_bytes", "kv_floor_bytes", "kv_bytes_per_token", "workspace_bytes")),
    *(_bytes(name) for name in ("context_bytes", "headroom_bytes", "total_bytes", "host_memory_bytes")),
]
