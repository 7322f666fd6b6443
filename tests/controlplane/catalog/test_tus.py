"""Resumable uploads against a live server: by tuspy, and by plain HTTP where a client has to misbehave."""

import base64
import datetime
import hashlib
import io
import socket
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from rest_framework.test import APIClient
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError, TusUploadFailed

from catalog import completion, expiry, services, storage, writer
from catalog.models import Artifact, Model, ModelVersion, Upload
from catalog.states import UploadState, VersionState
from kernel import clock, errors, scope
from tenants.models import Tenant
from tests.build import catalog as build_catalog
from tests.build import controlplane as build

TUS = {"Tus-Resumable": "1.0.0"}
DATA = bytes(range(256)) * 4096  # 1 MiB


class Bench:
    """A tenant with a version that waits for files, a server, and the credentials to upload."""

    def __init__(self, server: str, files: dict[str, bytes]) -> None:
        self.server = server
        self.files = files
        self.tenant: Tenant = build.make_tenant()
        self.owner = build.owner_of(self.tenant)
        self.rest: APIClient = build.client_for(self.owner)
        self.auth = {"Authorization": self.rest._credentials["HTTP_AUTHORIZATION"]}
        self.actor = build.actor_for(self.owner)
        self.model: Model = build_catalog.make_model(self.tenant, "m")
        self.version: ModelVersion = services.create_version(
            actor=self.actor, tenant=self.tenant, model=self.model, files=build_catalog.declared(files)
        )
        self.url = f"{server}/api/v1/tenants/{self.tenant.slug}/uploads"

    def metadata(self, path: str, **more: str) -> dict[str, str]:
        return {"version": str(self.version.id), "path": path, **more}

    def tus(self, path: str, **options: Any) -> Any:
        client = TusClient(self.url, headers=self.auth)
        return client.uploader(file_stream=io.BytesIO(self.files[path]), metadata=self.metadata(path), **options)

    def create(self, path: str, **headers: str) -> requests.Response:
        text = ",".join(
            f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in self.metadata(path).items()
        )
        sent = {**TUS, **self.auth, "Upload-Length": str(len(self.files[path])), "Upload-Metadata": text, **headers}
        return requests.post(self.url, headers=sent, timeout=20)

    def opened(self, path: str) -> str:
        answer = self.create(path)
        assert answer.status_code == 201, answer.text
        return self.server + answer.headers["Location"]

    def patch(self, url: str, offset: int, data: bytes, **headers: str) -> requests.Response:
        sent = {**TUS, **self.auth, "Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"}
        return requests.patch(url, data=data, headers={**sent, **headers}, timeout=20)

    def head(self, url: str) -> requests.Response:
        return requests.head(url, headers={**TUS, **self.auth}, timeout=20)

    def row(self, url: str) -> Upload:
        with scope.all_tenants():
            return Upload.objects.select_related("file").get(id=uuid.UUID(url.rsplit("/", 1)[1]))

    def version_json(self) -> Any:
        return self.rest.get(f"/api/v1/tenants/{self.tenant.slug}/models/m/versions/1").json()


@pytest.fixture
def bench(server: str) -> Bench:
    return Bench(server, {"model.safetensors": DATA, "empty.txt": b""})


def test_tuspy_uploads_a_whole_model_in_pieces_with_checksums(server: str) -> None:
    bench = Bench(server, build_catalog.huggingface())
    for path in bench.files:
        bench.tus(path, chunk_size=700, upload_checksum=True).upload()
    described = bench.version_json()
    assert {file["state"] for file in described["files"]} == {"verified"}
    address = f"/api/v1/tenants/{bench.tenant.slug}/models/m/versions/1/finalize"
    assert bench.rest.post(address).status_code == 202
    from catalog import validation

    assert validation.validate_waiting() == 1
    described = bench.version_json()
    assert (described["state"], described["format"], described["chat_template"]) == ("ready", "huggingface", True)
    for path, data in bench.files.items():
        assert storage.path_of(hashlib.sha256(data).hexdigest()).read_bytes() == data, path


