"""Letting go of what nobody finishes: uploads past their time, versions without files, files without rows."""

import contextlib
import datetime
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import transaction

from catalog import releases, storage, uploads, writer
from catalog.errors import UploadLocked
from catalog.models import Artifact, ModelVersion, Upload
from catalog.states import VERSION, UploadState, VersionState
from kernel import actors, clock, machine, scope
from ledger import hints
from ledger.record import record_move

logger = logging.getLogger(__name__)

_BATCH: Final = 200
_STRAY_AFTER: Final = datetime.timedelta(days=1)
_ACTOR: Final = actors.system("upload-expiry")


def expire_uploads() -> int:
    """End open uploads past their time, unless somebody is sending to them; return how many."""
    with scope.all_tenants():
        due = list(
            Upload.objects.filter(state=UploadState.OPEN, expires_at__lte=clock.now()).order_by("expires_at")[:_BATCH]
        )
        return sum(_expire_upload(upload) for upload in due)


def _expire_upload(upload: Upload) -> bool:
    try:
        with transaction.atomic(), writer.locked(storage.upload_path(upload.id)):
            fresh = (
                Upload.objects.select_for_update(no_key=True)
                .filter(id=upload.id, state=UploadState.OPEN, expires_at__lte=clock.now())
                .first()
            )
            if fresh is None:
                return False
            uploads.end(fresh, UploadState.EXPIRED, _ACTOR, "Expired", "Nothing was sent for too long.")
    except UploadLocked:
        return False
    return True


def expire_versions() -> int:
    """Reject versions that are uploading although nothing has happened to them for the life of an upload."""
    edge = clock.now() - datetime.timedelta(hours=settings.UPLOAD_EXPIRES_HOURS)
    with scope.all_tenants():
        idle = (
            ModelVersion.objects.filter(state=VersionState.UPLOADING, state_changed_at__lte=edge)
            .exclude(files__uploads__state=UploadState.OPEN)
            .exclude(files__uploads__state_changed_at__gt=edge)
            .order_by("id")
            .values_list("id", flat=True)[:_BATCH]
        )
        return sum(_expire_version(version_id) for version_id in list(idle))


def _expire_version(version_id: uuid.UUID) -> bool:
    with transaction.atomic():
        version = (
            ModelVersion.objects.select_for_update(of=("self",), no_key=True).select_related("model").get(id=version_id)
        )
        if version.state != VersionState.UPLOADING:
            return False
        moved = machine.move(
            version,
            VERSION,
            VersionState.REJECTED,
            reason="UploadExpired",
            message="It was not finished in time. Make a new version, upload its files and finalize it.",
        )
        record_move(
            moved, actor=_ACTOR, tenant_id=version.tenant_id, subject_label=f"{version.model.name} {version.number}"
        )
        releases.release_versions([version])
        releases.unlink_files(version)
        hints.push_on_commit(hints.tenant_topic(version.tenant_id), {"what": "models"})
    return True


def sweep_stray_files() -> int:
    """Delete files on disk that no row knows and that are a day old: what a crash left; return how many."""
    root = Path(settings.ARTIFACT_ROOT)
    edge = clock.now().timestamp() - _STRAY_AFTER.total_seconds()
    gone = 0
    for path in _old_files(root / "uploads", edge):
        with scope.all_tenants():
            known = Upload.objects.filter(id=path.name, state=UploadState.OPEN).exists() if _is_id(path.name) else False
        if not known:
            storage.discard(path)
            gone += 1
    for folder in sorted((root / "sha256").iterdir()) if (root / "sha256").is_dir() else []:
        for path in _old_files(folder, edge):
            gone += _sweep_stored(path)
    if gone:
        logger.info("stray files deleted", extra={"count": gone})
    return gone


def _sweep_stored(path: Path) -> bool:
    with transaction.atomic():
        storage.lock(path.name)
        if Artifact.objects.filter(sha256=path.name).exists():
            return False
        storage.discard(path)
    return True


def _old_files(folder: Path, edge: float) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        with contextlib.suppress(FileNotFoundError):  # somebody was faster
            if path.stat().st_mtime < edge and path.is_file():
                yield path


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
