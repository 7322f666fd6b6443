"""limits, prices: what a tenant and its keys may use, and what tokens cost; quotas are set here too."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from runtime.client import output, quotas
from runtime.client import session as sessions
from runtime.client.commands import keys
from runtime.client.errors import UsageError
from runtime.client.output import field

_KEEPS = "The tenants of the group keep everything."


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Limits and budgets of a tenant.", no_args_is_help=True)
    group.command()(show)
    group.command(name="set")(set_limits)
    group.command(name="quota")(set_quota)
    group.command(name="groups")(groups)
    group.command(name="group")(show_group)
    group.command(name="set-group")(set_group)
    group.command(name="remove-group")(remove_group)
    app.add_typer(group, name="limits")
    priced = typer.Typer(help="What tokens cost.", no_args_is_help=True)
    priced.command(name="list")(list_prices)
    priced.command(name="set")(set_price)
    priced.command(name="remove")(remove_price)
    app.add_typer(priced, name="prices")


def show(ctx: typer.Context) -> None:
    """Show the tenant's limits and those of its keys, with what was used."""
    session = sessions.of(ctx)
    answer = session.api.get(session.path("limits"))
    if session.output.form == "json":
        session.output.json(answer)
        return
    rows = [{"name": session.tenant, **answer}, *answer["keys"]]
    session.output.rows(
        rows,
        [
            ("of", field("name")),
            ("rpm", lambda row: _beside(row["use"]["requests_last_minute"], row["rpm_limit"])),
            ("tpm", lambda row: _beside(row["use"]["tokens_last_minute"], row["tpm_limit"])),
            ("parallel", field("max_parallel_requests")),
            ("budget", lambda row: _budget(row, answer["currency"])),
            ("begins anew", lambda row: row["use"]["budget_period_end"]),
        ],
        empty="No limits.",
    )


def _beside(used: int, limit: int | None) -> str:
    return f"{output.count(used)} of {output.count(limit) or 'unlimited'}"


def _budget(row: Mapping[str, Any], currency: str) -> str:
    if row["max_budget"] is None:
        return ""
    unit = currency if row["budget_unit"] == "cost" else "tokens"
    does = "" if row["budget_blocks"] else ", only alerts"
    return f"{row['use']['budget_used']:,g} of {row['max_budget']:,g} {unit} per {row['budget_duration']}{does}"


def set_limits(
    ctx: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Slug of the tenant.")],
    rpm_limit: keys.Rpm = None,
    tpm_limit: keys.Tpm = None,
    max_parallel_requests: keys.Parallel = None,
    max_budget: keys.MaxBudget = None,
    budget_unit: keys.Unit = None,
    budget_duration: keys.Duration = None,
    budget_blocks: keys.Blocks = None,
    weight: Annotated[float | None, typer.Option(help="Share of an engine beside others who wait; 1 is usual.")] = None,
    no: keys.Unlimited = None,
) -> None:
    """Set what all keys of a tenant together may use (platform admins)."""
    session = sessions.of(ctx)
    budget = (max_budget, budget_unit, budget_duration, budget_blocks)
    body = keys.limits(rpm_limit, tpm_limit, max_parallel_requests, budget, no)
    if weight is not None:
        body["weight"] = weight
    row = session.api.patch(f"/admin/tenants/{tenant}/limits", body)
    session.output.one(row, [("tenant", row["slug"]), *keys.limit_lines(row), ("weight", row["weight"])])


def set_quota(
    ctx: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Slug of the tenant.")],
    gpus: quotas.Gpus = None,
    device_memory: quotas.DeviceMemory = None,
    replicas: quotas.Replicas = None,
    storage: quotas.Storage = None,
    guaranteed_gpus: Annotated[
        float | None, typer.Option(help="GPUs that nobody may take back; needed in a group that limits them.")
    ] = None,
    guaranteed_device_memory: Annotated[float | None, typer.Option(help="Device memory (GiB), likewise.")] = None,
    weight: Annotated[int | None, typer.Option(min=0, help="Share in what others leave free; 100 is usual.")] = None,
    group: Annotated[str | None, typer.Option(help='Group of tenants to be in; "" leaves it.')] = None,
    no: quotas.Unlimited = None,
    preview: quotas.Preview = False,
) -> None:
    """Set what a tenant may hold and what of it is guaranteed (platform admins)."""
    session = sessions.of(ctx)
    given = {"gpus": gpus, "device memory": device_memory, "replicas": replicas, "storage": storage}
    firm = {"guaranteed gpus": guaranteed_gpus, "guaranteed device memory": guaranteed_device_memory}
    body = quotas.body({**given, **firm}, no)
    body |= {} if weight is None else {"over_quota_weight": weight}
    body |= {} if group is None else {"group": group}
    if not body:
        raise UsageError("Say what to set: --gpus, --device-memory, --replicas, --storage, …, or --no NAME.")
    where = f"/admin/tenants/{tenant}/quota"
    if preview:
        quotas.show_preview(session, session.api.post(f"{where}/preview", body))
    else:
        quotas.show(session, session.api.put(where, body))


