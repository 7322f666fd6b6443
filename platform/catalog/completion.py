"""The end of an upload: its digest is compared, then its bytes become an artifact, or go.

Small files, and files that one process has received whole, are compared in the last request. Others are read again in
the background, so that no request outlives a proxy's patience.
"""

import logging
import uuid
from pathlib import Path
from typing import Final

from django.db import transaction
from django.db.models import F

from catalog import storage, uploads, writer
from catalog.errors import UploadLocked
from catalog.models import Artifact, ModelVersion, Upload, VersionFile
from catalog.states import UPLOAD, UploadState, VersionState
from kernel import actors, clock, machine, scope
from kernel.actors import Actor
from ledger import hints
from ledger.record import record_move

logger = logging.getLogger(__name__)

INLINE_BYTES: Final = 256 * 1024**2
_BATCH: Final = 20
_VERIFIER: Final = actors.system("upload-verifier")


def finish(upload: Upload, digest: str, *, actor: Actor) -> Upload:
    """Complete an upload that has all its bytes; call with the writer's lock held.

    ``digest`` is what the writer computed, or "". Then a small file is read again here, and a large one later: the
    upload stays open until that is done. A wrong digest ends the upload as ``aborted`` with the reason
    ``DigestMismatch``; look at the state of what is returned.
    """
    if not digest:
        if upload.length > INLINE_BYTES:
            return upload  # :func:`verify_waiting` finds it
        digest = writer.digest_of(_bytes_of(upload))
    return _settle(upload, digest, actor)


def verify_pending(upload_id: uuid.UUID) -> None:
    """Compare an upload that has all its bytes. One that is locked, ended or not whole is left alone."""
    if _whole(upload_id) is None:
        return
    try:
        with writer.locked(storage.upload_path(upload_id)):
            if (upload := _whole(upload_id)) is not None:  # who held the lock may have completed it
                _settle(upload, writer.digest_of(_bytes_of(upload)), _VERIFIER)
    except UploadLocked:
        return


def _whole(upload_id: uuid.UUID) -> Upload | None:
    with scope.all_tenants():
        rows = Upload.objects.select_related("file").filter(state=UploadState.OPEN, offset=F("length"))
        return rows.filter(id=upload_id).first()


def verify_waiting() -> None:
    """Compare every upload that has all its bytes and was not compared, because a process or a message was lost."""
    with scope.all_tenants():
        waiting = list(
            Upload.objects.filter(state=UploadState.OPEN, offset=F("length"))
            .order_by("id")
            .values_list("id", flat=True)[:_BATCH]
        )
    for upload_id in waiting:
        verify_pending(upload_id)


def _bytes_of(upload: Upload) -> Path:
    """Where the bytes are: a crash between the move into the store and its commit leaves them in the store."""
    path = storage.upload_path(upload.id)
    placed = storage.path_of(upload.file.sha256)
    if upload.length and path.exists() and path.stat().st_size == 0 and placed.exists():
        return placed
    return path


def _settle(upload: Upload, digest: str, actor: Actor) -> Upload:
    with transaction.atomic(), scope.tenant(upload.tenant_id):
        # Version before upload, as everywhere: whoever opens or deletes takes the locks in this order.
        version = (
            ModelVersion.objects.select_for_update(of=("self",), no_key=True).filter(files__uploads=upload.id).first()
        )
        current = (
            Upload.objects.select_for_update(of=("self",), no_key=True)
            .select_related("file")
            .filter(id=upload.id)
            .first()
        )
        if current is None or current.state != UploadState.OPEN:
            uploads.require_open(current or Upload(state=UploadState.ABORTED, message="Its version was deleted."))
            raise AssertionError("unreachable: the upload is not open")
        file = current.file
        if version is None or version.state != VersionState.UPLOADING:
            uploads.end(current, UploadState.ABORTED, actor, "VersionClosed", "The version takes no more files.")
            return current
        if digest != file.sha256:
            uploads.end(
                current,
                UploadState.ABORTED,
                actor,
                "DigestMismatch",
                f"{file.path} has the SHA-256 {digest}, but {file.sha256} was declared; its bytes were dropped.",
            )
            return current
        now = clock.now()
        storage.lock(digest)
        Artifact.objects.update_or_create(
            sha256=digest,
            defaults={"released_at": now},
            create_defaults={"size": file.size, "created_at": now, "released_at": now},
        )
        VersionFile.objects.filter(id=file.id).update(artifact_id=digest)
        moved = machine.move(current, UPLOAD, UploadState.COMPLETE)
        record_move(moved, actor=actor, tenant_id=current.tenant_id, subject_label=file.path)
        hints.push_on_commit(hints.tenant_topic(current.tenant_id), {"what": "models"})
        source = _bytes_of(current)
        if source != storage.path_of(digest):
            storage.place(source, digest)
    return current
