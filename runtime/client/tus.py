"""A small tus 1.0 client: create, ask for the offset, send checked pieces, pick up where it stopped.

A piece is read, hashed and sent with its ``Upload-Checksum``; whatever fails, the server is asked how far it got.
"""

import base64
import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import urljoin, urlsplit

import httpx2

from runtime.client import api
from runtime.client.errors import ApiError, ClientError, Unreachable

VERSION: Final = "1.0.0"
PIECE_BYTES: Final = 8 * 1024**2
MAX_FAILURES: Final = 8
LONGEST_PAUSE_SECONDS: Final = 15.0
_CONFLICT: Final = 409
_CHECKSUM_MISMATCH: Final = 460
_TRY_AGAIN: Final = frozenset({408, _CONFLICT, 423, 425, 429, _CHECKSUM_MISMATCH, 500, 502, 503, 504})
_WRONG_FILE: Final = "digest_mismatch"  # every piece came well, yet the whole is not what was declared
_GONE: Final = frozenset({404, 410})

Progress = Callable[[int], None]


class SourceChanged(ClientError):
    """The file is not what it was when the upload was declared."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One file to upload. ``url`` is its tus resource when it was begun before. ``metadata`` goes with the creation."""

    source: Path
    size: int
    metadata: Mapping[str, str]
    url: str = ""


class Uploader:
    """Uploads files to one tus endpoint. ``progress`` is told the bytes that the server has."""

    def __init__(
        self,
        http: httpx2.Client,
        creation_path: str,
        *,
        piece_bytes: int = PIECE_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._http = http
        self._creation_path = creation_path
        self._piece_bytes = piece_bytes
        self._sleep = sleep

    def upload(self, job: Job, progress: Progress = lambda _offset: None) -> None:
        """Bring the whole file to the server.

        Raises:
            SourceChanged: the file shrank or vanished.
            ApiError: the server refused for good.
            Unreachable: no progress over several tries; the same call goes on later.
        """
        url = job.url
        failures = best = 0
        with _opened(job) as file:
            offset: int | None = None
            while offset is None or offset < job.size:
                try:
                    if offset is None:
                        url, offset = self._position(job, url)
                    else:
                        offset = self._send_piece(url, file, offset, job)
                    if offset > best:  # what counts is that it gets on, in however small steps
                        best, failures = offset, 0
                    progress(offset)
                except (httpx2.HTTPError, ApiError) as exc:
                    failures += 1
                    if not url and isinstance(exc, ApiError) and exc.status == _CONFLICT:
                        raise  # a conflict before there is an upload is no matter of offsets
                    self._pause(exc, failures)
                    offset = None  # only the server knows how much of the piece it kept

    def _position(self, job: Job, url: str) -> tuple[str, int]:
        """Where to go on: the known upload, or a new one when there is none or it has expired."""
        if url:
            try:
                response = api.checked(self._http.head(self._local(url), headers={"Tus-Resumable": VERSION}))
                return url, _offset(response)
            except ApiError as exc:
                if exc.status not in _GONE:
                    raise
        return self._create(job), 0

    def _create(self, job: Job) -> str:
        encoded = (f"{name} {base64.b64encode(value.encode()).decode()}" for name, value in job.metadata.items())
        headers = {
            "Tus-Resumable": VERSION,
            "Upload-Length": str(job.size),
            "Upload-Metadata": ",".join(encoded),
        }
        response = api.checked(self._http.post(self._creation_path, headers=headers))
        return urljoin(str(response.request.url), response.headers["Location"])

    def _send_piece(self, url: str, file: BinaryIO, offset: int, job: Job) -> int:
        file.seek(offset)
        piece = file.read(min(self._piece_bytes, job.size - offset))
        if not piece:
            raise SourceChanged(f"{job.source} has become shorter since the upload began; start again.")
        digest = base64.b64encode(hashlib.sha256(piece).digest()).decode()
        headers = {
            "Tus-Resumable": VERSION,
            "Upload-Offset": str(offset),
            "Upload-Checksum": f"sha256 {digest}",
            "Content-Type": "application/offset+octet-stream",
        }
        return _offset(api.checked(self._http.patch(self._local(url), content=piece, headers=headers)))

    def _pause(self, exc: Exception, failures: int) -> None:
        if isinstance(exc, ApiError) and (exc.status not in _TRY_AGAIN or exc.code == _WRONG_FILE):
            raise exc
        if failures >= MAX_FAILURES:
            if isinstance(exc, ApiError):
                raise exc
            raise Unreachable(
                f"The upload does not get on ({exc}). Run the same command again: it goes on where it stopped."
            ) from exc
        self._sleep(min(0.5 * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS))

    def _local(self, url: str) -> str:
        """The URL, with the server's name as this client was told it: the server may know itself by another."""
        parts = urlsplit(url)
        return parts.path + (f"?{parts.query}" if parts.query else "")


def _opened(job: Job) -> BinaryIO:
    try:
        file = job.source.open("rb")
    except OSError as exc:
        raise SourceChanged(f"{job.source} cannot be read ({exc.strerror}).") from exc
    size = file.seek(0, 2)
    if size != job.size:
        file.close()
        raise SourceChanged(f"{job.source} has {size} bytes now, {job.size} were declared; start again.")
    return file


def _offset(response: httpx2.Response) -> int:
    text = response.headers.get("Upload-Offset", "")
    if not text.isdigit():
        raise Unreachable("The server's answer has no Upload-Offset; it does not speak tus 1.0.")
    return int(text)
