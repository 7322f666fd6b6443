"""Models, versions and aliases."""

from typing import Any

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from catalog import access, configs, selectors, services
from console import queries
from console.presenters import hbm, measured
from console.web import Here, Undo, done, refused, tenant_page
from kernel import errors
from quotas.amount import Kind
from tenants.roles import Permission

PER_PAGE = 30
#: Facts that the estimate on the page already says in bytes.
_ESTIMATED = frozenset({"largest_weight_bytes", "stated_shapes"})
_OF_GRAPHS = {
    "nodes": gettext_lazy("Operations"), "title": gettext_lazy("Name of the graph"),
    "producer": gettext_lazy("Written by"), "ir_version": gettext_lazy("ONNX IR version"),
    "operator_sets": gettext_lazy("Operator sets"),
}  # fmt: skip


@tenant_page
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """Every model with its versions folded below it."""
    wanted = request.GET.get("q", "").strip()
    served = queries.served_by(here.tenant)
    models = selectors.models_of(here.tenant)
    total = models.count() if wanted else None
    if wanted:
        models = models.filter(Q(name__icontains=wanted) | Q(aliases__name__icontains=wanted)).distinct()
    page = Paginator(models, PER_PAGE).get_page(request.GET.get("page"))
    rows: list[dict[str, Any]] = [{"model": model, "versions": [], "latest": None} for model in page.object_list]
    of_model = {row["model"].id: row for row in rows}
    for version in selectors.versions_of(here.tenant, *page.object_list):
        of_model[version.model_id]["versions"].append(version_line(version, served))
    for row in rows:
        row["latest"] = row["versions"][0] if row["versions"] else None
    context = {
        "rows": rows,
        "page": page,
        "query": urlencode({"q": wanted}) if wanted else "",
        "total": page.paginator.count if total is None else total,
        "wanted": wanted,
        "storage": queries.quota_line(here.tenant, Kind.STORAGE_BYTES),
        "unfinished": [line for row in rows for line in row["versions"] if line["version"].state == "uploading"],
        "may_publish": here.can(Permission.PUBLISH),
    }
    return render(request, "console/pages/models.html", context)


def version_line(version: Any, served: dict[Any, list[Any]]) -> dict[str, Any]:
    """A version with what is derived of it."""
    files = list(version.files.all())
    sent = sum(file.size if file.artifact_id else sum(up.offset for up in file.open_uploads) for file in files)
    return {
        "version": version,
        "files": files,
        "sent": sent,
        "verified": sum(1 for file in files if file.artifact_id),
        "share": sent / version.size_bytes if version.size_bytes else 0.0,
        "aliases": [alias.name for alias in version.aliases.all()],
        "served": served.get(version.id, []),
        "need": version.estimate.get("total_bytes"),
    }


@tenant_page
def detail(request: HttpRequest, here: Here, model: str) -> HttpResponse:
    """One model: versions, aliases, what to do with them."""
    found = access.access_model(here.actor, here.tenant, model)
    served = queries.served_by(here.tenant)
    lines = [version_line(version, served) for version in selectors.versions_of(here.tenant, found)]
    context = {
        "model": found,
        "lines": lines,
        "aliases": selectors.aliases_of(here.tenant, found),
        "ready": [line["version"].number for line in lines if line["version"].state == "ready"],
        "is_served": any(line["served"] for line in lines),
        "may_publish": here.can(Permission.PUBLISH),
        "may_deploy": here.can(Permission.DEPLOY),
    }
    return render(request, "console/pages/model.html", context)


@tenant_page
def version(request: HttpRequest, here: Here, model: str, number: int) -> HttpResponse:
    """One version: files, the answer of the check, what it will need; and the upload while it is not complete."""
    found = access.access_version(here.actor, here.tenant, access.access_model(here.actor, here.tenant, model), number)
    line = version_line(selectors.version_detail(found), queries.served_by(here.tenant))
    row = line["version"]
    estimate = row.estimate or {}
    context = {
        **line,
        "model": row.model,
        "estimate": estimate,
        "memory": hbm.of_need(estimate),
        "compared": measured.compared(line["served"]),
        "facts": _facts(row.metadata or {}),
        "ports": _ports(row.metadata or {}),
        "warnings": [each["message"] for each in (row.metadata or {}).get("warnings", ()) if row.format == "onnx"],
        "no_engine": configs.no_engine(configs.DEFAULTS, row.format) if row.state == "ready" else "",
        "resume": resume_data(here, row, line["files"]) if row.state == "uploading" else None,
        "may_publish": here.can(Permission.PUBLISH),
        "may_deploy": here.can(Permission.DEPLOY),
    }
    return render(request, "console/pages/version.html", context)


def _facts(metadata: dict[str, Any]) -> list[tuple[str, Any, bool]]:
    """What the check noted beside what the page says in words: of a graph in words too, of a decoder under the names of
    its own config. The last of each says whether it is such a name."""
    found = [
        (name, str(value).lower() if isinstance(value, bool) else value)
        for name, value in sorted(metadata.items())
        if isinstance(value, int | float | str) and value != "" and name not in _ESTIMATED
    ]
    if sets := metadata.get("operator_sets"):
        found.append(("operator_sets", ", ".join(f"{name} {number}" for name, number in sets.items())))
    words = _OF_GRAPHS if "ir_version" in metadata else {}
    return [(str(words.get(name, name)), value, name not in words) for name, value in found]


