"""The deciding parts on their own: limits, balance, the event meter, the journal, settings."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.base.clock import FakeClock
from runtime.gateway import balance
from runtime.gateway.auth import Caller
from runtime.gateway.journal import Journal
from runtime.gateway.limits import LocalLimiter, Usage
from runtime.gateway.metrics import OTHER, Bounded
from runtime.gateway.refusals import Refusal
from runtime.gateway.settings import SettingsError, load
from runtime.gateway.sse import Meter
from runtime.wire.inference import Usage as Tokens
from runtime.wire.routes import KeyEntry, RateLimits, TenantEntry
from runtime.wire.usage import UsageRecord
from tests.build.gateway_peers import a_replica, a_variant, an_endpoint


class TestLimits:
    def caller(self, *, key=None, tenant=None):
        return Caller(
            KeyEntry(id="k", digest="d", tenant_id="t", limits=key or RateLimits()),
            TenantEntry(id="t", slug="t", prefix_salt="s", limits=tenant or RateLimits()),
        )

    @pytest.mark.parametrize(
        "limits",
        [
            pytest.param(RateLimits(requests_per_minute=5), id="requests"),
            pytest.param(RateLimits(tokens_per_minute=50), id="tokens"),
        ],
    )
    async def test_after_the_stated_wait_the_request_is_accepted_and_not_a_second_before(self, limits):
        clock = FakeClock()
        limiter = LocalLimiter(clock)
        caller = self.caller(key=limits)
        for _ in range(5):
            await limiter.settle(await limiter.admit(caller, 10), 10)
            clock.advance(3)
        with pytest.raises(Refusal) as refused:
            await limiter.admit(caller, 10)
        wait = refused.value.retry_after
        clock.advance(wait - 1)
        with pytest.raises(Refusal):
            await limiter.admit(caller, 10)
        clock.advance(1)
        await limiter.admit(caller, 10)

    @settings(max_examples=60, deadline=None)
    @given(steps=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=80))
    async def test_no_minute_ever_holds_more_than_the_limit(self, steps):
        clock, accepted = FakeClock(), []
        limiter = LocalLimiter(clock)
        for wait, tokens in steps:
            clock.advance(wait)
            try:
                await limiter.admit(self.caller(tenant=RateLimits(requests_per_minute=6, tokens_per_minute=90)), tokens)
            except Refusal:
                continue
            accepted.append((clock.monotonic(), tokens))
        for end, _ in accepted:
            minute = [tokens for at, tokens in accepted if end - 60 < at <= end]
            assert len(minute) <= 6
            assert sum(minute) <= 90

    async def test_settling_gives_back_what_was_reserved_too_much_and_only_once(self):
        limiter = LocalLimiter(FakeClock())
        caller = self.caller(key=RateLimits(tokens_per_minute=100, max_parallel_requests=1))
        lease = await limiter.admit(caller, 90)
        for _ in range(3):
            await limiter.settle(lease, 10)
        assert dict(lease.headers)[b"x-ratelimit-remaining-tokens"] == b"10"
        again = await limiter.admit(caller, 90)
        assert dict(again.headers)[b"x-ratelimit-remaining-tokens"] == b"0"
        with pytest.raises(Refusal, match="1 parallel requests"):
            await limiter.admit(caller, 1)

    async def test_the_tenants_limit_stands_above_the_keys(self):
        limiter = LocalLimiter(FakeClock())
        caller = self.caller(key=RateLimits(requests_per_minute=10), tenant=RateLimits(requests_per_minute=1))
        await limiter.admit(caller, 1)
        with pytest.raises(Refusal, match="The tenant's limit of 1 requests per minute"):
            await limiter.admit(caller, 1)

    def test_a_long_silence_empties_the_minute(self):
        usage = Usage()
        usage.roll(1_000)
        usage.add(1_000, 3, 30)
        usage.roll(1_000_000)
        assert usage.idle
        usage.add(1_000, 1, 1)
        assert usage.idle


class TestBalance:
    def pick(self, endpoint, **changes):
        arguments = {"draw": 0.5, "tie": 0, "outstanding": lambda _: 0, **changes}
        return balance.choose(endpoint, **arguments)

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
    def test_shares_follow_the_weights_in_any_order_and_weight_zero_gets_nothing(self, order):
        variants = [
            a_variant(a_replica("http://a", 1), weight=90, version=1),
            a_variant(a_replica("http://b", 2), weight=10, version=2),
            a_variant(a_replica("http://c", 3), weight=0, version=3),
        ]
        endpoint = an_endpoint("chat", *(variants[i] for i in order))
        counts = {1: 0, 2: 0, 3: 0}
        for i in range(1000):
            counts[self.pick(endpoint, draw=i / 1000).variant.version] += 1
        assert counts == {1: 900, 2: 100, 3: 0}

    def test_a_variant_without_replicas_leaves_its_share_to_the_others(self):
        endpoint = an_endpoint("chat", a_variant(weight=99), a_variant(a_replica("http://b"), weight=1, version=2))
        assert {self.pick(endpoint, draw=i / 10).variant.version for i in range(10)} == {2}

    def test_the_least_loaded_replica_is_taken_and_equals_take_turns(self):
        endpoint = an_endpoint("chat", a_variant(*(a_replica("http://x", i) for i in range(4))))
        load = {"replica-0": 3, "replica-1": 1, "replica-2": 1, "replica-3": 2}
        taken = [self.pick(endpoint, tie=i, outstanding=load.get).replica.replica_id for i in range(4)]
        assert taken == ["replica-1", "replica-2", "replica-1", "replica-2"]

    def test_another_try_stays_with_its_variant_while_that_has_replicas(self):
        endpoint = an_endpoint(
            "chat",
            a_variant(a_replica("http://a", 1), a_replica("http://a", 2), weight=50),
            a_variant(a_replica("http://b", 3), weight=50, version=2),
        )
        for draw in (0.1, 0.4):
            assert self.pick(endpoint, draw=draw, excluded={"replica-1"}).replica.replica_id == "replica-2"
            assert self.pick(endpoint, draw=draw, excluded={"replica-1", "replica-2"}).variant.version == 2

    def test_nothing_left_is_none(self):
        endpoint = an_endpoint("chat", a_variant(a_replica("http://x", 1)))
        assert self.pick(endpoint, excluded={"replica-1"}) is None
        assert self.pick(an_endpoint("chat")) is None


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
