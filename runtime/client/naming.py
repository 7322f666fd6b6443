"""How things are named: ``MODEL``, ``MODEL:3``, ``MODEL@champion``; deployments by id or endpoint."""

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from runtime.client.api import Api
from runtime.client.errors import ApiError, Exit, UsageError
from runtime.client.session import Session

SHORTEST_PREFIX = 4


class ModelRef(NamedTuple):
    """``version`` is a number, an alias, or ``None`` for the newest that is ready."""

    model: str
    version: int | str | None


def model_ref(text: str) -> ModelRef:
    """Read ``MODEL``, ``MODEL:number``, ``MODEL:alias`` or ``MODEL@alias``.

    Raises:
        UsageError: the text is none of these.
    """
    for sign in "@:":
        name, found, version = text.rpartition(sign)
        if found:
            if not name or not version:
                break
            return ModelRef(name, int(version) if sign == ":" and version.isdigit() else version)
    else:
        if text:
            return ModelRef(text, None)
    raise UsageError(f"{text!r} names no model: write MODEL, MODEL:3 (a version) or MODEL@champion (an alias).")


def newest_ready(session: Session, model: str) -> int:
    """Number of the newest ready version.

    Raises:
        ApiError: there is none; the text says what there is.
    """
    versions = list(session.api.rows(session.path("models", model, "versions"), most=100))
    for row in versions:
        if row["state"] == "ready":
            return int(row["number"])
    if versions:
        newest = versions[0]
        why = f"version {newest['number']} is {newest['state']}" + (
            f": {newest['message']}" if newest["message"] else ""
        )
    else:
        why = "it has no version yet; upload one with `millpond upload`"
    raise ApiError(
        status=404,
        code="no_ready_version",
        title="No ready version",
        detail=f"{model} has no version that is ready: {why}.",
        request_id="",
    )


def deployment_id(session: Session, text: str) -> str:
    """Id of the deployment that ``text`` names: the id, its beginning or end, or its endpoint's name; of several behind
    an endpoint the only one that is not stopped.

    Raises:
        UsageError: nothing, or more than one, goes by ``text``.
    """
    if _is_id(text):
        return text
    rows = list(session.api.rows(session.path("deployments")))
    behind = [row for row in rows if _name_of(row.get("endpoint")) == text]
    live = [row for row in behind if row.get("wanted") != "stopped"]
    if len(live) == 1:
        return str(live[0]["id"])
    return _the_one(rows, text, "deployment", lambda row: (_name_of(row.get("endpoint")),))


def key_id(session: Session, text: str) -> str:
    """Id of the API key that ``text`` names: the id, its beginning or end, or its name."""
    if _is_id(text):
        return text
    rows = [row for row in session.api.rows(session.path("keys")) if not row.get("revoked_at")]
    return _the_one(rows, text, "API key", lambda row: (row["name"], row["masked"]))


def one_of(session: Session, collection: str, text: str, what: str, name: str) -> str:
    """Id of the row of a tenant's ``collection`` that ``text`` names: its id or part of it, or its field ``name``."""
    if _is_id(text):
        return text
    return _the_one(list(session.api.rows(session.path(collection))), text, what, lambda row: (row[name],))


def node_id(api: Api, text: str) -> str:
    """Id of the node that ``text`` names: the id, its beginning or end, or its name."""
    if _is_id(text):
        return text
    return _the_one(list(api.rows("/nodes")), text, "node", lambda row: (row["name"],))


def person_id(api: Api, text: str) -> str:
    """Id of the account that ``text`` names: the id, or its address in any case of its letters."""
    if _is_id(text):
        return text
    rows = list(api.rows("/admin/people", {"q": text}))
    return _the_one(rows, text.lower(), "account", lambda row: (row["email"].lower(),))


def device_id(api: Api, text: str) -> str:
    """Id of the device that ``text`` names: the id or its UUID, or the beginning or end of one of them."""
    if _is_id(text):
        return text
    rows = list(api.rows("/devices", most=20_000))
    known = [(row, str(row["uuid"])) for row in rows] if len(text) >= SHORTEST_PREFIX else []
    ends = [row for row, uuid in known if uuid.endswith(text) or uuid.startswith((text, f"GPU-{text}"))]
    return str(ends[0]["id"]) if len(ends) == 1 else _the_one(rows, text, "device", lambda row: (row["uuid"],))


def _the_one(rows: Sequence[dict[str, Any]], text: str, what: str, names: Any) -> str:
    found = [row for row in rows if text in names(row)]
    if not found and len(text) >= SHORTEST_PREFIX:
        wanted = text.replace("-", "").lower()
        plain = [(row, str(row["id"]).replace("-", "")) for row in rows]
        found = [row for row, ident in plain if ident.startswith(wanted) or ident.endswith(wanted)]
    if len(found) == 1:
        return str(found[0]["id"])
    if not found:
        raise UsageError(f"There is no {what} {text!r} here.", exit_code=Exit.NOT_FOUND)
    listed = ", ".join(str(row["id"]) for row in found[:5])
    raise UsageError(f"{len(found)} go by {text!r}; say which by its id: {listed}.")


def _name_of(value: Any) -> str:
    return str(value.get("name", "")) if isinstance(value, dict) else str(value or "")


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
