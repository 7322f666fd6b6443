"""The deciding parts on their own: limits, balance, the event meter, the journal, settings."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.gateway.journal import Journal
from runtime.gateway.metrics import OTHER, Bounded
from runtime.gateway.settings import SettingsError, load
from runtime.gateway.sse import Meter
from runtime.wire.inference import Usage as Tokens
from runtime.wire.usage import UsageRecord


class TestMeter:
    STREAM = (
        b': usage {"prompt_tokens":5,"completion_tokens":1}\n\ndata: {"a":1}\n\n'
        b': usage {"prompt_tokens":5,"completion_tokens":2}\ndata: {"b": ": usage {}"}\n\n'
        b": a comment of another kind\n\n"
        b': usage not json\n\n: usage {"prompt_tokens":5,"completion_tokens":3}\r\n\r\ndata: [DONE]\n\n'
    )
    WANT = b'data: {"a":1}\n\ndata: {"b": ": usage {}"}\n\n: a comment of another kind\n\ndata: [DONE]\n\n'

    @settings(max_examples=100, deadline=None)
    @given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
    def test_however_the_bytes_arrive_only_the_metering_is_taken_out(self, cuts):
        meter, out, start = Meter(), b"", 0
        for end in [*sorted(cuts), len(self.STREAM)]:
            out += meter.feed(self.STREAM[start:end])
            start = end
        assert out == self.WANT
        assert meter.usage == Tokens(prompt_tokens=5, completion_tokens=3)
        assert (meter.done, meter.failed, meter.events) == (True, False, 3)
        assert meter.between_events

    @pytest.mark.parametrize("event", [
        b'data: {"a":1}', b'data: {"error":{"code":"x"}}', b"data: [DONE]", b'data: {"a":1}\rdata: {"b":2}', b": note",
        b'data: {"a":1}\ndata: {"b":2}', b'data: {"a":1}\n\ndata: [DONE]',
    ])  # fmt: skip
    def test_a_whole_piece_is_read_as_its_lines_are(self, event):
        piece = b': usage {"prompt_tokens":5,"completion_tokens":1}\n\n' + event + b"\n\n"
        whole, slow = Meter(), Meter()
        assert whole.feed(piece) == b"".join(slow.feed(bytes([byte])) for byte in piece)
        seen = [(one.usage, one.done, one.failed, one.events, one.between_events) for one in (whole, slow)]
        assert seen[0] == seen[1]

    def test_an_event_is_passed_on_when_its_last_line_is_there(self):
        meter = Meter()
        assert meter.feed(b'data: {"x"') == b""
        assert meter.between_events
        assert meter.feed(b":1}\n") == b'data: {"x":1}\n'
        assert not meter.between_events
        assert meter.feed(b"\n") == b"\n"


def a_record(number: int) -> UsageRecord:
    return UsageRecord(
        id=f"{number:032d}",
        request_id=f"r{number}",
        tenant_id="t",
        owner_tenant_id="t",
        key_id="k",
        endpoint_id="e",
        deployment_id="d",
        revision_id="v",
        replica_id="x",
        operation="completions",
        status=200,
        outcome="ok",
        started_at=1.0,
        duration_ms=1.0,
    )


class TestJournal:
    def open(self, folder: Path, **changes) -> Journal:
        bounds = {"segment_bytes": 2000, "max_bytes": 10**6, "fsync_seconds": 0.01, "fsync_records": 4}
        return Journal(folder, **{**bounds, **changes})

    async def take(self, journal: Journal, limit: int = 3, commit: bool = True) -> list[str]:
        taken = []
        while (batch := journal.read(limit)).records:
            taken += [record.request_id for record in batch.records]
            if not commit:
                return taken
            await journal.commit(batch)
        await journal.commit(batch)
        return taken

    async def test_records_come_back_in_order_over_segments_and_restarts(self, tmp_path):
        journal = self.open(tmp_path)
        for i in range(20):
            journal.append(a_record(i))
        assert journal.pending == 20
        assert len(list(tmp_path.glob("usage-*.jsonl"))) > 3
        assert await self.take(journal, commit=False) == ["r0", "r1", "r2"]
        booked = journal.read(7)
        await journal.commit(booked)
        del journal  # as a kill would leave it: nothing is closed

        again = self.open(tmp_path)
        taken = len(booked.records)
        assert again.pending == 20 - taken
        again.append(a_record(20))
        assert await self.take(again) == [f"r{i}" for i in range(taken, 21)]
        assert again.pending == 0
        assert len(list(tmp_path.glob("usage-*.jsonl"))) == 1
        assert await self.take(self.open(tmp_path)) == []

    @pytest.mark.parametrize("cut", [1, 50, 200])
    async def test_a_torn_last_line_is_skipped_and_the_rest_is_whole(self, tmp_path, cut):
        journal = self.open(tmp_path, segment_bytes=10**6)
        for i in range(3):
            journal.append(a_record(i))
        (path,) = tmp_path.glob("usage-*.jsonl")
        os.truncate(path, path.stat().st_size - cut)
        again = self.open(tmp_path)
        again.append(a_record(3))
        assert await self.take(again) == ["r0", "r1", "r3"]
        assert (again.skipped, again.pending) == (1, 0)

    async def test_a_damaged_line_costs_itself_only(self, tmp_path):
        journal = self.open(tmp_path, segment_bytes=10**6)
        for i in range(3):
            journal.append(a_record(i))
        (path,) = tmp_path.glob("usage-*.jsonl")
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(lines[0] + b'{"id": 7}\n' + lines[2])
        again = self.open(tmp_path)
        assert await self.take(again) == ["r0", "r2"]
        assert again.pending == 0

    async def test_an_unreadable_position_delivers_again_rather_than_not(self, tmp_path):
        journal = self.open(tmp_path)
        journal.append(a_record(0))
        (tmp_path / "booked.json").write_bytes(b"{")
        assert await self.take(self.open(tmp_path)) == ["r0"]

    async def test_full_is_said_before_it_overflows(self, tmp_path):
        journal = self.open(tmp_path, max_bytes=3000)
        count = 0
        while not journal.full:
            journal.append(a_record(count))
            count += 1
        assert 3 < count < 15
        await self.take(journal)
        assert not journal.full

    async def test_what_the_disk_refuses_waits_and_is_written_later(self, tmp_path, monkeypatch):
        journal = self.open(tmp_path)
        journal.append(a_record(0))
        write = os.write

        def full(descriptor, data):
            write(descriptor, data[:10])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        journal.append(a_record(1))
        monkeypatch.setattr(os, "write", write)
        journal.append(a_record(2))
        await journal.sync()
        assert await self.take(journal) == ["r0", "r1", "r2"]
        assert journal.skipped == 0


def test_labels_are_bounded_and_forgotten_with_what_they_name():
    labels = Bounded(2)
    assert [labels.of(name) for name in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]
    assert labels.keep_only(frozenset({"b"})) == {"a"}
    assert labels.of("c") == "c"


class TestSettings:
    def test_home_names_the_folder_and_the_rest_has_defaults(self):
        settings = load({"MILLPOND_HOME": "/srv/pond", "MILLPOND_CONTROL_URL": "https://control.test"})
        assert settings.directory == Path("/srv/pond/gateway")
        assert (settings.host, settings.port) == ("127.0.0.1", 8101)
        assert settings.max_table_age_seconds == 86_400

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("MILLPOND_GATEWAY_PORT", "99999"),
            ("MILLPOND_GATEWAY_DRAIN_SECONDS", "-1"),
            ("MILLPOND_GATEWAY_MAX_BODY_BYTES", "1.5"),
            ("MILLPOND_GATEWAY_DRAIN_SECONDS", "nan"),
            ("MILLPOND_CONTROL_URL", "control.test"),
            ("MILLPOND_GATEWAY_LOG_JSON", "perhaps"),
        ],
    )
    def test_a_wrong_value_names_its_variable(self, name, value):
        with pytest.raises(SettingsError, match=name):
            load({"MILLPOND_HOME": "/srv/pond", name: value})
