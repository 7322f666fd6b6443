"""The artifact store: verified, resumable, bounded, safe against names."""

import hashlib
from contextlib import asynccontextmanager

import pytest
from agent_rig import CREDENTIAL, mode

from runtime.agent import paths
from runtime.agent.errors import Fault, Refused, Retry, Unreachable
from runtime.agent.fetch import Fetcher
from runtime.agent.link import ControlPlane as Link
from runtime.agent.store import ArtifactStore
from runtime.wire.assignments import ArtifactRef


def ref(path, data):
    return ArtifactRef(path=path, sha256=hashlib.sha256(data).hexdigest(), size=len(data))


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "store", max_bytes=0, reserve_bytes=0)


@pytest.fixture
async def link(control):
    import aiohttp

    async with aiohttp.ClientSession() as session:
        link = Link(session, control.url)
        link.credential = CREDENTIAL
        yield link


def nothing(_fraction):
    pass


async def test_fetches_verifies_and_reports_progress(control, link, store):
    data = bytes(range(256)) * 20_000
    artifacts = [control.artifact("a.bin", data), control.artifact("empty", b""), control.artifact("again.bin", data)]
    seen = []
    await Fetcher(store, link).fetch_all(artifacts, seen.append)
    assert store.path(artifacts[0].sha256).read_bytes() == data
    assert store.has(artifacts[1])
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len([path for path, _ in control.requests if "artifacts" in path]) == 1  # the empty one needs no bytes
    assert mode(store.path(artifacts[0].sha256)) == 0o400
    assert list((store.root / "partial").iterdir()) == []


@pytest.mark.parametrize("server_resumes", [True, False])
async def test_goes_on_where_a_broken_download_ended(control, link, store, server_resumes):
    data = b"0123456789abcdef" * 200_000
    artifact = control.artifact("a.bin", data)
    control.cuts[artifact.sha256] = 2_000_000
    control.ranges = server_resumes
    fetcher = Fetcher(store, link)
    with pytest.raises(Unreachable):
        await fetcher.fetch_all([artifact], nothing)
    kept = store.partial(artifact.sha256).stat().st_size
    assert 0 < kept <= 2_000_000
    assert not store.has(artifact)
    await fetcher.fetch_all([artifact], nothing)
    assert store.path(artifact.sha256).read_bytes() == data
    assert control.requests[-1][1] == f"bytes={kept}-"


async def test_refuses_bytes_that_do_not_match_their_digest(control, link, store):
    artifact = control.artifact("a.bin", b"right")
    control.artifacts[artifact.sha256] = b"wrong"
    fetcher = Fetcher(store, link)
    with pytest.raises(Fault) as caught:
        await fetcher.fetch_all([artifact], nothing)
    assert caught.value.reason == "DigestMismatch"
    assert not store.has(artifact)
    control.artifacts[artifact.sha256] = b"right"  # nothing of the wrong bytes is left
    await fetcher.fetch_all([artifact], nothing)
    assert store.has(artifact)


@pytest.mark.parametrize(
    ("sent", "want_reason", "want_retry"),
    [(b"longer", "SizeMismatch", Retry.LATER), (b"cut", "ArtifactCut", Retry.SOON)],
)
async def test_refuses_another_length_than_assigned(control, link, store, sent, want_reason, want_retry):
    artifact = control.artifact("a.bin", b"right")
    control.artifacts[artifact.sha256] = sent
    with pytest.raises(Fault) as caught:
        await Fetcher(store, link).fetch_all([artifact], nothing)
    assert (caught.value.reason, caught.value.retry) == (want_reason, want_retry)


async def test_a_file_the_control_plane_does_not_give_is_a_refusal(link, store):
    with pytest.raises(Refused):
        await Fetcher(store, link).fetch_all([ref("a", b"unknown")], nothing)


class Disk:
    """An artifact source in memory, for the store's bounds."""

    def __init__(self, *contents):
        self.contents = {hashlib.sha256(data).hexdigest(): data for data in contents}
        self.asked = []

    @asynccontextmanager
    async def open_artifact(self, sha256, offset):
        self.asked.append(sha256)
        yield Piece(self.contents[sha256][offset:], offset)


class Piece:
    def __init__(self, data, offset):
        self.offset = offset
        self._data = data

    async def pieces(self, size):
        for start in range(0, len(self._data), size):
            yield self._data[start : start + size]


