"""Verbs on uploads: opening one, noting how far it is, and ending it. The bytes themselves are ``catalog.writer``'s."""

import datetime
import uuid

from django.conf import settings
from django.db import transaction

from catalog import access as catalog_access
from catalog import storage, writer
from catalog.errors import UploadGone
from catalog.models import ModelVersion, Upload, VersionFile
from catalog.services import user_id_of
from catalog.states import UPLOAD, UploadState, VersionState
from kernel import clock, errors, machine, scope
from kernel.actors import Actor
from ledger import hints
from ledger.record import record_move
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission


def open_upload(
    *, actor: Actor, tenant: Tenant, version_id: uuid.UUID, path: str, length: int, sha256: str = "", metadata: str = ""
) -> Upload:
    """Open an upload for a declared file that has not come yet. An open upload of the same file is given up for it.

    Raises:
        errors.InvalidInput: the file is not declared, or ``length`` or ``sha256`` are not what was declared.
        errors.Conflict: the version takes no files any more, or the file is here already.
        UploadLocked: somebody is sending bytes to the open upload of this file.
        errors.QuotaExceeded, StorageFull: there is no room; nothing has been taken.
    """
    access.require(actor, Permission.PUBLISH, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        version = catalog_access.access_version_by_id(actor, tenant, version_id, Permission.PUBLISH)
        version = ModelVersion.objects.select_for_update(of=("self",), no_key=True).get(id=version.id)
        if version.state != VersionState.UPLOADING:
            raise errors.Conflict(
                f"The version is {version.state} and takes no more files; make a new version.", code="version_closed"
            )
        file = _declared_file(version, path, length, sha256)
        storage.charge(tenant, 0)  # the bytes were charged with the version; the limit may have sunk since
        storage.require_free_disk(length)
        for older in Upload.objects.select_for_update(no_key=True).filter(file=file, state=UploadState.OPEN):
            with writer.locked(storage.upload_path(older.id)):
                end(older, UploadState.ABORTED, actor, "Superseded", "The file is being uploaded anew.")
        now = clock.now()
        return Upload.objects.create(
            tenant=tenant,
            file=file,
            length=length,
            metadata=metadata,
            created_by_id=user_id_of(actor),
            created_at=now,
            state_changed_at=now,
            expires_at=now + _lifetime(),
        )


def _declared_file(version: ModelVersion, path: str, length: int, sha256: str) -> VersionFile:
    file = VersionFile.objects.select_for_update(no_key=True).filter(version=version, path=path).first()
    if file is None:
        raise errors.InvalidInput(
            f"The version has no file {path[:80]!r}; only declared files can be uploaded.", data={"field": "path"}
        )
    if file.artifact_id is not None:
        raise errors.Conflict(f"{path} is here already and verified.", code="file_complete")
    if length != file.size:
        raise errors.InvalidInput(
            f"{path} was declared with {file.size} bytes, not {length}; make a new version if the file has changed.",
            data={"field": "Upload-Length"},
        )
    if sha256 and sha256 != file.sha256:
        raise errors.InvalidInput(
            f"{path} was declared with another SHA-256; make a new version if the file has changed.",
            data={"field": "sha256"},
        )
    return file


def require_open(upload: Upload) -> None:
    """Raise unless bytes may still be sent to ``upload``."""
    if upload.state == UploadState.OPEN and upload.expires_at > clock.now():
        return
    if upload.state == UploadState.COMPLETE:
        raise errors.Conflict("The upload is complete; nothing more can be sent.", code="upload_complete")
    told = upload.message or "It had its time."
    raise UploadGone(
        f"The upload is gone: {told} Start a new one.", data={"state": upload.state, "reason": upload.reason}
    )


def advance(upload: Upload, offset: int) -> datetime.datetime:
    """Note that ``offset`` bytes are safely on disk; returns the new expiry. Call with the writer's lock held.

    Raises:
        UploadGone: the upload has been ended meanwhile.
    """
    expires = clock.now() + _lifetime()
    with scope.tenant(upload.tenant_id):
        rows = Upload.objects.filter(id=upload.id, state=UploadState.OPEN)
        if not rows.update(offset=offset, expires_at=expires):
            raise UploadGone("The upload has been ended meanwhile. Start a new one.")
    upload.offset, upload.expires_at = offset, expires
    return expires


def terminate(*, actor: Actor, tenant: Tenant, upload: Upload) -> None:
    """Give an upload up and drop its bytes; a complete one stays (delete the version instead).

    Raises:
        UploadLocked: somebody is sending bytes to it.
    """
    access.require(actor, Permission.PUBLISH, tenant.id)
    if upload.state == UploadState.COMPLETE:
        raise errors.Conflict("The upload is complete; delete the version to drop the file.", code="upload_complete")
    require_open(upload)
    with transaction.atomic(), scope.tenant(tenant.id), writer.locked(storage.upload_path(upload.id)):
        end(upload, UploadState.ABORTED, actor, "Terminated", f"Given up by {actor.label}.")


def end(upload: Upload, to: UploadState, actor: Actor, reason: str, message: str) -> None:
    """Move an open upload to an end without a file, and drop its bytes once that is committed."""
    moved = machine.move(upload, UPLOAD, to, reason=reason, message=message)
    record_move(moved, actor=actor, tenant_id=upload.tenant_id)
    path = storage.upload_path(upload.id)
    transaction.on_commit(lambda: storage.discard(path))
    hints.push_on_commit(hints.tenant_topic(upload.tenant_id), {"what": "models"})


def _lifetime() -> datetime.timedelta:
    return datetime.timedelta(hours=settings.UPLOAD_EXPIRES_HOURS)
