"""A tus server in memory that fails on demand: for how the client picks up again, nothing else."""

import base64
import hashlib
import itertools

import httpx2

KEEP_HALF = "keep half of the piece and drop the connection"
DROP = "drop the connection before anything is kept"


class ShakyTus:
    """``faults`` are taken one per PATCH: a status, :data:`KEEP_HALF`, :data:`DROP`, or None for none."""

    def __init__(self, *, faults=(), head_faults=(), creation_faults=()):
        self.faults = list(faults)
        self.head_faults = list(head_faults)
        self.creation_faults = list(creation_faults)
        self.uploads = {}
        self.lengths = {}
        self.metadata = {}
        self.calls = []
        self._names = itertools.count(1)

    def client(self):
        return httpx2.Client(base_url="http://shaky", transport=httpx2.MockTransport(self.handle))

    def handle(self, request):
        self.calls.append((request.method, request.url.path))
        assert request.headers["Tus-Resumable"] == "1.0.0"
        name = request.url.path.rsplit("/", 1)[-1]
        if request.method == "POST":
            if self.creation_faults and (fault := self.creation_faults.pop(0)):
                return self._fail(fault)
            return self._create(request)
        if name not in self.uploads:
            return httpx2.Response(410)
        if request.method == "HEAD":
            if self.head_faults and (fault := self.head_faults.pop(0)):
                return self._fail(fault)
            return self._offset(name, 200)
        return self._patch(request, name)

    def _create(self, request):
        name = f"u{next(self._names)}"
        self.uploads[name] = b""
        self.lengths[name] = int(request.headers["Upload-Length"])
        pairs = (pair.split(" ") for pair in request.headers["Upload-Metadata"].split(","))
        self.metadata[name] = {key: base64.b64decode(value).decode() for key, value in pairs}
        return httpx2.Response(201, headers={"Location": f"http://elsewhere:1234/uploads/{name}"})

    def _patch(self, request, name):
        fault = self.faults.pop(0) if self.faults else None
        if fault == DROP:
            raise httpx2.WriteError("broken pipe")
        if isinstance(fault, int):
            return self._fail(fault)
        kind, digest = request.headers["Upload-Checksum"].split(" ")
        assert kind == "sha256"
        if base64.b64decode(digest) != hashlib.sha256(request.content).digest():
            return httpx2.Response(460)
        if int(request.headers["Upload-Offset"]) != len(self.uploads[name]):
            return httpx2.Response(409)
        if fault == KEEP_HALF:
            self.uploads[name] += request.content[: len(request.content) // 2]
            raise httpx2.ReadError("connection reset")
        self.uploads[name] += request.content
        return self._offset(name, 204)

    def _offset(self, name, status):
        return httpx2.Response(status, headers={"Upload-Offset": str(len(self.uploads[name]))})

    @staticmethod
    def _fail(status):
        return httpx2.Response(status, json={"code": "made_up", "detail": "as the test wanted"})
