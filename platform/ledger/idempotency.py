"""``Idempotency-Key`` on POST: the same key and body get the stored answer; another body is refused.

After draft-ietf-httpapi-idempotency-key-header-07: 409 while the first is running, 422 for another body. Answers of
5xx are not stored, so that a retry can succeed. Only authenticated calls get here.
"""

import datetime
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from django.db import IntegrityError, transaction
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from kernel import clock, errors
from ledger.models import IdempotencyRecord

KEEP = datetime.timedelta(hours=24)
STUCK_AFTER = datetime.timedelta(minutes=2)
MAX_KEY_LENGTH = 255
_KEY = re.compile(rf"[\x20-\x7e]{{1,{MAX_KEY_LENGTH}}}")


def run_once(*, owner: str, route: str, key: str, body: bytes, work: Callable[[], Response]) -> Response:
    """Run ``work`` unless ``key`` has been seen by ``owner`` on ``route``; return its (stored) answer."""
    if not _KEY.fullmatch(key):
        raise errors.InvalidInput(f"Idempotency-Key is 1 to {MAX_KEY_LENGTH} printable ASCII characters.")
    fingerprint = hashlib.sha256(body).hexdigest()
    record, mine = _claim(owner, route[:200], key, fingerprint)
    if not mine:
        return _replay(record, fingerprint)
    try:
        response = work()
    except BaseException:
        record.delete()
        raise
    if response.status_code >= 500:
        record.delete()
    else:
        record.status, record.body = response.status_code, _plain(response.data)
        record.save(update_fields=["status", "body"])
    return response


def _claim(owner: str, route: str, key: str, fingerprint: str) -> tuple[IdempotencyRecord, bool]:
    now = clock.now()
    same = IdempotencyRecord.objects.filter(owner=owner, route=route, key=key)
    same.filter(created_at__lt=now - KEEP).delete()
    same.filter(status=None, created_at__lt=now - STUCK_AFTER).delete()
    try:
        with transaction.atomic():
            return (
                IdempotencyRecord.objects.create(
                    owner=owner, route=route, key=key, fingerprint=fingerprint, created_at=now
                ),
                True,
            )
    except IntegrityError:
        return same.get(), False


def _replay(record: IdempotencyRecord, fingerprint: str) -> Response:
    if record.fingerprint != fingerprint:
        raise errors.Unprocessable(
            "This Idempotency-Key was used with another body; use a new key for a new request.",
            code="idempotency_key_reused",
        )
    if record.status is None:
        raise errors.Conflict(
            "The first request with this key is still running.", code="idempotency_in_progress", data={"retry_after": 1}
        )
    return Response(record.body, status=record.status, headers={"Idempotency-Replayed": "true"})


def _plain(data: Any) -> Any:
    """Round-trip through the renderer's encoder, so that what is replayed is what was sent."""
    return json.loads(json.dumps(data, cls=JSONEncoder))


def forget_old() -> int:
    """Delete records older than 24 hours; return how many."""
    return IdempotencyRecord.objects.filter(created_at__lt=clock.now() - KEEP).delete()[0]
