"""The only way to fetch a row of the catalog for somebody. What belongs to another tenant does not exist."""

import uuid

from catalog.models import Model, ModelVersion, Upload
from kernel import errors, scope
from kernel.actors import Actor
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission


def access_model(
    actor: Actor, tenant: Tenant, name_or_id: str | uuid.UUID, permission: Permission = Permission.VIEW
) -> Model:
    """Return a model of ``tenant`` by its name (case is ignored) or id."""
    access.require(actor, permission, tenant.id)
    text = str(name_or_id)
    with scope.tenant(tenant.id):
        model = Model.objects.filter(name__iexact=text).first()
        if model is None and (model_id := _uuid(text)) is not None:
            model = Model.objects.filter(id=model_id).first()
    if model is None:
        raise errors.NotFound(f"There is no model {text[:80]!r} in tenant {tenant.slug!r}.", code="model_not_found")
    return model


def access_version(
    actor: Actor,
    tenant: Tenant,
    model: Model,
    number_or_alias: str | int,
    permission: Permission = Permission.VIEW,
) -> ModelVersion:
    """Return a version of ``model`` by its number or by an alias."""
    access.require(actor, permission, tenant.id)
    text = str(number_or_alias)
    with scope.tenant(tenant.id):
        versions = ModelVersion.objects.select_related("model").filter(model=model)
        if text.isascii() and text.isdigit() and len(text) <= 9:
            version = versions.filter(number=int(text)).first()
        else:
            version = versions.filter(aliases__name=text).first()
    if version is None:
        raise errors.NotFound(f"Model {model.name!r} has no version or alias {text[:80]!r}.", code="version_not_found")
    return version


def access_version_by_id(
    actor: Actor, tenant: Tenant, version_id: uuid.UUID, permission: Permission = Permission.VIEW
) -> ModelVersion:
    """Return a version of ``tenant`` by its id."""
    access.require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        version = ModelVersion.objects.select_related("model").filter(id=version_id).first()
    if version is None:
        raise errors.NotFound(
            f"There is no model version {version_id} in tenant {tenant.slug!r}.", code="version_not_found"
        )
    return version


def access_upload(
    actor: Actor, tenant: Tenant, upload_id: uuid.UUID, permission: Permission = Permission.PUBLISH
) -> Upload:
    """Return an upload of ``tenant`` with its file, whatever its state."""
    access.require(actor, permission, tenant.id)
    with scope.tenant(tenant.id):
        upload = Upload.objects.select_related("file__version__model").filter(id=upload_id).first()
    if upload is None:
        raise errors.NotFound(f"There is no upload {upload_id} in tenant {tenant.slug!r}.", code="upload_not_found")
    return upload


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
