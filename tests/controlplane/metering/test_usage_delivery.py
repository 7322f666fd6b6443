"""The door for gateways: ``POST /internal/v1/gateways/usage``."""

import uuid

import pytest
from django.test import Client

from fleet.models import Gateway
from kernel import clock, ids, scope
from metering.models import UsageHour
from runtime.wire import codec
from runtime.wire.errors import ErrorBody, ErrorCode
from runtime.wire.usage import UsageBatch, UsageReply
from runtime.wire.version import ProtocolVersion
from tenants.services import digest_of
from tests.controlplane.metering.usage_records import batch, record

pytestmark = pytest.mark.django_db
TENANT = uuid.UUID(int=1)


class Door:
    """A gateway with its credential."""

    def __init__(self):
        self.secret = ids.new_secret("mpn").text
        self.gateway = Gateway.objects.create(
            name="gw", machine_id=str(uuid.uuid4()), credential_digest=digest_of(self.secret), created_at=clock.now()
        )

    def post(self, body, secret=None):
        response = Client().post(
            "/internal/v1/gateways/usage",
            data=body if isinstance(body, bytes) else codec.encode(body),
            content_type="application/json",
            headers={"Authorization": f"Bearer {secret or self.secret}"},
        )
        assert response["Content-Type"] == "application/json"
        return response

    def refused(self, body, secret=None):
        response = self.post(body, secret)
        return response.status_code, codec.decode(response.content, ErrorBody).code


@pytest.fixture
def door():
    return Door()


def booked():
    with scope.all_tenants():
        return sum(hour.requests for hour in UsageHour.objects.all())


def test_a_batch_is_booked_and_a_repeat_is_acknowledged(door):
    sent = batch([record(TENANT), record(TENANT)], door.gateway.id)
    assert codec.decode(door.post(sent).content, UsageReply) == UsageReply(accepted=2, duplicates=0)
    assert codec.decode(door.post(sent).content, UsageReply) == UsageReply(accepted=0, duplicates=2)
    assert booked() == 2


def test_an_empty_batch_is_fine(door):
    assert codec.decode(door.post(batch([], door.gateway.id)).content, UsageReply) == UsageReply(
        accepted=0, duplicates=0
    )


def test_a_record_that_makes_no_sense_does_not_stop_the_journal(door):
    sent = batch([record(TENANT, status=7), record(TENANT)], door.gateway.id)
    assert door.post(sent).status_code == 200
    assert booked() == 1


def test_only_a_gateway_may_deliver_and_only_under_its_own_name(door):
    good = batch([record(TENANT)], door.gateway.id)
    assert door.refused(good, "mpn_unknown") == (401, ErrorCode.UNAUTHENTICATED)
    assert door.refused(good, "mp_abcdefghijkm_" + "x" * 43) == (401, ErrorCode.UNAUTHENTICATED)
    assert door.refused(batch([record(TENANT)])) == (400, ErrorCode.MALFORMED)
    Gateway.objects.update(removed_at=clock.now())
    assert door.refused(good) == (410, ErrorCode.REMOVED)
    assert booked() == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"gateway_id": "x"}'])
def test_bytes_that_are_no_batch_are_malformed(door, body):
    assert door.refused(body) == (400, ErrorCode.MALFORMED)


def test_another_major_version_is_refused_by_name(door):
    sent = UsageBatch(gateway_id=str(door.gateway.id), records=[], protocol=ProtocolVersion(major=2, minor=0))
    assert door.refused(sent) == (400, ErrorCode.UNSUPPORTED_PROTOCOL)


def test_a_batch_above_the_limit_is_refused_whole(door):
    sent = batch([record(TENANT, id=f"r-{number}") for number in range(5_001)], door.gateway.id)
    assert door.refused(sent) == (400, ErrorCode.MALFORMED)
    assert booked() == 0


def test_a_body_above_the_limit_is_refused_as_too_large(door, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000
    assert door.refused(batch([record(TENANT) for _ in range(10)], door.gateway.id)) == (413, ErrorCode.MALFORMED)


def test_only_post_is_answered(door):
    assert Client().get("/internal/v1/gateways/usage").status_code == 405