def _ports(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Inputs and outputs of a graph, shapes as text; none of a decoder."""
    return [
        {
            **{key: each[key] for key in ("name", "datatype")},
            "input": what == "inputs",
            "shape": _("any shape") if each["shape"] is None else f"[{', '.join(map(str, each['shape']))}]",
        }
        for what in ("inputs", "outputs")
        for each in metadata.get(what) or ()
    ]


def resume_data(here: Here, row: Any, files: list[Any]) -> dict[str, Any]:
    """What the script needs to go on with an upload, in any browser."""
    return {
        "tenant": here.tenant.slug,
        "model": row.model.name,
        "number": row.number,
        "version": str(row.id),
        "page": reverse(
            "console:version", kwargs={"slug": here.tenant.slug, "model": row.model.name, "number": row.number}
        ),
        "files": [
            {
                "path": file.path,
                "size": file.size,
                "sha256": file.sha256,
                "verified": bool(file.artifact_id),
                "offset": sum(upload.offset for upload in file.open_uploads),
                "url": next(
                    (f"/api/v1/tenants/{here.tenant.slug}/uploads/{upload.id}" for upload in file.open_uploads), None
                ),
            }
            for file in files
        ],
    }


@tenant_page(get=Permission.PUBLISH)
def upload(request: HttpRequest, here: Here) -> HttpResponse:
    """Choose files; the script does the rest over the public API."""
    names = list(selectors.models_of(here.tenant).values_list("name", flat=True))
    context = {
        "names": names,
        "chosen": request.GET.get("model", ""),
        "storage": queries.quota_line(here.tenant, Kind.STORAGE_BYTES),
    }
    return render(request, "console/pages/upload.html", context)


@tenant_page(get=Permission.PUBLISH, post=Permission.PUBLISH)
def archive(request: HttpRequest, here: Here, model: str, number: int) -> HttpResponse:
    """Take a version out of use."""
    found = access.access_version(here.actor, here.tenant, access.access_model(here.actor, here.tenant, model), number)
    back = reverse("console:version", kwargs={"slug": here.tenant.slug, "model": found.model.name, "number": number})
    if request.method != "POST":
        served = queries.served_by(here.tenant).get(found.id, [])
        return render(request, "console/pages/version_archive.html", {"version": found, "served": served})
    try:
        services.archive_version(actor=here.actor, tenant=here.tenant, version=found)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    return done(request, _("v%(number)s is archived.") % {"number": number}, back)


@tenant_page(get=Permission.PUBLISH, post=Permission.PUBLISH)
def delete_version(request: HttpRequest, here: Here, model: str, number: int) -> HttpResponse:
    """Delete a version, or abort its upload."""
    found = access.access_version(here.actor, here.tenant, access.access_model(here.actor, here.tenant, model), number)
    back = reverse("console:model", kwargs={"slug": here.tenant.slug, "model": found.model.name})
    if request.method != "POST":
        return render(request, "console/pages/version_delete.html", {"version": found})
    try:
        services.delete_version(actor=here.actor, tenant=here.tenant, version=found)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    return done(request, _("v%(number)s is deleted.") % {"number": number}, back)


@tenant_page(get=Permission.PUBLISH, post=Permission.PUBLISH)
def delete(request: HttpRequest, here: Here, model: str) -> HttpResponse:
    """Delete a model with all its versions."""
    found = access.access_model(here.actor, here.tenant, model)
    back = reverse("console:models", kwargs={"slug": here.tenant.slug})
    if request.method != "POST":
        versions = selectors.versions_of(here.tenant, found).count()
        return render(request, "console/pages/model_delete.html", {"model": found, "versions": versions})
    if request.POST.get("name", "").strip() != found.name:
        return refused(request, errors.InvalidInput(_("The name does not match.")), back)
    try:
        services.delete_model(actor=here.actor, tenant=here.tenant, model=found)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    return done(request, _("The model %(name)s is deleted.") % {"name": found.name}, back)


@tenant_page(post=Permission.PUBLISH)
def set_alias(request: HttpRequest, here: Here, model: str) -> HttpResponse:
    """Let an alias mean another version, or make it."""
    found = access.access_model(here.actor, here.tenant, model)
    back = reverse("console:model", kwargs={"slug": here.tenant.slug, "model": found.name})
    name = request.POST.get("alias", "").strip()
    try:
        version = access.access_version(here.actor, here.tenant, found, request.POST.get("version", ""))
        was = _meant_by(here, found, name)
        services.set_alias(actor=here.actor, tenant=here.tenant, model=found, name=name, version=version)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    text = _("%(alias)s means v%(number)s now.") % {"alias": name, "number": version.number}
    return done(request, text, back, _alias_back(here, found, name, was) if was != version.number else None)


def _meant_by(here: Here, model: Any, name: str) -> int | None:
    alias = selectors.aliases_of(here.tenant, model).filter(name=name).first()
    return alias.version.number if alias else None


def _alias_back(here: Here, model: Any, name: str, was: int | None) -> Undo:
    """What makes an alias mean version ``was`` again; with ``None`` there was no such alias, and it goes."""
    kwargs = {"slug": here.tenant.slug, "model": model.name}
    if was is None:
        return Undo(reverse("console:alias-delete", kwargs={**kwargs, "alias": name}))
    return Undo(reverse("console:alias-set", kwargs=kwargs), {"alias": name, "version": str(was)})


@tenant_page(post=Permission.PUBLISH)
def delete_alias(request: HttpRequest, here: Here, model: str, alias: str) -> HttpResponse:
    """Forget an alias."""
    found = access.access_model(here.actor, here.tenant, model)
    back = reverse("console:model", kwargs={"slug": here.tenant.slug, "model": found.name})
    try:
        was = _meant_by(here, found, alias)
        services.delete_alias(actor=here.actor, tenant=here.tenant, model=found, name=alias)
    except errors.PlatformError as exc:
        return refused(request, exc, back)
    text = _("The alias %(alias)s is gone.") % {"alias": alias}
    return done(request, text, back, _alias_back(here, found, alias, was) if was else None)
