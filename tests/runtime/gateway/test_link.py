"""The gateway and its control plane: joining, following the table, losing it, handing over usage."""

import json
import stat

import msgspec
import pytest
import structlog

from runtime.base.clock import FakeClock
from runtime.gateway.table import TableKeeper, TableRefused
from runtime.wire.version import ProtocolVersion
from tests.build.gateway_peers import (
    ACME_KEY,
    BETA_KEY,
    CREDENTIAL,
    JOIN_TOKEN,
    SECOND_TOKEN,
    a_key,
    a_replica,
    a_table,
    a_variant,
    an_endpoint,
    ask,
    until,
)


async def test_it_joins_once_and_keeps_its_credential_to_itself(start_gateway, control, tmp_path):
    async with start_gateway():
        await until(lambda: control[0].reports, "the first report")
    report = control[0].reports[-1]
    assert (report.gateway_id, report.url, report.applied_generation) == ("gateway-1", "http://gateway.test", 1)
    path = tmp_path / "gateway" / "credential.json"
    assert json.loads(path.read_text())["credential"] == CREDENTIAL
    private = [path, path.with_name("routes.json"), path.with_name("machine_id")]
    assert {stat.S_IMODE(each.stat().st_mode) for each in private} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    async with start_gateway():
        await until(lambda: len(control[0].reports) > 2, "it reports again")
    assert len(control[0].joins) == 1


async def test_a_token_that_cannot_be_read_is_said_and_tried_again(start_gateway, control, tmp_path):
    token_file = tmp_path / "elsewhere"
    token_file.mkdir()
    with structlog.testing.capture_logs() as said:
        async with start_gateway(wait=False, join_token_file=token_file):
            await until(lambda: [each for each in said if each["event"] == "not joined"], "why it has not joined")
            token_file.rmdir()
            token_file.write_text(JOIN_TOKEN)
            await until(lambda: control[0].reports, "the first report")
    assert str(token_file) in next(each["error"] for each in said if each["event"] == "not joined")
    assert [each for each in said if each["log_level"] == "error"] == []


async def test_a_removed_gateway_serves_no_more_until_it_joins_with_a_new_token(start_gateway, control, tmp_path):
    fake = control[0]
    fake.table = a_table(*fake.table.endpoints, generation=9)
    async with start_gateway() as gateway:
        fake.removed = True
        await until(lambda: gateway.core.keeper.removed, "the gateway knows")
        status, body, _ = await gateway.post(ask())
        assert (status, body["error"]["code"]) == (503, "gateway_removed")
        assert (await gateway.get("/health"))[1]["problem"] == "gateway_removed"

        # Another control plane may count from the start: joining anew drops what was known.
        fake.table = a_table(*fake.table.endpoints, generation=2)
        (tmp_path / "join-token").write_text(SECOND_TOKEN)
        await until(lambda: gateway.core.keeper.generation == 2, "it has joined again")
        assert (await gateway.post(ask()))[0] == 200
    assert [join.machine_id for join in fake.joins] == [fake.joins[0].machine_id] * 2


async def test_a_revoked_key_is_refused_as_soon_as_a_hint_says_so_and_the_gateway_acknowledges(start_gateway, control):
    fake = control[0]
    async with start_gateway(reread_seconds=600.0) as gateway:
        await until(lambda: fake.listeners == 1, "the gateway listens")
        assert (await gateway.post(ask()))[0] == 200
        fake.table = a_table(*fake.table.endpoints, generation=2, keys=[a_key(BETA_KEY, "beta")])
        fake.hint(2)
        await until(lambda: fake.reports[-1].applied_generation == 2, "generation 2 is acknowledged")
        status, body, _ = await gateway.post(ask())
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_without_hints_the_table_is_re_read_by_time(start_gateway, control):
    fake = control[0]
    async with start_gateway() as gateway:
        fake.table = a_table(generation=2)
        await until(lambda: gateway.core.keeper.generation == 2, "generation 2 is served")
        assert (await gateway.get("/v1/models", authorization=f"Bearer {ACME_KEY}"))[1]["data"] == []


async def test_a_hint_of_what_is_known_costs_nothing(start_gateway, control):
    fake = control[0]
    async with start_gateway(reread_seconds=600.0):
        await until(
            lambda: fake.listeners and [report.applied_generation for report in fake.reports[-1:]] == [1],
            "the gateway is settled",
        )
        reads = fake.table_reads
        fake.hint(1)
        fake.table = a_table(*fake.table.endpoints, generation=2)
        fake.hint(2)
        await until(lambda: fake.reports[-1].applied_generation == 2, "generation 2 is acknowledged")
        assert fake.table_reads == reads + 1


async def test_an_older_generation_is_refused_and_serving_goes_on(start_gateway, control):
    fake = control[0]
    fake.table = a_table(*fake.table.endpoints, generation=7)
    async with start_gateway() as gateway:
        fake.table = a_table(generation=6)
        reads = fake.table_reads
        await until(lambda: fake.table_reads > reads + 1, "it was read again")
        assert gateway.core.keeper.generation == 7
        assert (await gateway.post(ask()))[0] == 200


