"""keys: the tenant's API keys. A key's text is shown once, when it is made."""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from runtime.client import naming
from runtime.client import session as sessions
from runtime.client.errors import UsageError
from runtime.client.output import field, moment


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="API keys: list, show, create, edit, rotate, revoke.", no_args_is_help=True)
    group.command(name="list")(list_keys)
    for command in (show, create, edit, rotate, revoke):
        group.command()(command)
    app.add_typer(group, name="keys")


COLUMNS: Final = (
    ("name", field("name")),
    ("key", field("masked")),
    ("of", field("service_account")),
    ("scopes", field("scopes")),
    ("expires", field("expires_at")),
    ("last used", field("last_used_at")),
    ("state", lambda row: "revoked" if row.get("revoked_at") else "active"),
    ("id", field("id")),
)


def list_keys(ctx: typer.Context) -> None:
    """List the tenant's keys."""
    session = sessions.of(ctx)
    rows = list(session.api.rows(session.path("keys")))
    session.output.rows(
        rows,
        COLUMNS,
        empty="No keys yet: millpond keys create NAME.",
    )


class BudgetUnit(enum.StrEnum):
    """What a budget counts."""

    TOKENS = "tokens"
    COST = "cost"


class BudgetDuration(enum.StrEnum):
    """When a budget begins anew."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    NONE = "none"


Expires = Annotated[str, typer.Option(help="When it ends: an ISO time.")]
Endpoints = Annotated[list[str] | None, typer.Option("--endpoint", help="Only for this endpoint; may be repeated.")]
Addresses = Annotated[
    list[str] | None, typer.Option("--address", help="Only from this network (10.0.0.0/8); may be repeated.")
]
Criticalities = Annotated[
    list[str] | None, typer.Option("--criticality", help="A priority class that requests may ask for: critical.")
]
Rpm = Annotated[int | None, typer.Option("--rpm-limit", min=1, help="Requests in any minute.")]
Tpm = Annotated[int | None, typer.Option("--tpm-limit", min=1, help="Tokens in any minute.")]
Parallel = Annotated[int | None, typer.Option("--max-parallel-requests", min=1, help="Requests at one time.")]
MaxBudget = Annotated[
    float | None, typer.Option("--max-budget", min=0, help="Tokens, or an amount of the currency, per duration.")
]
Unit = Annotated[BudgetUnit | None, typer.Option("--budget-unit", help="What the budget counts.")]
Duration = Annotated[BudgetDuration | None, typer.Option("--budget-duration", help="Calendar periods, UTC.")]
Blocks = Annotated[
    bool | None, typer.Option("--budget-blocks/--budget-alerts", help="Refuse when it is used up, or only alert.")
]
Unlimited = Annotated[
    list[str] | None,
    typer.Option(
        "--no", help="Take a limit away: rpm_limit, tpm_limit, max_parallel_requests, max_budget, expires_at."
    ),
]
REMOVABLE: Final = ("rpm_limit", "tpm_limit", "max_parallel_requests", "max_budget", "expires_at")


def limits(
    rpm: int | None,
    tpm: int | None,
    parallel: int | None,
    budget: tuple[float | None, BudgetUnit | None, BudgetDuration | None, bool | None],
    no: list[str] | None = None,
) -> dict[str, Any]:
    """The limits of a request's body: what was given, and null for what is taken away."""
    amount, unit, duration, blocks = budget
    given = {
        "rpm_limit": rpm,
        "tpm_limit": tpm,
        "max_parallel_requests": parallel,
        "max_budget": amount,
        "budget_unit": unit,
        "budget_duration": duration,
        "budget_blocks": blocks,
    }
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in no or []:
        if (field_name := name.replace("-", "_")) not in REMOVABLE:
            raise UsageError(f"--no takes {', '.join(REMOVABLE)}, not {name!r}.")
        body[field_name] = None
    return body


def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="What will use the key.")],
    scope: Annotated[list[str] | None, typer.Option(help="inference (default) or manage; may be given twice.")] = None,
    expires: Expires = "",
    endpoint: Endpoints = None,
    address: Addresses = None,
    criticality: Criticalities = None,
    rpm_limit: Rpm = None,
    tpm_limit: Tpm = None,
    max_parallel_requests: Parallel = None,
    max_budget: MaxBudget = None,
    budget_unit: Unit = None,
    budget_duration: Duration = None,
    budget_blocks: Blocks = None,
) -> None:
    """Make a key. Its text goes to stdout, alone, once."""
    session = sessions.of(ctx)
    budget = (max_budget, budget_unit, budget_duration, budget_blocks)
    body = {
        "name": name,
        "scopes": scope or ["inference"],
        **_terms(expires, endpoint, address, criticality),
        **limits(rpm_limit, tpm_limit, max_parallel_requests, budget),
    }
    show_secret(session, session.api.post(session.path("keys"), body), "")


