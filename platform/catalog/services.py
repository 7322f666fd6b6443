"""Verbs on models, versions, aliases and revisions: one transaction of check, change, audit and hints each."""

import dataclasses
import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, models, transaction

from catalog import configs, paths, releases, storage
from catalog.errors import FileRefused, FilesMissing, InUse, NameTaken, NoEngine, VersionNotReady
from catalog.models import (
    ALIAS_NAME,
    ALIAS_NAME_PATTERN,
    MODEL_NAME,
    MODEL_NAME_PATTERN,
    SHA256_PATTERN,
    Alias,
    Model,
    ModelVersion,
    Revision,
    Runtime,
    ServingConfig,
    VersionFile,
)
from catalog.states import VERSION, VersionState
from kernel import clock, errors, machine, scope
from kernel.actors import Actor, ActorKind
from kernel.isolation import Requirement
from ledger import hints, outbox
from ledger.record import record, record_move
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission

VALIDATE_TOPIC: Final = "catalog.validate"
MAX_MODELS_PER_TENANT: Final = 1000
MAX_UNFINISHED_VERSIONS_PER_TENANT: Final = 50
MAX_ALIASES_PER_MODEL: Final = 100
ENGINE_LOCK: Final = "requirements-engine.lock"
_DIGEST = re.compile(SHA256_PATTERN)
_MODEL_NAME = re.compile(MODEL_NAME_PATTERN)
_ALIAS_NAME = re.compile(ALIAS_NAME_PATTERN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeclaredFile:
    """A file that its owner promises to upload. ``sha256`` is lower-case hexadecimal."""

    path: str
    size: int
    sha256: str


def create_model(*, actor: Actor, tenant: Tenant, name: str, description: str = "") -> Model:
    """Make an empty line of versions."""
    access.require(actor, Permission.PUBLISH, tenant.id)
    if not _MODEL_NAME.match(name) or _is_uuid(name):
        raise errors.InvalidInput(str(MODEL_NAME.message), code="invalid_name", data={"field": "name"})
    with transaction.atomic(), scope.tenant(tenant.id):
        if Model.objects.count() >= MAX_MODELS_PER_TENANT:
            raise errors.Conflict(
                f"The tenant has {MAX_MODELS_PER_TENANT} models already; delete one first.", code="too_many_models"
            )
        try:
            with transaction.atomic():
                model = Model.objects.create(
                    tenant=tenant,
                    name=name,
                    description=description,
                    created_by_id=user_id_of(actor),
                    created_at=clock.now(),
                )
        except IntegrityError:
            raise NameTaken(
                f"There is a model {name!r} already; add a version to it or choose another name.",
                data={"field": "name"},
            ) from None
        _note(actor, model, "model.created", data={"name": name})
    return model


def delete_model(*, actor: Actor, tenant: Tenant, model: Model) -> None:
    """Delete a model with all its versions; their bytes go once nobody else has the same.

    Raises:
        InUse: something serves one of its revisions, or a version is being checked.
    """
    access.require(actor, Permission.PUBLISH, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        _locked(model)
        versions = list(ModelVersion.objects.select_for_update().filter(model=model).order_by("id"))
        if any(version.state == VersionState.VALIDATING for version in versions):
            raise InUse("A version of this model is being checked; try again in a moment.", data={"retry_after": 5})
        for version in versions:
            if version.state == VersionState.READY:
                _move(
                    version, VersionState.ARCHIVED, actor, reason="ModelDeleted", message="The model is being deleted."
                )
        releases.release_versions(versions)
        _delete_or_in_use(model, f"Model {model.name!r}")
        _note(actor, model, "model.deleted")


def create_version(
    *,
    actor: Actor,
    tenant: Tenant,
    model: Model,
    files: Sequence[DeclaredFile],
    description: str = "",
    isolation: str = Requirement.ANY,
) -> ModelVersion:
    """Open the next version of ``model`` for the declared files; charges their bytes.

    ``isolation`` is the least that its replicas must have, whatever they are deployed with.

    Raises:
        FileRefused: a name that will never be accepted; ``data``: reason, path.
        errors.InvalidInput: no files, too many, a size or digest that cannot be.
        errors.QuotaExceeded: the tenant may not hold that much.
        StorageFull: the platform's disk has no room.
    """
    access.require(actor, Permission.PUBLISH, tenant.id)
    _check_declared(files)
    if isolation not in Requirement.values:
        raise errors.InvalidInput(
            f"isolation is one of {', '.join(Requirement.values)}.",
            code="invalid_isolation",
            data={"field": "isolation"},
        )
    total = sum(file.size for file in files)
    with transaction.atomic(), scope.tenant(tenant.id):
        model = _locked(model)
        storage.charge(tenant, total)
        storage.require_free_disk(total)
        unfinished = ModelVersion.objects.filter(state__in=[VersionState.UPLOADING, VersionState.VALIDATING]).count()
        if unfinished >= MAX_UNFINISHED_VERSIONS_PER_TENANT:
            raise errors.Conflict(
                f"{unfinished} versions are unfinished; finish or delete one first.",
                code="too_many_unfinished_versions",
            )
        now = clock.now()
        Model.objects.filter(id=model.id).update(last_version_number=model.last_version_number + 1)
        version = ModelVersion.objects.create(
            tenant=tenant,
            model=model,
            number=model.last_version_number + 1,
            description=description,
            isolation=isolation,
            size_bytes=total,
            state_changed_at=now,
            created_at=now,
            created_by_id=user_id_of(actor),
        )
        VersionFile.objects.bulk_create(
            VersionFile(version=version, path=file.path, size=file.size, sha256=file.sha256) for file in files
        )
        _note_version(actor, version, "model_version.created", data={"files": len(files), "bytes": total})
    return version


def finalize_version(*, actor: Actor, tenant: Tenant, version: ModelVersion) -> ModelVersion:
    """Hand a version over to the check. Doing it again while it is checked, or after, changes nothing.

    Raises:
        FilesMissing: files have not come or are still being verified; ``data["missing"]`` lists them.
    """
    access.require(actor, Permission.PUBLISH, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        version = (
            ModelVersion.objects.select_for_update(of=("self",), no_key=True).select_related("model").get(id=version.id)
        )
        if version.state in (VersionState.VALIDATING, VersionState.READY):
            return version
        missing = list(VersionFile.objects.filter(version=version, artifact=None).values_list("path", flat=True))
        if missing and version.state == VersionState.UPLOADING:
            raise FilesMissing(
                f"{len(missing)} of the declared files are not here yet, for instance {missing[0]}. "
                "Upload them and finalize again.",
                data={"missing": missing},
            )
        _move(version, VersionState.VALIDATING, actor)
        outbox.emit(VALIDATE_TOPIC, {"version": str(version.id)})
    return version


def archive_version(*, actor: Actor, tenant: Tenant, version: ModelVersion) -> ModelVersion:
    """Take a ready version out of use: no new revision of it can be made; what runs goes on."""
    access.require(actor, Permission.PUBLISH, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        _move(version, VersionState.ARCHIVED, actor, reason="Archived", message=f"Archived by {actor.label}.")
        Alias.objects.filter(version=version).delete()
    return version


def delete_version(*, actor: Actor, tenant: Tenant, version: ModelVersion) -> None:
    """Delete a version that is uploading (this aborts it), rejected or archived. Its number is not used again.

    Raises:
        InUse: it is ready (archive it first), being checked, or one of its revisions is deployed.
    """
    access.require(actor, Permission.PUBLISH, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        _locked(version.model)
        version = ModelVersion.objects.select_for_update(of=("self",)).select_related("model").get(id=version.id)
        if version.state == VersionState.READY:
            raise InUse("The version is ready; archive it first, then delete it.", code="version_is_ready")
        if version.state == VersionState.VALIDATING:
            raise InUse("The version is being checked; try again in a moment.", data={"retry_after": 5})
        releases.release_versions([version])
        _delete_or_in_use(version, f"Version {version.number}")
        _note_version(actor, version, "model_version.deleted")


def set_alias(*, actor: Actor, tenant: Tenant, model: Model, name: str, version: ModelVersion) -> Alias:
    """Let ``name`` mean ``version`` from now on."""
    access.require(actor, Permission.PUBLISH, tenant.id)
    if not _ALIAS_NAME.match(name):
        raise errors.InvalidInput(str(ALIAS_NAME.message), code="invalid_alias", data={"field": "alias"})
    with transaction.atomic(), scope.tenant(tenant.id):
        _locked(model)
        version = ModelVersion.objects.select_for_update(of=("self",), no_key=True).get(id=version.id, model=model)
        if version.state != VersionState.READY:
            raise _not_ready(version)
        others = Alias.objects.filter(model=model).exclude(name=name).count()
        if others >= MAX_ALIASES_PER_MODEL:
            raise errors.Conflict(f"The model has {others} aliases; delete one first.", code="too_many_aliases")
        before = Alias.objects.filter(model=model, name=name).values_list("version__number", flat=True).first()
        alias, _created = Alias.objects.update_or_create(
            model=model, name=name, defaults={"tenant": tenant, "version": version, "moved_at": clock.now()}
        )
        _note(actor, model, "alias.moved", data={"alias": name, "from": before, "to": version.number})
    return alias


def delete_alias(*, actor: Actor, tenant: Tenant, model: Model, name: str) -> None:
    """Forget an alias."""
    access.require(actor, Permission.PUBLISH, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        _locked(model)
        if not Alias.objects.filter(model=model, name=name).delete()[0]:
            raise errors.NotFound(f"Model {model.name!r} has no alias {name[:80]!r}.", code="alias_not_found")
        _note(actor, model, "alias.deleted", data={"alias": name})


def make_revision(*, actor: Actor, tenant: Tenant, version: ModelVersion, config: Mapping[str, Any]) -> Revision:
    """Return the revision of ``version`` under ``config`` and the current runtime, making what is missing.

    Raises:
        errors.InvalidInput: an unknown or impossible setting; ``data["field"]`` names it.
        VersionNotReady: the version is not ready.
        NoEngine: no engine runs its format.
    """
    access.require(actor, Permission.DEPLOY, tenant.id)
    chosen = configs.normalise(config)
    with transaction.atomic(), scope.tenant(tenant.id):
        model = Model.objects.select_for_update(no_key=True).get(id=version.model_id)
        version = ModelVersion.objects.select_for_update(of=("self",), no_key=True).get(id=version.id)
        if version.state != VersionState.READY:
            raise _not_ready(version)
        if why := configs.no_engine(chosen, version.format):
            raise NoEngine(why, data={"format": version.format})
        experts = int(version.metadata.get("num_experts") or 0)
        configs.check_version(chosen, max_model_len=version.max_model_len, num_experts=experts)
        serving_config = _serving_config(tenant, chosen)
        runtime = current_runtime()
        same = Revision.objects.filter(version=version, serving_config=serving_config, runtime=runtime)
        if (found := same.select_related("model", "version", "serving_config", "runtime").first()) is not None:
            return found
        Model.objects.filter(id=model.id).update(last_revision_number=model.last_revision_number + 1)
        revision = Revision.objects.create(
            tenant=tenant,
            model=model,
            number=model.last_revision_number + 1,
            version=version,
            serving_config=serving_config,
            runtime=runtime,
            created_at=clock.now(),
        )
        _note(actor, model, "revision.created", data={"revision": revision.number, "version": version.number})
    return revision


def current_runtime() -> Runtime:
    """The runtime that engines are started with now: the engine's lock file, by digest."""
    path = Path(settings.BASE_DIR) / ENGINE_LOCK
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as exc:
        raise ImproperlyConfigured(f"The engine's lock file {path} cannot be read: {exc.strerror}.") from exc
    runtime, _created = Runtime.objects.get_or_create(
        digest=digest, defaults={"name": "engine", "created_at": clock.now()}
    )
    return runtime


def user_id_of(actor: Actor) -> uuid.UUID | None:
    """The user behind an actor, for ``created_by``."""
    return uuid.UUID(actor.id) if actor.kind is ActorKind.USER else None


def _serving_config(tenant: Tenant, chosen: configs.Settings) -> ServingConfig:
    row, _created = ServingConfig.objects.get_or_create(
        tenant=tenant, digest=chosen.digest, defaults={**dataclasses.asdict(chosen), "created_at": clock.now()}
    )
    return row


def _check_declared(files: Sequence[DeclaredFile]) -> None:
    if not files:
        raise errors.InvalidInput("Name the files of the version.", data={"field": "files"})
    if len(files) > settings.UPLOAD_MAX_FILES_PER_VERSION:
        raise errors.InvalidInput(
            f"A version has at most {settings.UPLOAD_MAX_FILES_PER_VERSION} files.", data={"field": "files"}
        )
    if refusal := paths.check_all([file.path for file in files]):
        raise FileRefused(refusal.message, data={"field": "files", "path": refusal.path, "reason": refusal.reason})
    for file in files:
        if not 0 <= file.size <= settings.UPLOAD_MAX_FILE_BYTES:
            raise errors.InvalidInput(
                f"{file.path}: a file has 0 to {settings.UPLOAD_MAX_FILE_BYTES} bytes.",
                data={"field": "files", "path": file.path},
            )
        if not _DIGEST.fullmatch(file.sha256):
            raise errors.InvalidInput(
                f"{file.path}: sha256 is 64 lower-case hexadecimal digits.", data={"field": "files", "path": file.path}
            )


def _move(version: ModelVersion, to: VersionState, actor: Actor, *, reason: str = "", message: str = "") -> None:
    moved = machine.move(version, VERSION, to, reason=reason, message=message)
    record_move(moved, actor=actor, tenant_id=version.tenant_id, subject_label=_label(version))
    _hint(version.tenant_id)


def _note(actor: Actor, model: Model, action: str, *, data: Mapping[str, Any] | None = None) -> None:
    record(
        actor=actor,
        action=action,
        subject_kind="model",
        subject_id=model.id,
        tenant_id=model.tenant_id,
        subject_label=model.name,
        data=data,
    )
    _hint(model.tenant_id)


def _note_version(actor: Actor, version: ModelVersion, action: str, *, data: Mapping[str, Any] | None = None) -> None:
    record(
        actor=actor,
        action=action,
        subject_kind="model_version",
        subject_id=version.id,
        tenant_id=version.tenant_id,
        subject_label=_label(version),
        data=data,
    )
    _hint(version.tenant_id)


def _hint(tenant_id: uuid.UUID) -> None:
    hints.push_on_commit(hints.tenant_topic(tenant_id), {"what": "models"})


def _label(version: ModelVersion) -> str:
    return f"{version.model.name} {version.number}"


def _locked(model: Model) -> Model:
    """Lock the model's row: everything that numbers, moves an alias or deletes takes turns per model."""
    found = Model.objects.select_for_update(no_key=True).filter(id=model.id).first()
    if found is None:
        raise errors.NotFound(f"Model {model.name!r} has just been deleted.", code="model_not_found")
    return found


def _delete_or_in_use(row: Model | ModelVersion, what: str) -> None:
    key = row.pk
    try:
        row.delete()
    except models.ProtectedError as exc:
        users = sorted({str(user._meta.verbose_name) for user in exc.protected_objects})
        raise InUse(
            f"{what} is in use by: {', '.join(users)}. Delete or redeploy that first.", data={"by": users}
        ) from None
    row.pk = key


def _not_ready(version: ModelVersion) -> VersionNotReady:
    told = f" ({version.message})" if version.message else ""
    return VersionNotReady(
        f"Version {version.number} is {version.state}{told}; only a ready version can be used.",
        data={"state": version.state, "reason": version.reason},
    )


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