def test_a_dropped_connection_keeps_what_came_and_tuspy_goes_on_from_there(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as raw:
        head = f"PATCH {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(DATA)}\r\n"
        head += f"Upload-Offset: 0\r\nTus-Resumable: 1.0.0\r\nAuthorization: {bench.auth['Authorization']}\r\n"
        raw.sendall(head.encode() + b"Content-Type: application/offset+octet-stream\r\n\r\n" + DATA[:300_000])
    deadline = time.monotonic() + 20
    while bench.row(url).offset != 300_000:
        assert time.monotonic() < deadline, bench.row(url).offset
        time.sleep(0.02)
    (file,) = [file for file in bench.version_json()["files"] if file["path"] == "model.safetensors"]
    assert (file["state"], file["offset"], bench.server + file["upload_url"]) == ("uploading", 300_000, url)
    resumed = TusClient(bench.url, headers=bench.auth).uploader(
        file_stream=io.BytesIO(DATA), url=url, chunk_size=400_000
    )
    assert resumed.offset == 300_000
    resumed.upload()
    assert bench.row(url).state == UploadState.COMPLETE
    assert storage.path_of(hashlib.sha256(DATA).hexdigest()).read_bytes() == DATA


def test_another_process_goes_on_after_a_crash_that_left_bytes_nobody_noted(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    assert bench.patch(url, 0, DATA[:1000]).status_code == 204
    path = storage.upload_path(bench.row(url).id)
    path.write_bytes(path.read_bytes() + b"noted nowhere")
    writer._warm.clear()  # what a new process knows
    answer = bench.patch(url, 1000, DATA[1000:])
    assert (answer.status_code, answer.headers["Upload-Offset"]) == (204, str(len(DATA)))
    assert bench.row(url).state == UploadState.COMPLETE


def test_a_crash_before_the_digest_was_compared_is_made_good_by_the_loop(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(completion, "INLINE_BYTES", 0)
    url = bench.opened("model.safetensors")
    assert bench.patch(url, 0, DATA[:1000]).status_code == 204
    writer._warm.clear()
    assert bench.patch(url, 1000, DATA[1000:]).status_code == 204
    assert bench.row(url).state == UploadState.OPEN
    states = {file["path"]: file["state"] for file in bench.version_json()["files"]}
    assert states["model.safetensors"] == "verifying"
    completion.verify_waiting()
    assert bench.row(url).state == UploadState.COMPLETE


def test_bytes_with_a_wrong_checksum_are_dropped(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    assert bench.patch(url, 0, DATA[:10]).status_code == 204
    right = base64.b64encode(hashlib.sha256(DATA[10:20]).digest()).decode()
    answer = bench.patch(url, 10, DATA[20:30], **{"Upload-Checksum": f"sha256 {right}"})
    assert (answer.status_code, answer.json()["code"]) == (460, "checksum_mismatch")
    assert bench.head(url).headers["Upload-Offset"] == "10"
    assert bench.patch(url, 10, DATA[10:20], **{"Upload-Checksum": f"sha256 {right}"}).status_code == 204
    unknown = bench.patch(url, 20, DATA[20:30], **{"Upload-Checksum": f"crc32 {right}"})
    assert (unknown.status_code, unknown.json()["code"]) == (400, "checksum_unsupported")


def test_a_file_with_another_digest_than_declared_is_refused_and_can_come_again(bench: Bench) -> None:
    wrong = bench.tus("model.safetensors")
    wrong.file_stream = io.BytesIO(b"x" * len(DATA))
    with pytest.raises(TusUploadFailed) as failed:
        wrong.upload()
    assert failed.value.status_code == 460
    assert b"digest_mismatch" in failed.value.response_content
    with scope.all_tenants():
        assert Upload.objects.get().reason == "DigestMismatch"
    assert not list((Path(storage.settings.ARTIFACT_ROOT) / "uploads").iterdir())
    bench.tus("model.safetensors").upload()
    assert Artifact.objects.count() == 1


def test_an_upload_expires_and_its_bytes_go(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    answer = bench.patch(url, 0, DATA[:1000])
    assert "Upload-Expires" in answer.headers
    with scope.all_tenants():
        Upload.objects.update(expires_at=clock.now() - datetime.timedelta(seconds=1))
    assert bench.head(url).status_code == 410
    assert bench.patch(url, 1000, DATA[1000:]).json()["code"] == "upload_gone"
    assert expiry.expire_uploads() == 1
    assert bench.row(url).state == UploadState.EXPIRED
    assert not storage.upload_path(bench.row(url).id).exists()
    with pytest.raises(TusCommunicationError):
        TusClient(bench.url, headers=bench.auth).uploader(file_stream=io.BytesIO(DATA), url=url)


def test_an_upload_can_be_terminated_but_not_once_complete(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    bench.patch(url, 0, DATA[:1000])
    assert requests.delete(url, headers={**TUS, **bench.auth}, timeout=20).status_code == 204
    assert bench.head(url).status_code == 410
    assert not storage.upload_path(bench.row(url).id).exists()
    complete = bench.opened("empty.txt")
    assert bench.row(complete).state == UploadState.COMPLETE
    assert bench.head(complete).headers["Upload-Offset"] == "0"
    refused = requests.delete(complete, headers={**TUS, **bench.auth}, timeout=20)
    assert (refused.status_code, refused.json()["code"]) == (409, "upload_complete")


def test_a_new_upload_of_a_file_takes_the_place_of_the_open_one(bench: Bench) -> None:
    first = bench.opened("model.safetensors")
    second = bench.opened("model.safetensors")
    assert first != second
    assert bench.head(first).status_code == 410
    assert bench.head(second).status_code == 200


def test_one_writer_at_a_time(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    with writer.locked(storage.upload_path(bench.row(url).id)):
        refused = bench.patch(url, 0, DATA)
        assert (refused.status_code, refused.headers["Retry-After"]) == (423, "2")
        assert requests.delete(url, headers={**TUS, **bench.auth}, timeout=20).status_code == 423
        assert bench.create("model.safetensors").status_code == 423
        assert expiry.expire_uploads() == 0
    assert bench.patch(url, 0, DATA).status_code == 204


def test_options_tell_what_is_spoken(bench: Bench) -> None:
    answer = requests.options(bench.url, timeout=20)
    assert answer.status_code == 204
    assert answer.headers["Tus-Version"] == answer.headers["Tus-Resumable"] == "1.0.0"
    assert answer.headers["Tus-Extension"] == "creation,checksum,expiration,termination"
    assert answer.headers["Tus-Checksum-Algorithm"] == "sha1,sha256"


WRONG: list[tuple[dict[str, str], int, str]] = [
    ({"Tus-Resumable": "0.2.2"}, 412, "tus_version"),
    ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
    ({"Upload-Offset": "7"}, 409, "offset_mismatch"),
    ({"Upload-Offset": "-1"}, 400, "invalid_input"),
    ({"Authorization": "Bearer mpu_nobody"}, 401, "invalid_token"),
    ({"Authorization": ""}, 401, "unauthenticated"),
    ({"Host": "evil.example"}, 400, "host"),
]


def test_a_wrong_patch_is_refused_and_changes_nothing(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    for headers, status, code in WRONG:
        answer = bench.patch(url, 0, DATA[:100], **headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert answer.headers["Tus-Resumable"] == "1.0.0"
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert bench.head(url).headers["Upload-Offset"] == "0"


def test_more_bytes_than_declared_are_refused(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    answer = bench.patch(url, 0, DATA + b"x")
    assert (answer.status_code, answer.json()["data"]) == (413, {"limit": len(DATA)})

    def endless() -> Any:
        yield DATA
        yield b"x"

    chunked = bench.patch(url, 0, endless())  # type: ignore[arg-type]
    assert chunked.status_code == 413
    assert bench.head(url).headers["Upload-Offset"] == "0"


def test_what_was_not_declared_is_refused_at_creation(bench: Bench) -> None:
    assert bench.create("model.safetensors", **{"Upload-Length": "5"}).json()["data"] == {"field": "Upload-Length"}
    too_large = bench.create("model.safetensors", **{"Upload-Length": str(10**15)})
    assert (too_large.status_code, too_large.json()["code"]) == (413, "too_large")
    bench.files["other.json"] = b"{}"
    assert bench.create("other.json").json()["data"] == {"field": "path"}
    assert bench.create("other.json", **{"Upload-Metadata": "version !"}).status_code == 400
    assert bench.create("other.json", **{"Upload-Metadata": ""}).json()["data"] == {"field": "version"}


def test_over_quota_is_refused_before_bytes_are_taken(bench: Bench, monkeypatch: Any) -> None:
    def full(tenant: Tenant, additional: int) -> None:
        raise errors.QuotaExceeded(
            f"{tenant.slug} may hold no more.", data={"quota": "storage_bytes", "asked": additional}
        )

    monkeypatch.setattr(storage, "_quota_checks", [])
    storage.register_quota(full)
    answer = bench.create("model.safetensors")
    assert (answer.status_code, answer.json()["code"]) == (413, "quota_exceeded")
    assert not (Path(storage.settings.ARTIFACT_ROOT) / "uploads").exists()


def test_a_full_disk_is_told_before_bytes_are_taken(bench: Bench, monkeypatch: Any) -> None:
    url = bench.opened("model.safetensors")
    monkeypatch.setattr(storage, "RESERVED_BYTES", 10**18)
    assert bench.create("empty.txt").json()["code"] == "storage_full"
    refused = bench.patch(url, 0, DATA)
    assert (refused.status_code, refused.json()["code"]) == (507, "storage_full")


def test_uploads_of_another_tenant_do_not_exist(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    stranger = build.client_for(build.owner_of(build.make_tenant("other")))
    theirs = {"Authorization": stranger._credentials["HTTP_AUTHORIZATION"]}
    assert bench.patch(url, 0, DATA, **theirs).status_code == 404
    moved = url.replace(f"/{bench.tenant.slug}/", "/other/")
    assert bench.patch(moved, 0, DATA, **theirs).json()["code"] == "upload_not_found"
    text = f"version {base64.b64encode(str(bench.version.id).encode()).decode()},path bQ=="
    made = requests.post(
        f"{bench.server}/api/v1/tenants/other/uploads",
        headers={**TUS, **theirs, "Upload-Length": "1", "Upload-Metadata": text},
        timeout=20,
    )
    assert made.json()["code"] == "version_not_found"


def test_a_viewer_may_look_but_not_send(bench: Bench) -> None:
    from tenants.roles import Role

    url = bench.opened("model.safetensors")
    viewer = build.client_for(build.make_member(bench.tenant, Role.VIEWER))
    theirs = {"Authorization": viewer._credentials["HTTP_AUTHORIZATION"]}
    assert requests.head(url, headers={**TUS, **theirs}, timeout=20).status_code == 200
    assert bench.patch(url, 0, DATA, **theirs).status_code == 403


def test_a_browser_uploads_with_its_session_and_needs_the_csrf_token(bench: Bench) -> None:
    browser = APIClient()
    browser.force_login(bench.owner)
    session = {"millpond_session": browser.cookies["millpond_session"].value, "csrftoken": "a" * 32}
    text = ",".join(
        f"{key} {base64.b64encode(value.encode()).decode()}"
        for key, value in bench.metadata("model.safetensors").items()
    )
    sent = {**TUS, "Upload-Length": str(len(DATA)), "Upload-Metadata": text}
    without = requests.post(bench.url, headers=sent, cookies=session, timeout=20)
    assert (without.status_code, without.json()["code"]) == (403, "permission_denied")
    made = requests.post(bench.url, headers={**sent, "X-CSRFToken": "a" * 32}, cookies=session, timeout=20)
    assert made.status_code == 201, made.text
    patched = requests.patch(
        bench.server + made.headers["Location"],
        data=DATA,
        cookies=session,
        headers={
            **TUS,
            "X-CSRFToken": "a" * 32,
            "Upload-Offset": "0",
            "Content-Type": "application/offset+octet-stream",
        },
        timeout=20,
    )
    assert patched.status_code == 204, patched.text


def test_a_post_can_stand_for_a_patch(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    sent = {**TUS, **bench.auth, "Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    answer = requests.post(url, data=DATA, headers={**sent, "X-HTTP-Method-Override": "PATCH"}, timeout=20)
    assert answer.status_code == 204
    assert requests.get(url, headers={**TUS, **bench.auth}, timeout=20).status_code == 405


def test_a_deleted_version_ends_its_uploads(bench: Bench) -> None:
    url = bench.opened("model.safetensors")
    bench.patch(url, 0, DATA[:1000])
    path = storage.upload_path(bench.row(url).id)
    services.delete_version(actor=bench.actor, tenant=bench.tenant, version=bench.version)
    assert bench.head(url).status_code == 404
    assert not path.exists()


def test_a_closed_version_takes_no_files(bench: Bench) -> None:
    for path in bench.files:
        bench.tus(path).upload()
    assert bench.create("model.safetensors").json()["code"] == "file_complete"
    services.finalize_version(actor=bench.actor, tenant=bench.tenant, version=bench.version)
    assert bench.create("model.safetensors").json()["code"] == "version_closed"
    with scope.all_tenants():
        assert ModelVersion.objects.get().state == VersionState.VALIDATING