async def test_evicts_the_longest_unused_file_that_nobody_holds(tmp_path):
    import os

    store = ArtifactStore(tmp_path / "store", max_bytes=35, reserve_bytes=0)
    data = [bytes([letter]) * 10 for letter in b"abcd"]
    refs = [ref(f"{index}", item) for index, item in enumerate(data)]
    fetcher = Fetcher(store, Disk(*data))
    await fetcher.fetch_all(refs[:3], nothing)
    for age, item in zip((100, 300, 200), refs, strict=False):
        os.utime(store.path(item.sha256), (age, age))
    store.hold("r1", [refs[0]])  # the oldest, and in use
    store.hold("r2", [refs[3]])
    await fetcher.fetch_all([refs[3]], nothing)
    assert [store.has(item) for item in refs] == [True, True, False, True]
    store.hold("r3", refs)
    with pytest.raises(Fault) as caught:
        await fetcher.fetch_all([refs[2]], nothing)
    assert caught.value.reason == "StoreFull"
    assert "MILLPOND_AGENT_STORE_GIB" in caught.value.message
    store.release("r1")
    store.release("r3")
    await fetcher.fetch_all([refs[2]], nothing)
    assert store.has(refs[2])
    assert store.has(refs[3])


async def test_a_full_disk_is_said_before_a_byte_is_taken(tmp_path):
    store = ArtifactStore(tmp_path / "store", max_bytes=0, reserve_bytes=50, free=lambda _: 100)
    source = Disk(b"x" * 60)
    with pytest.raises(Fault) as caught:
        await Fetcher(store, source).fetch_all([ref("a", b"x" * 60)], nothing)
    assert caught.value.reason == "DiskFull"
    assert source.asked == []


async def test_assembles_a_folder_of_links(tmp_path):
    store = ArtifactStore(tmp_path / "store", max_bytes=0, reserve_bytes=0)
    refs = [ref("config.json", b"{}"), ref("a/b/weights.bin", b"w")]
    await Fetcher(store, Disk(b"{}", b"w")).fetch_all(refs, nothing)
    folder = tmp_path / "model"
    (folder / "left").mkdir(parents=True)
    store.assemble(refs, folder)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "a/b/weights.bin",
        "config.json",
    ]
    assert (folder / "config.json").samefile(store.path(refs[0].sha256))
    with pytest.raises(Fault) as caught:
        store.assemble([refs[0], ref("config.json/x", b"w")], folder)
    assert (caught.value.reason, caught.value.retry) == ("UnsafePath", Retry.NEVER)


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/passwd",
        "a/../../x",
        "a//b",
        "a/./b",
        "",
        "a/",
        "..",
        "a\\..\\b",
        "a\0b",
        "a\nb",
        "x" * 201,
        "a/b/c/d/e/f/g/h/i",
        "é" * 101,
    ],
)
async def test_names_that_leave_the_folder_are_refused(store, tmp_path, path):
    with pytest.raises(Fault) as caught:
        store.assemble([ref(path, b"x")], tmp_path / "model")
    assert (caught.value.reason, caught.value.retry) == ("UnsafePath", Retry.NEVER)
    assert list((tmp_path / "model").iterdir()) == []


@pytest.mark.parametrize("path", ["a", "model.safetensors", "sub/dir/x..y", "模型.bin", "a b", ".hidden"])
def test_names_that_are_fine(path):
    assert paths.safe_relative(path) == path


@pytest.mark.parametrize("value", ["", "..", "a/b", "a" * 65, "-x", "A\n"])
def test_ids_that_cannot_be_folders_are_refused(value):
    with pytest.raises(Fault):
        paths.safe_id(value)


@pytest.mark.parametrize("value", ["", "../x", "A" * 64, "0" * 63])
def test_digests_are_lower_case_hex(store, value):
    with pytest.raises(Fault):
        store.path(value)


async def test_a_traversal_in_an_assignment_fails_the_replica_for_good(rig, control):
    from runtime.wire.reports import Phase

    outside = rig.folder / "replicas" / "escaped"
    await rig.start()
    control.assign(rig.replica(artifacts=[control.artifact("../../escaped", b"x")]))
    seen = await control.phase("r1", Phase.FAILED, reason="UnsafePath")
    assert "'../../escaped'" in seen.message
    assert not outside.exists()
    assert not rig.engines()