def groups(ctx: typer.Context) -> None:
    """List groups of tenants and what they hold together (platform admins)."""
    session = sessions.of(ctx)
    rows = session.api.get("/admin/quota-groups")["items"]
    columns = [("group", field("name")), ("tenants", field("members"))]
    session.output.rows(rows, [*columns, *quotas.group_columns()], empty="No groups: limits set-group NAME.")


def show_group(ctx: typer.Context, name: Annotated[str, typer.Argument(help="Name of the group.")]) -> None:
    """Show what the tenants of a group may hold together, and what each of them holds (platform admins)."""
    session = sessions.of(ctx)
    quotas.show_group(session, session.api.get(f"/admin/quota-groups/{name}"))


def set_group(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the group.")],
    gpus: quotas.Gpus = None,
    device_memory: quotas.DeviceMemory = None,
    replicas: quotas.Replicas = None,
    storage: quotas.Storage = None,
    no: quotas.Unlimited = None,
    preview: quotas.Preview = False,
) -> None:
    """Make a group of tenants, or set what they may hold together (platform admins)."""
    session = sessions.of(ctx)
    given = {"gpus": gpus, "device memory": device_memory, "replicas": replicas, "storage": storage}
    body, where = quotas.body(given, no), f"/admin/quota-groups/{name}"
    if preview:
        quotas.show_preview(session, session.api.post(f"{where}/preview", body), _KEEPS)
    else:
        quotas.show_group(session, session.api.put(where, body))


def remove_group(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the group.")],
    preview: quotas.Preview = False,
) -> None:
    """Forget a group that has no tenants (platform admins)."""
    session = sessions.of(ctx)
    if preview:
        answer = session.api.post(f"/admin/quota-groups/{name}/preview", {"delete": True})
        quotas.show_preview(session, answer, f"No tenant is in {name}; nobody would be worse off.")
        return
    session.api.delete(f"/admin/quota-groups/{name}")
    session.output.note(f"The group {name} is gone.")


def list_prices(ctx: typer.Context) -> None:
    """What the tenant pays for a million tokens of each kind."""
    session = sessions.of(ctx)
    answer = session.api.get(session.path("prices"))
    session.output.rows(
        answer["endpoints"],
        [
            ("endpoint", field("endpoint")),
            *((f"{name} ({answer['currency']}/1M)", field(name)) for name in ("prompt", "cached", "completion")),
            ("own price", field("own")),
        ],
        empty="The tenant can call no endpoint yet.",
    )


def set_price(
    ctx: typer.Context,
    prompt: Annotated[float, typer.Option(min=0, help="Amount of the currency for a million prompt tokens.")],
    completion: Annotated[float, typer.Option(min=0, help="… for a million completion tokens.")],
    cached: Annotated[float | None, typer.Option(min=0, help="… for cached prompt tokens; default: as prompt.")] = None,
    endpoint: Annotated[str, typer.Option(help="tenant/endpoint; without it: all that have no price.")] = "",
) -> None:
    """Set a price from now on (platform admins)."""
    session = sessions.of(ctx)
    body = {"prompt": prompt, "completion": completion, **({} if cached is None else {"cached": cached})}
    session.api.put(_path(endpoint) if endpoint else "/admin/prices", body)
    session.output.note(f"Price of {endpoint or 'all endpoints without one of their own'} set.")


def remove_price(ctx: typer.Context, endpoint: Annotated[str, typer.Argument(help="tenant/endpoint")]) -> None:
    """Let an endpoint cost what all cost again (platform admins)."""
    session = sessions.of(ctx)
    session.api.delete(_path(endpoint))
    session.output.note(f"{endpoint} costs what all cost again.")


def _path(endpoint: str) -> str:
    tenant, _, name = endpoint.partition("/")
    if not tenant or not name:
        raise UsageError("Name the endpoint as tenant/endpoint.")
    return f"/admin/tenants/{tenant}/prices/{name}"
