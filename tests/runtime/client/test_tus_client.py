"""The upload goes on where it stopped, whatever breaks, and gives up with a sentence when nothing helps."""

import pytest

from runtime.client import tus
from runtime.client.errors import ApiError, Unreachable
from tests.runtime.client.shaky_tus import DROP, KEEP_HALF, ShakyTus

CONTENT = bytes(range(256)) * 40
METADATA = {"version": "v-1", "path": "modell/gewichte ü.safetensors", "sha256": "0" * 64}


class Run:
    """One upload of :data:`CONTENT` to a server, with pauses that only count."""

    def __init__(self, tmp_path, server, *, url="", content=CONTENT, declared=None):
        self.server = server
        self.pauses = []
        self.offsets = []
        source = tmp_path / "file"
        source.write_bytes(content)
        self.job = tus.Job(source, len(content) if declared is None else declared, METADATA, url)

    def upload(self):
        uploader = tus.Uploader(self.server.client(), "/uploads", piece_bytes=1000, sleep=self.pauses.append)
        uploader.upload(self.job, self.offsets.append)


def test_a_file_arrives_in_checked_pieces_with_its_metadata(tmp_path):
    run = Run(tmp_path, ShakyTus())
    run.upload()
    assert run.server.uploads == {"u1": CONTENT}
    assert run.server.metadata["u1"] == METADATA
    assert run.offsets == [0, *range(1000, 10240, 1000), 10240]
    assert run.pauses == []


def test_an_empty_file_is_created_and_nothing_more(tmp_path):
    run = Run(tmp_path, ShakyTus(), content=b"")
    run.upload()
    assert run.server.calls == [("POST", "/uploads")]


@pytest.mark.parametrize("fault", [DROP, KEEP_HALF, 423, 409, 429, 460, 500, 502, 503])
def test_after_a_fault_the_server_is_asked_how_far_it_got(tmp_path, fault):
    run = Run(tmp_path, ShakyTus(faults=[None, fault, fault]))
    run.upload()
    assert run.server.uploads == {"u1": CONTENT}
    assert [method for method, _ in run.server.calls].count("HEAD") == 2
    assert run.pauses == ([0.5, 0.5] if fault == KEEP_HALF else [0.5, 1.0])


def test_progress_starts_the_patience_anew(tmp_path):
    run = Run(tmp_path, ShakyTus(faults=[DROP, None] * 9))
    run.upload()
    assert run.server.uploads == {"u1": CONTENT}


def test_an_upload_begun_before_goes_on_from_its_offset(tmp_path):
    server = ShakyTus()
    server.uploads["u9"] = CONTENT[:5000]
    run = Run(tmp_path, server, url="/uploads/u9")
    run.upload()
    assert server.uploads == {"u9": CONTENT}
    assert server.calls[0] == ("HEAD", "/uploads/u9")
    assert run.offsets[0] == 5000


def test_an_expired_upload_is_begun_again(tmp_path):
    run = Run(tmp_path, ShakyTus(), url="/uploads/gone")
    run.upload()
    assert run.server.uploads == {"u1": CONTENT}


def test_a_server_that_stays_away_ends_the_upload_with_what_to_do(tmp_path):
    run = Run(tmp_path, ShakyTus(faults=[DROP] * 100))
    with pytest.raises(Unreachable, match="Run the same command again"):
        run.upload()
    assert len(run.pauses) == tus.MAX_FAILURES - 1
    assert max(run.pauses) <= tus.LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize("status", [400, 401, 403, 413, 415])
def test_a_refusal_is_final_at_once(tmp_path, status):
    run = Run(tmp_path, ShakyTus(faults=[status]))
    with pytest.raises(ApiError) as refusal:
        run.upload()
    assert (refusal.value.status, refusal.value.code) == (status, "made_up")
    assert run.pauses == []


def test_a_conflict_at_the_creation_is_final(tmp_path):
    run = Run(tmp_path, ShakyTus(creation_faults=[409]))
    with pytest.raises(ApiError):
        run.upload()
    assert run.pauses == []


def test_a_file_that_shrank_is_noticed(tmp_path):
    run = Run(tmp_path, ShakyTus(), declared=len(CONTENT) + 1)
    with pytest.raises(tus.SourceChanged, match="were declared"):
        run.upload()
    assert run.server.calls == []
