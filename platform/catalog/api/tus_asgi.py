"""Resumable uploads by tus 1.0.0 (core, creation, checksum, expiration, termination) as bare ASGI.

Bodies go to disk as they come; Django would hold a whole one back first. Every step with the database runs in a thread
of its own request with a connection of its own, closed afterwards, so a slow sender holds no connection.
"""

import asyncio
import contextlib
import errno
import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.db import connections
from django.utils.http import http_date

from catalog import access, completion, storage, uploads, writer
from catalog.api import tus_auth, tus_body, tus_headers
from catalog.errors import ChecksumMismatch, OffsetMismatch, StorageFull
from catalog.models import Upload
from catalog.states import UploadState
from kernel import errors
from kernel import scope as tenant_scope
from kernel.actors import Actor
from kernel.api import problems
from tenants.models import Tenant
from tenants.roles import Permission

logger = logging.getLogger(__name__)

# Bytes after which a long request's progress is made durable.
CHECKPOINT_BYTES: Final = 64 * 1024**2
# At a time, in this process.
MAX_WRITERS: Final = 64
MAX_WRITERS_PER_TENANT: Final = 16
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_METHODS: Final = {
    "POST": Permission.PUBLISH,
    "PATCH": Permission.PUBLISH,
    "DELETE": Permission.PUBLISH,
    "HEAD": Permission.VIEW,
}

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
T = TypeVar("T")


def matches(scope: Scope) -> bool:
    """True for the routes that this application answers."""
    return scope["type"] == "http" and tus_headers.target_of(scope["path"]) is not None


async def application(scope: Scope, receive: tus_body.Receive, send: Send) -> None:
    """Answer one request."""
    async with ThreadSensitiveContext():
        await _Exchange(scope, receive, send).run()


