"""Reads."""

import uuid
from collections.abc import Iterable, Sequence

from django.db.models import Max, Prefetch, Q, QuerySet

from catalog.models import Alias, Model, ModelVersion, Revision, Upload, VersionFile
from catalog.states import UploadState, VersionState
from kernel import scope
from tenants.models import Tenant


def models_of(tenant: Tenant) -> "QuerySet[Model]":
    """Models, newest first, each with ``latest_number`` and ``latest_ready`` (numbers, or ``None``) and its aliases."""
    with scope.tenant(tenant.id):
        aliases = Alias.objects.select_related("version")
        return (
            Model.objects.order_by("-id")
            .annotate(
                latest_number=Max("versions__number"),
                latest_ready=Max("versions__number", filter=Q(versions__state=VersionState.READY)),
            )
            .prefetch_related(Prefetch("aliases", queryset=aliases))
        )


def versions_of(tenant: Tenant, *models: Model) -> "QuerySet[ModelVersion]":
    """Versions of ``models``, newest first, with model, files, open uploads and aliases at hand."""
    with scope.tenant(tenant.id):
        uploads = Upload.objects.filter(state=UploadState.OPEN)
        files = VersionFile.objects.order_by("path").prefetch_related(
            Prefetch("uploads", queryset=uploads, to_attr="open_uploads")
        )
        return (
            ModelVersion.objects.filter(model__in=models)
            .select_related("model")
            .prefetch_related(
                Prefetch("files", queryset=files), Prefetch("aliases", queryset=Alias.objects.order_by("name"))
            )
            .order_by("-id")
        )


def latest_versions(tenant: Tenant, models: Iterable[Model]) -> list[ModelVersion]:
    """The newest version of each of ``models`` that has one, with its model."""
    with scope.tenant(tenant.id):
        rows = ModelVersion.objects.filter(model__in=models).select_related("model")
        return list(rows.order_by("model_id", "-id").distinct("model_id"))


def version_detail(version: ModelVersion) -> ModelVersion:
    """The same version, read again with everything that is shown of it."""
    tenant = Tenant(id=version.tenant_id)
    return versions_of(tenant, version.model).get(id=version.id)


def aliases_of(tenant: Tenant, model: Model) -> "QuerySet[Alias]":
    """Aliases of ``model`` with their versions, by name."""
    with scope.tenant(tenant.id):
        return Alias.objects.filter(model=model).select_related("version").order_by("name")


def files_of(version: ModelVersion) -> Sequence[VersionFile]:
    """Files of a version by path."""
    with scope.tenant(version.tenant_id):
        return list(VersionFile.objects.filter(version=version).order_by("path"))


def revisions_of(tenant: Tenant, model: Model) -> "QuerySet[Revision]":
    """Revisions of ``model``, newest first."""
    with scope.tenant(tenant.id):
        return (
            Revision.objects.filter(model=model).select_related("version", "serving_config", "runtime").order_by("-id")
        )


def revision_by_id(tenant: Tenant, revision_id: uuid.UUID) -> Revision | None:
    """A revision with all that makes it."""
    with scope.tenant(tenant.id):
        rows = Revision.objects.select_related("model", "version", "serving_config", "runtime")
        return rows.filter(id=revision_id).first()


def holds_artifact(tenant_id: uuid.UUID, sha256: str) -> bool:
    """True when a file of ``tenant_id`` has this digest (others' files are no business of anybody)."""
    with scope.tenant(tenant_id):
        return VersionFile.objects.filter(artifact_id=sha256).exists()