def _terms(
    expires: str, endpoint: list[str] | None, address: list[str] | None, criticality: list[str] | None
) -> dict[str, Any]:
    given = {
        "expires_at": expires or None,
        "allowed_endpoints": endpoint,
        "allowed_addresses": address,
        "criticalities": criticality,
    }
    return {name: value for name, value in given.items() if value}


def show_secret(session: sessions.Session, made: Mapping[str, Any], more: str = "") -> None:
    """A new key's text on stdout, alone; with what is said about it beside."""
    if session.output.form == "json":
        session.output.json(made)
        return
    session.output.note(f"Key {made['name']!r} of {session.tenant}, shown only now:{more}")
    session.output.text(made["key"])


KeyArg = Annotated[str, typer.Argument(help="Id or name of the key.")]


def show(ctx: typer.Context, key: KeyArg) -> None:
    """Show what a key may, and who knows of its revocation."""
    session = sessions.of(ctx)
    ident = naming.key_id(session, key)
    row = session.api.get(session.path("keys", ident))
    if row["revoked_at"]:
        row = session.api.get(session.path("keys", ident, "revoke"))
    _show(session, row)


def _show(session: sessions.Session, row: Mapping[str, Any]) -> None:
    lines = [
        ("name", row["name"]),
        ("key", row["masked"]),
        ("scopes", row["scopes"]),
        ("endpoints", row["allowed_endpoints"] or "all"),
        ("addresses", row["allowed_addresses"] or "any"),
        ("criticalities", row["criticalities"]),
        *limit_lines(row),
        ("expires", row["expires_at"]),
        ("last used", row["last_used_at"]),
    ]
    if row["previous_expires_at"]:
        lines.append(("old secret accepted until", row["previous_expires_at"]))
    if row["revoked_at"]:
        lines.append(("revoked", row["revoked_at"]))
    if known := row.get("revocation"):
        lines += revocation_lines(known)
    session.output.one(row, lines)


def limit_lines(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The limits of a key or a tenant, one line each."""
    budget = None
    if row["max_budget"] is not None:
        does = "blocks" if row["budget_blocks"] else "only alerts"
        budget = f"{row['max_budget']:,} {row['budget_unit']} per {row['budget_duration']}, {does}"
    return [
        ("rpm limit", row["rpm_limit"]),
        ("tpm limit", row["tpm_limit"]),
        ("parallel requests", row["max_parallel_requests"]),
        ("budget", budget),
    ]


def revocation_lines(known: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Which gateways refuse a revoked key."""
    lines: list[tuple[str, Any]] = [("refused by", known["acknowledged"] or "no gateway")]
    if known["waiting"]:
        lines.append(("not yet by", known["waiting"]))
    if known["silent"]:
        lines.append(("not heard of lately", known["silent"]))
    return lines


def edit(
    ctx: typer.Context,
    key: KeyArg,
    name: Annotated[str, typer.Option(help="Another name.")] = "",
    expires: Expires = "",
    endpoint: Endpoints = None,
    address: Addresses = None,
    criticality: Criticalities = None,
    rpm_limit: Rpm = None,
    tpm_limit: Tpm = None,
    max_parallel_requests: Parallel = None,
    max_budget: MaxBudget = None,
    budget_unit: Unit = None,
    budget_duration: Duration = None,
    budget_blocks: Blocks = None,
    no: Unlimited = None,
) -> None:
    """Change what a key may; its secret stays."""
    session = sessions.of(ctx)
    budget = (max_budget, budget_unit, budget_duration, budget_blocks)
    body = {
        **({"name": name} if name else {}),
        **_terms(expires, endpoint, address, criticality),
        **limits(rpm_limit, tpm_limit, max_parallel_requests, budget, no),
    }
    if not body:
        raise UsageError("Say what to change: see `millpond keys edit --help`.")
    _show(session, session.api.patch(session.path("keys", naming.key_id(session, key)), body))


def rotate(
    ctx: typer.Context,
    key: KeyArg,
    overlap: Annotated[int, typer.Option(min=0, help="Seconds for which the old secret is accepted too.")] = 86_400,
) -> None:
    """Give a key a new secret. It goes to stdout, alone, once."""
    session = sessions.of(ctx)
    path = session.path("keys", naming.key_id(session, key), "rotate")
    made = session.api.post(path, {"overlap_seconds": overlap})
    until = made["previous_expires_at"]
    show_secret(session, made, f" the old one is accepted until {moment(until)}." if until else " the old one is out.")


def revoke(ctx: typer.Context, key: KeyArg) -> None:
    """Refuse a key from now on; it cannot be undone. Says which gateways refuse it already."""
    session = sessions.of(ctx)
    row = session.api.post(session.path("keys", naming.key_id(session, key), "revoke"))
    known = row["revocation"]
    session.output.one(row, [("key", row["name"]), ("revoked", row["revoked_at"]), *revocation_lines(known)])
