"""Letting go of bytes: what a deleted or rejected version held, and collecting artifacts that nobody refers to.

An artifact is never removed at once: it is marked, and collected after a grace time, so that whoever is reading it can
finish. Collection re-checks the references under the digest's lock.
"""

import datetime
import logging
from collections.abc import Sequence
from typing import Final

from django.db import transaction

from catalog import storage
from catalog.models import Artifact, ModelVersion, Upload, VersionFile
from catalog.states import UploadState
from kernel import clock, scope

logger = logging.getLogger(__name__)

GRACE: Final = datetime.timedelta(hours=1)
_BATCH: Final = 200


def release_versions(versions: Sequence[ModelVersion]) -> None:
    """Mark the artifacts of ``versions`` and drop the bytes of their open uploads (after the commit)."""
    files = VersionFile.objects.filter(version__in=versions)
    digests = list(files.exclude(artifact=None).values_list("artifact_id", flat=True))
    Artifact.objects.filter(sha256__in=digests).update(released_at=clock.now())
    uploads = Upload.objects.filter(file__version__in=versions, state=UploadState.OPEN)
    for path in [storage.upload_path(upload_id) for upload_id in uploads.values_list("id", flat=True)]:
        transaction.on_commit(lambda path=path: storage.discard(path))  # type: ignore[misc]


def unlink_files(version: ModelVersion) -> None:
    """Let a rejected version hold no bytes: its files keep their declared digests but not the artifacts."""
    VersionFile.objects.filter(version=version).update(artifact=None)


def collect(limit: int = _BATCH) -> int:
    """Delete up to ``limit`` artifacts that nobody has referred to for the grace time; return how many went."""
    edge = clock.now() - GRACE
    stale = Artifact.objects.filter(released_at__lt=edge, files=None).order_by("released_at")
    with scope.all_tenants():
        digests = list(stale.values_list("sha256", flat=True)[:limit])
        return sum(_collect_one(digest, edge) for digest in digests)


def _collect_one(digest: str, edge: datetime.datetime) -> bool:
    with transaction.atomic():
        storage.lock(digest)
        row = (
            Artifact.objects.select_for_update(of=("self",))
            .filter(sha256=digest, released_at__lt=edge, files=None)
            .first()
        )
        if row is None:
            return False
        row.delete()
        storage.discard(storage.path_of(digest))
    logger.info("artifact collected", extra={"sha256": digest, "bytes": row.size})
    return True