async def _in_thread(work: Callable[..., T], *args: Any) -> T:
    def closing() -> T:
        try:
            with tenant_scope.isolated():
                return work(*args)
        finally:
            for connection in connections.all(initialized_only=True):
                if not connection.in_atomic_block:
                    connection.close()

    return await sync_to_async(closing, thread_sensitive=True)()


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: tus_body.Receive, send: Send) -> None:
        target = tus_headers.target_of(scope["path"])
        assert target is not None  # ``matches`` has seen to it
        self.scope, self.receive, self.send, self.target = scope, receive, send, target
        self.headers = tus_headers.read(scope["headers"])
        self.method = tus_headers.method_of(scope["method"], self.headers)
        self.request_id = tus_auth.request_id_of(self.headers)
        self.body_read = False

    async def run(self) -> None:
        try:
            await self._dispatch()
        except tus_body.ClientSilent:
            await self._answer(408, {"Connection": "close"})
        except tus_body.ClientGone:
            return
        except Exception as exc:  # boundary: everything is answered as a problem; what is no known error is logged
            await self._refuse(exc)

    async def _dispatch(self) -> None:
        if self.method == "OPTIONS":
            await self._answer(204, _capabilities())
            return
        if self.method not in _METHODS or (self.method == "POST") == bool(self.target.upload):
            allowed = "OPTIONS, HEAD, PATCH, DELETE" if self.target.upload else "OPTIONS, POST"
            await self._answer(405, {"Allow": allowed})
            return
        tus_headers.require_version(self.headers)
        actor, tenant = await _in_thread(
            tus_auth.identify, self.scope, self.target.tenant, _METHODS[self.method], self.request_id
        )
        if self.method == "POST":
            await self._create(actor, tenant)
            return
        upload = await _in_thread(self._load, actor, tenant)
        if self.method == "HEAD":
            await self._tell(upload)
        elif self.method == "DELETE":
            await _in_thread(lambda: uploads.terminate(actor=actor, tenant=tenant, upload=upload))
            await self._answer(204, {})
        else:
            await self._append(actor, upload)

    def _load(self, actor: Actor, tenant: Tenant) -> Upload:
        try:
            upload_id = uuid.UUID(self.target.upload)
        except ValueError:
            raise errors.NotFound("There is no such upload.", code="upload_not_found") from None
        return access.access_upload(actor, tenant, upload_id, _METHODS[self.method])

    async def _create(self, actor: Actor, tenant: Tenant) -> None:
        length = tus_headers.length_of(self.headers, settings.UPLOAD_MAX_FILE_BYTES)
        text = self.headers.get("upload-metadata", "")
        facts = tus_headers.metadata_of(text)
        try:
            version_id = uuid.UUID(facts.get("version", ""))
        except ValueError:
            raise errors.InvalidInput(
                "Upload-Metadata names no version; send version (the id of a model version) and path.",
                data={"field": "version"},
            ) from None

        def work() -> Upload:
            upload = uploads.open_upload(
                actor=actor, tenant=tenant, version_id=version_id, path=facts.get("path", ""), length=length,
                sha256=facts.get("sha256", ""), metadata=text,
            )  # fmt: skip
            if length == 0:
                with writer.locked(storage.upload_path(upload.id)):
                    return completion.finish(upload, writer.digest_of(storage.upload_path(upload.id)), actor=actor)
            return upload

        upload = await _in_thread(work)
        _refuse_wrong_digest(upload)
        location = f"/api/v1/tenants/{tenant.slug}/uploads/{upload.id}"
        await self._answer(201, {"Location": location, "Upload-Offset": "0", **_expiry(upload)})

    async def _tell(self, upload: Upload) -> None:
        if upload.state != UploadState.COMPLETE:
            uploads.require_open(upload)
        told = {"Upload-Offset": str(upload.offset), "Upload-Length": str(upload.length), "Cache-Control": "no-store"}
        if upload.metadata:
            told["Upload-Metadata"] = upload.metadata
        await self._answer(200, {**told, **_expiry(upload)})

    async def _append(self, actor: Actor, upload: Upload) -> None:
        uploads.require_open(upload)
        tus_headers.require_patch_type(self.headers)
        offset = tus_headers.number(self.headers, "Upload-Offset")
        checksum = tus_headers.checksum_of(self.headers)
        if sum(writing.target.tenant == self.target.tenant for writing in _writers) >= MAX_WRITERS_PER_TENANT:
            raise errors.TooManyRequests(
                f"The tenant sends {MAX_WRITERS_PER_TENANT} files at a time already; wait until one is done.",
                data={"retry_after": 5},
            )
        if len(_writers) >= MAX_WRITERS:
            raise errors.Unavailable("Too many uploads are running; try again in a moment.", data={"retry_after": 5})
        _writers.add(self)
        try:
            with contextlib.ExitStack() as stack:
                handle = await _in_thread(stack.enter_context, writer.locked(storage.upload_path(upload.id)))
                await _in_thread(upload.refresh_from_db)
                uploads.require_open(upload)
                self._check_fit(upload, offset)
                await _in_thread(storage.require_free_disk, upload.length - offset)
                appender = await asyncio.to_thread(
                    writer.Appender, handle, upload.id, offset, checksum[0] if checksum else ""
                )
                await self._receive(upload, appender, checksum)
                if upload.offset == upload.length:
                    upload = await _in_thread(lambda: completion.finish(upload, appender.digest(), actor=actor))
        finally:
            _writers.discard(self)
        _refuse_wrong_digest(upload)
        await self._answer(204, {"Upload-Offset": str(upload.offset), **_expiry(upload)})

    def _check_fit(self, upload: Upload, offset: int) -> None:
        if offset != upload.offset:
            raise OffsetMismatch(
                f"{upload.offset} bytes are here, but Upload-Offset says {offset}. Ask with HEAD and go on from there.",
                data={"offset": upload.offset},
            )
        stated = self.headers.get("content-length")
        if stated is not None and offset + tus_headers.number(self.headers, "Content-Length") > upload.length:
            raise _over_length(upload)

    async def _receive(self, upload: Upload, appender: writer.Appender, checksum: tus_headers.Checksum | None) -> None:
        """Take the body to disk. What came before a dropped connection counts, unless it has a checksum to meet."""
        self.body_read = True
        gone: tus_body.ClientGone | None = None
        try:
            async for block in tus_body.blocks(self.receive):
                if appender.offset + len(block) > upload.length:
                    raise _over_length(upload)
                await asyncio.to_thread(appender.write, block)
                if checksum is None and appender.offset - upload.offset >= CHECKPOINT_BYTES:
                    await self._note(upload, appender)
        except tus_body.ClientGone as exc:
            gone = exc
        except OSError as exc:
            if exc.errno not in _FULL:
                raise
            await asyncio.to_thread(appender.rewind, upload.offset)
            raise StorageFull("The platform's storage ran full. Go on later from the offset that HEAD tells.") from exc
        if checksum is not None and (gone or appender.checksum() != checksum.digest):
            await asyncio.to_thread(appender.rewind, upload.offset)
            if not gone:
                raise ChecksumMismatch(
                    "The bytes do not have the checksum they were sent with; they were dropped. Send them again.",
                    data={"offset": upload.offset},
                )
        if appender.offset > upload.offset:
            await self._note(upload, appender)
        appender.park()
        if gone and upload.offset < upload.length:
            raise gone

    async def _note(self, upload: Upload, appender: writer.Appender) -> None:
        offset = await asyncio.to_thread(appender.sync)
        await _in_thread(uploads.advance, upload, offset)

    async def _refuse(self, exc: Exception) -> None:
        if isinstance(exc, errors.QuotaExceeded):
            exc = errors.TooLarge(exc.detail, code=exc.code, data=exc.data)
        response = problems.handle(exc, {})
        if response is None:
            logger.error("upload failed", exc_info=exc, extra={"request_id": self.request_id})
            exc = errors.PlatformError(
                "Something went wrong here; it has been logged. Go on from the offset that HEAD tells."
            )
            response = problems.handle(exc, {})
            assert response is not None  # our own errors are always described
        response.data["request_id"] = self.request_id
        extra = {str(name): str(value) for name, value in response.headers.items() if name.lower() != "content-type"}
        if response.status_code == 412:
            extra["Tus-Version"] = tus_headers.VERSION
        if not self.body_read and self.method in ("POST", "PATCH"):
            await tus_body.drain(self.receive)
        await self._answer(response.status_code, extra, json.dumps(response.data).encode())

    async def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        told = {
            "Tus-Resumable": tus_headers.VERSION,
            "X-Request-Id": self.request_id,
            "X-Content-Type-Options": "nosniff",
            **headers,
        }
        if body:
            told["Content-Type"] = problems.CONTENT_TYPE
            told["Cache-Control"] = "no-store"
        if self.method == "HEAD":
            body = b""
        elif status != 204:
            told["Content-Length"] = str(len(body))
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in told.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": body})


_writers: set[_Exchange] = set()


def _capabilities() -> dict[str, str]:
    return {
        "Tus-Version": tus_headers.VERSION,
        "Tus-Extension": tus_headers.EXTENSIONS,
        "Tus-Max-Size": str(settings.UPLOAD_MAX_FILE_BYTES),
        "Tus-Checksum-Algorithm": ",".join(tus_headers.ALGORITHMS),
    }


def _expiry(upload: Upload) -> dict[str, str]:
    if upload.state != UploadState.OPEN:
        return {}
    return {"Upload-Expires": http_date(upload.expires_at.timestamp())}


def _refuse_wrong_digest(upload: Upload) -> None:
    if upload.state == UploadState.ABORTED:
        raise ChecksumMismatch(
            f"{upload.message} Upload the file again, or declare its right digest in a new version.",
            code="digest_mismatch",
        )


def _over_length(upload: Upload) -> errors.TooLarge:
    return errors.TooLarge(
        f"The upload has {upload.length} bytes by its Upload-Length; this is more. Send the declared file.",
        data={"limit": upload.length},
    )