async def test_with_the_control_plane_gone_it_serves_on_and_delivers_usage_once_after(start_gateway, control):
    fake = control[0]
    async with start_gateway() as gateway:
        fake.down = True
        for _ in range(5):
            assert (await gateway.post(ask()))[0] == 200
        assert fake.booked == {}
        _, health, _ = await gateway.get("/health")
        assert (health["status"], health["journal_pending"]) == ("ok", 5)
        fake.down = False
        await until(lambda: len(fake.booked) == 5, "all is booked")
        await until(lambda: gateway.core.journal.pending == 0, "the journal is empty")
    assert fake.received == 5


async def test_after_its_stated_age_a_table_serves_no_more_and_says_so(start_gateway, control):
    fake = control[0]
    async with start_gateway(max_table_age_seconds=0.05, reread_seconds=0.02) as gateway:
        fake.down = True
        await until(lambda: gateway.core.keeper.age() > 0.05, "the table is too old")
        status, body, _ = await gateway.post(ask())
        assert (status, body["error"]["code"]) == (503, "table_too_old")
        status, health, _ = await gateway.get("/health")
        assert (status, health["problem"]) == (503, "table_too_old")
        fake.down = False
        await until(lambda: gateway.core.keeper.age() < 0.05, "the table is confirmed")


async def test_a_record_that_the_control_plane_will_never_take_does_not_hold_up_the_others(
    start_gateway, control, tmp_path
):
    fake = control[0]
    fake.refuse_usage_of = "poison"
    async with start_gateway(deliver_seconds=0.2) as gateway:
        for name in ("a", "b", "poison", "c", "d"):
            await gateway.post(ask(), x_request_id=name)
        await until(lambda: len(fake.booked) == 4, "the others are booked")
        await until(lambda: gateway.core.journal.pending == 0, "the journal is empty")
    assert {record.request_id for record in fake.booked.values()} == {"a", "b", "c", "d"}
    kept = (tmp_path / "gateway" / "journal" / "refused.jsonl").read_text().splitlines()
    assert [json.loads(line)["request_id"] for line in kept] == ["poison"]


async def test_before_its_first_table_it_says_so(start_gateway, control):
    control[0].down = True
    async with start_gateway(wait=False) as gateway:
        status, body, headers = await gateway.post(ask())
        assert (status, body["error"]["code"]) == (503, "no_table")
        assert "retry-after" in headers


class TestKeeper:
    """The table on its own, with time in the test's hand."""

    def keeper(self, tmp_path, clock):
        return TableKeeper(tmp_path / "routes.json", clock)

    async def test_what_was_saved_is_loaded_with_its_age(self, tmp_path):
        clock = FakeClock()
        first = self.keeper(tmp_path, clock)
        first.offer(a_table(an_endpoint("chat"), generation=5))
        await first.save()
        clock.advance(3600)
        second = self.keeper(tmp_path, clock)
        second.load()
        assert (second.generation, second.age()) == (5, 3600.0)
        second.confirm()
        assert second.age() == 0.0
        await second.save()
        clock.advance(10)
        third = self.keeper(tmp_path, clock)
        third.load()
        assert third.age() == 10.0

    async def test_a_damaged_or_missing_file_is_no_table(self, tmp_path):
        keeper = self.keeper(tmp_path, FakeClock())
        keeper.load()
        (tmp_path / "routes.json").write_bytes(b'{"confirmed_at": 1, "table": {"gener')
        keeper.load()
        assert keeper.snapshot is None

    async def test_another_major_protocol_and_an_unusable_pepper_are_refused(self, tmp_path):
        keeper = self.keeper(tmp_path, FakeClock())
        for wrong in (
            msgspec.structs.replace(a_table(), protocol=ProtocolVersion(major=2)),
            msgspec.structs.replace(a_table(), key_pepper="not hex"),
        ):
            with pytest.raises(TableRefused):
                keeper.offer(wrong)
        assert keeper.snapshot is None

    async def test_names_are_the_callers(self, tmp_path):
        keeper = self.keeper(tmp_path, FakeClock())
        shared = an_endpoint("chat", a_variant(a_replica("http://x")), granted_tenant_ids=["beta", "gone"])
        keeper.offer(a_table(shared, an_endpoint("chat", tenant_id="beta"), an_endpoint("lost", tenant_id="gone")))
        names = keeper.snapshot.names
        assert names["beta", "chat"].tenant_id == "beta"
        assert names["beta", "acme-corp/chat"].tenant_id == "acme"
        assert names["acme", "acme-corp/chat"] is names["acme", "chat"]
        assert ("acme", "beta-inc/chat") not in names
        assert [name for name, _ in keeper.snapshot.callable_by("beta")] == ["acme-corp/chat", "chat"]
