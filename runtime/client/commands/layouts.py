"""layouts, isolation: how GPUs are cut by MIG, for platform admins; how strictly a tenant's replicas are kept apart."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from runtime.client import naming, output
from runtime.client import session as sessions
from runtime.client.errors import UsageError
from runtime.client.output import Format, field
from runtime.client.session import part

GIB: Final = 1024**3
LEVELS: Final = ("any", "mps", "hardware", "exclusive")
_PLACE: Final = re.compile(r"([1-7]g\.\d+gb(?:\+[a-z.]+)?)@(\d{1,2})")
_WANT: Final = re.compile(r"(?:(\d{1,2})x)?(?:([1-7]g\.\d+gb(?:\+[a-z.]+)?)|(\d+(?:\.\d+)?)(?:gib)?)", re.IGNORECASE)

Device = Annotated[str, typer.Argument(help="UUID or id of the GPU.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="MIG layouts of GPUs (platform admins).", no_args_is_help=True)
    group.command(name="list")(list_layouts)
    group.command()(propose)
    group.command()(apply)
    group.command()(rollback)
    app.add_typer(group, name="layouts")
    app.command(name="isolation")(isolation)


def list_layouts(ctx: typer.Context) -> None:
    """List the GPUs that can be cut, how they are, and how far a change is."""
    session = sessions.of(ctx)
    rows = [row for row in session.api.rows("/devices") if not row["parent_uuid"] and row["facts"].get("mig")]
    session.output.rows(
        rows,
        [
            ("gpu", field("uuid")),
            ("node", field("node")),
            ("product", field("product")),
            ("cut into", lambda row: _names(row["facts"]["mig"].get("instances") or ())),
            ("change", field("layout_phase")),
            ("says", field("layout_message")),
        ],
        empty="No GPU here can be cut.",
    )


def propose(
    ctx: typer.Context,
    wanted: Annotated[
        list[str] | None,
        typer.Argument(help="Instances to plan for: 4x1g.10gb, 2x20gib. Without any: for what waits now."),
    ] = None,
    simulated: Annotated[bool, typer.Option("--simulated", help="Plan the demand for simulated GPUs.")] = False,
) -> None:
    """Propose how to cut which GPU for what waits for a MIG instance, or for a demand that is named."""
    session = sessions.of(ctx)
    if wanted:
        body = {"demand": [_want(text) for text in wanted], "kind": "simulated" if simulated else "cuda"}
        answer = session.api.post("/layouts/proposals", body)
    else:
        answer = session.api.get("/layouts/proposals")
    if session.output.form is Format.JSON:
        session.output.json(answer)
        return
    session.output.rows(
        answer["proposals"],
        [
            ("gpu", field("device_uuid")),
            ("node", field("node")),
            ("now", lambda row: _names(row["now"]) or "whole"),
            ("proposed", lambda row: _names(row["proposed"])),
            ("serves", lambda row: ", ".join(_served(each) for each in row["serves"])),
            ("can be cut", lambda row: "now" if row["applicable"] else f"when {row['must_move']} replicas have left"),
        ],
        empty="Nothing to cut: nothing waits for a MIG instance, or no GPU could serve it.",
    )
    if answer["unserved"]:
        session.output.note("Not served: " + ", ".join(_served(each) for each in answer["unserved"]))


def apply(
    ctx: typer.Context,
    device: Device,
    placements: Annotated[
        list[str] | None, typer.Argument(help="Instances as PROFILE@SLICE: 3g.40gb@0 3g.40gb@4. None: whole again.")
    ] = None,
    proposed: Annotated[bool, typer.Option("--proposed", help="Take what is proposed for it now.")] = False,
) -> None:
    """Cut an idle GPU. What its node cannot make it puts back, and says so."""
    session = sessions.of(ctx)
    ident = naming.device_id(session.api, device)
    row = session.api.get(f"/devices/{part(ident)}")
    if proposed:
        plans = session.api.get("/layouts/proposals")["proposals"]
        plan = next((each for each in plans if each["device_id"] == row["id"]), None)
        if plan is None:
            raise UsageError("Nothing is proposed for this GPU now: millpond layouts propose.")
        wanted = [{"profile_id": each["profile_id"], "start": each["start"]} for each in plan["proposed"]]
    else:
        wanted = [_placement(text, row) for text in placements or ()]
    _tell(session, session.api.post(f"/devices/{part(ident)}/layout", {"placements": wanted}))


def rollback(ctx: typer.Context, device: Device) -> None:
    """Go back to the layout that was wanted before."""
    session = sessions.of(ctx)
    ident = naming.device_id(session.api, device)
    _tell(session, session.api.post(f"/devices/{part(ident)}/layout/rollback"))


def isolation(
    ctx: typer.Context,
    least: Annotated[str, typer.Argument(help=f"The least that is accepted: {', '.join(LEVELS)}.")] = "",
) -> None:
    """Show or set how strictly all replicas of the tenant must be kept apart from others."""
    session = sessions.of(ctx)
    if least and least not in LEVELS:
        raise UsageError(f"isolation is one of {', '.join(LEVELS)}, not {least!r}.")
    where = session.path("isolation")
    row = session.api.put(where, {"isolation": least}) if least else session.api.get(where)
    session.output.one(
        row,
        [
            ("tenant", session.tenant),
            ("required", row["isolation"]),
            ("set by", row["set_by"] or "nobody"),
            ("counts for", "what is placed from now on; what serves already goes on as it is"),
        ],
    )


def _wanted(row: Mapping[str, Any]) -> str:
    """The instances that are wanted, as ``apply`` takes them; a profile that the GPU does not name is its number."""
    profiles = ((row["facts"].get("mig") or {}).get("profiles")) or ()
    names = {each["id"]: each["name"] for each in profiles}
    return " ".join(f"{names.get(profile, profile)}@{start}" for profile, start in row["layout"] or ()) or "whole"


def _tell(session: sessions.Session, row: Mapping[str, Any]) -> None:
    session.output.one(
        dict(row),
        [
            ("gpu", row["uuid"]),
            ("wanted", _wanted(row)),
            ("change", row["layout_phase"]),
            ("says", row["layout_message"]),
        ],
    )


def _names(instances: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(instances, key=lambda each: int(each.get("start", 0)))
    return " ".join(f"{each['profile']}@{each.get('start', 0)}" for each in ordered)


def _served(each: Mapping[str, Any]) -> str:
    who = f"{each['tenant']}/{each['endpoint']}" if each["endpoint"] else str(output.size(each["memory_bytes"]))
    return f"{who} ({each['profile']})" if each["profile"] else who


def _want(text: str) -> dict[str, Any]:
    found = _WANT.fullmatch(text)
    if found is None:
        raise UsageError(f"Say 4x1g.10gb (a profile) or 2x20gib (memory), not {text!r}.")
    count, profile, gib = found.groups()
    size = {"profile": profile} if profile else {"memory_bytes": int(float(gib) * GIB)}
    return {**size, "count": int(count or 1)}


def _placement(text: str, row: Mapping[str, Any]) -> dict[str, int]:
    found = _PLACE.fullmatch(text)
    profiles = {each["name"]: int(each["id"]) for each in (row["facts"].get("mig") or {}).get("profiles") or ()}
    if found is None or found[1] not in profiles:
        known = ", ".join(sorted(profiles)) or "none: this device cannot be cut"
        raise UsageError(f"Say PROFILE@SLICE, like 3g.40gb@0, not {text!r}. Profiles of this GPU: {known}.")
    return {"profile_id": profiles[found[1]], "start": int(found[2])}
