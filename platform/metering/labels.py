"""Names for the ids in the books, as the asking tenant may see them. What is gone keeps a name that says so."""

import uuid
from collections.abc import Callable, Iterable

from catalog.models import Revision
from kernel import scope
from metering.models import NOBODY
from serving.models import Deployment, Endpoint
from tenants.models import ApiKey, KeyKind, Tenant

Label = tuple[str, str]
NONE: Label = ("", "none")
PLAYGROUND: Label = ("playground", "playground")


def keys(tenant: Tenant, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Label]:
    """Id and name of each key; the short-lived ones of the playground are one."""
    wanted = set(ids)
    with scope.tenant(tenant.id):
        rows = {row.id: row for row in ApiKey.objects.filter(id__in=wanted)}
    return {ident: _key(ident, rows.get(ident)) for ident in wanted}


def _key(ident: uuid.UUID, row: ApiKey | None) -> Label:
    if ident == NOBODY:
        return NONE
    if row is None:
        return str(ident), "deleted key"
    return PLAYGROUND if row.kind == KeyKind.PLAYGROUND else (str(ident), row.name)


def endpoints(tenant: Tenant, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Label]:
    """Id and name to call of each endpoint: ``name`` for the tenant's own, ``owner/name`` for others'."""
    wanted = set(ids)
    with scope.all_tenants():  # a caller may know the name of what it called, whoever owns it
        rows = {row.id: row for row in Endpoint.objects.select_related("tenant").filter(id__in=wanted)}
    found: dict[uuid.UUID, Label] = {}
    for ident in wanted:
        row = rows.get(ident)
        if ident == NOBODY:
            found[ident] = NONE
        elif row is None:
            found[ident] = (str(ident), "deleted endpoint")
        else:
            found[ident] = (str(ident), row.name if row.tenant_id == tenant.id else f"{row.tenant.slug}/{row.name}")
    return found


Pair = tuple[uuid.UUID, uuid.UUID]


def models(tenant: Tenant, pairs: Iterable[Pair]) -> dict[Pair, Label]:
    """Id and name of the model behind each (revision, endpoint).

    What another tenant serves is named by its endpoint: which model that is, is the owner's business.
    """
    return _behind(tenant, set(pairs), lambda row: (str(row.model_id), row.model.name))


def revisions(tenant: Tenant, pairs: Iterable[Pair]) -> dict[Pair, Label]:
    """Id and name (model, version number, end of the id) of each (revision, endpoint); others' as in :func:`models`."""
    return _behind(
        tenant,
        set(pairs),
        lambda row: (str(row.id), f"{row.model.name} v{row.version.number} · {row.id.hex[-6:]}"),
    )


def _behind(tenant: Tenant, wanted: set[Pair], label: Callable[[Revision], Label]) -> dict[Pair, Label]:
    with scope.tenant(tenant.id):
        revisions = Revision.objects.select_related("model", "version").filter(
            id__in={revision for revision, _ in wanted}
        )
        own = {row.id: row for row in revisions}
    names = endpoints(tenant, {endpoint for _, endpoint in wanted})
    found: dict[Pair, Label] = {}
    for revision, endpoint in wanted:
        row = own.get(revision)
        found[revision, endpoint] = names[endpoint] if row is None else label(row)
    return found


def tenants(ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Label]:
    """Id and slug of each tenant."""
    wanted = set(ids)
    slugs = dict(Tenant.objects.filter(id__in=wanted).values_list("id", "slug"))
    return {ident: (str(ident), slugs.get(ident, "deleted tenant")) for ident in wanted}


def deployments(tenant: Tenant, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Label]:
    """Id and name (endpoint, model and version) of each of the tenant's deployments."""
    wanted = set(ids)
    with scope.tenant(tenant.id):
        rows = Deployment.objects.select_related("endpoint", "revision__model", "revision__version").filter(
            id__in=wanted
        )
        names = {
            row.id: f"{row.endpoint.name} · {row.revision.model.name} v{row.revision.version.number}" for row in rows
        }
    return {ident: (str(ident), names.get(ident, "deleted deployment")) for ident in wanted}
