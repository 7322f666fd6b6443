"""The content-addressed store on disk, and who may put how much into it.

``ARTIFACT_ROOT/sha256/ab/<digest>`` holds verified bytes, ``ARTIFACT_ROOT/uploads/<id>`` what is still coming. Paths
are made from checked ids only, never from what a caller wrote. Placing and collecting the same digest exclude each
other through an advisory lock held to the end of the transaction.
"""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db import connection, models

from catalog.errors import StorageFull
from catalog.models import VersionFile
from catalog.states import CHARGED
from kernel import scope
from tenants.models import Tenant

_DIGEST = re.compile(r"^[0-9a-f]{64}$")
# Left free for the database and everybody else on the disk.
RESERVED_BYTES: Final = 512 * 1024**2
_PRIVATE_FOLDER: Final = 0o750

QuotaCheck = Callable[[Tenant, int], None]
_quota_checks: list[QuotaCheck] = []


def register_quota(check: QuotaCheck) -> None:
    """Ask ``check(tenant, additional_bytes)`` before bytes are charged; it raises ``QuotaExceeded`` to refuse.

    It runs inside the charging transaction with the tenant's row locked, so two charges cannot both slip under a limit.
    """
    if check not in _quota_checks:
        _quota_checks.append(check)


def charge(tenant: Tenant, additional_bytes: int) -> None:
    """Raise unless ``tenant`` may hold ``additional_bytes`` more. Call in the transaction that writes the rows."""
    Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    for check in _quota_checks:
        check(tenant, additional_bytes)


def used_bytes(tenant: Tenant) -> int:
    """Declared bytes of every version of ``tenant`` that is not rejected, whether they have come yet or not."""
    return used_bytes_by([tenant.id]).get(tenant.id, 0)


def used_bytes_by(tenant_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, int]:
    """:func:`used_bytes` of each tenant that has any; one query."""
    with scope.all_tenants():
        files = VersionFile.objects.filter(version__tenant_id__in=tenant_ids, version__state__in=list(CHARGED))
        sums = files.order_by().values_list("version__tenant_id").annotate(total=models.Sum("size"))
        return {tenant_id: int(total) for tenant_id, total in sums}


def require_free_disk(additional_bytes: int) -> None:
    """Raise unless the store's disk can take ``additional_bytes`` and keep its reserve."""
    root = _made(Path(settings.ARTIFACT_ROOT))
    if shutil.disk_usage(root).free - additional_bytes < RESERVED_BYTES:
        raise StorageFull(
            "The platform's storage has no room for this file. Nothing is lost: try again later, or "
            "ask a platform admin."
        )


def path_of(sha256: str) -> Path:
    """Where the bytes of an artifact are.

    Raises:
        ValueError: ``sha256`` is no digest.
    """
    if not _DIGEST.fullmatch(sha256):
        raise ValueError("not a SHA-256 digest in lower-case hexadecimal")
    return Path(settings.ARTIFACT_ROOT) / "sha256" / sha256[:2] / sha256


def upload_path(upload_id: uuid.UUID) -> Path:
    """Where the bytes of an upload gather; the folder exists afterwards."""
    return _made(Path(settings.ARTIFACT_ROOT) / "uploads") / str(uuid.UUID(str(upload_id)))


def place(source: Path, sha256: str) -> None:
    """Move verified bytes into the store, atomically and durably. What lay there under the digest is replaced."""
    lock(sha256)
    target = path_of(sha256)
    _made(target.parent)
    source.chmod(0o440)
    source.replace(target)
    _sync_folder(target.parent)


def lock(sha256: str) -> None:
    """Exclude everybody else from this digest until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", ["artifact:" + sha256])


def discard(path: Path) -> None:
    """Delete a file that may be gone already."""
    path.unlink(missing_ok=True)


def _made(folder: Path) -> Path:
    folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    return folder


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
