"""Short-term series: one point per replica and interval, a window back, and nothing older than is kept."""

import datetime
import uuid

import pytest

from kernel import clock
from telemetry import series
from telemetry.models import Sample
from telemetry.series import Point

pytestmark = pytest.mark.django_db
NOON = datetime.datetime(2026, 5, 1, 12, 0, 3, tzinfo=datetime.UTC)
ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)


def point(replica_id=ONE, seconds=0.0, **values):
    return Point(replica_id=replica_id, at=NOON + datetime.timedelta(seconds=seconds), **values)


def test_one_point_per_interval_and_replica():
    series.write([point(requests_running=1), point(seconds=4, requests_running=2), point(TWO), point(seconds=8)])
    assert Sample.objects.count() == 3
    with clock.frozen(NOON):
        found = series.series([ONE, TWO])
    assert [(p.at.second, p.requests_running) for p in found[ONE]] == [(0, 1), (10, 0)]
    assert list(found) == [ONE, TWO] or set(found) == {ONE, TWO}


def test_a_window_reaches_back_and_old_points_go():
    series.write([point(), point(seconds=1800, level=0.5)])
    with clock.frozen(NOON + datetime.timedelta(seconds=1810)):
        assert len(series.series([ONE], minutes=60)[ONE]) == 2
        (late,) = series.series([ONE], minutes=5)[ONE]
        assert late.level == 0.5
        assert series.series([TWO]) == {}
    with clock.frozen(NOON + series.KEEP + datetime.timedelta(seconds=60)):
        assert series.prune() == 1
    assert Sample.objects.count() == 1


def test_the_window_is_bounded():
    series.write([point()])
    with clock.frozen(NOON + datetime.timedelta(minutes=121)):
        assert series.series([ONE], minutes=10_000) == {}
