"""How often nodes report, by their number."""

import pytest

from fleet import pacing
from tests.build.machines import FakeAgent


@pytest.mark.parametrize(
    ("nodes", "interval", "lease"), [(0, 2, 20), (1, 2, 20), (100, 2, 20), (200, 4, 20), (400, 8, 40), (1000, 20, 100)]
)
def test_the_interval_grows_with_the_fleet_and_the_lease_with_it(nodes, interval, lease):
    asked = pacing.pace(nodes)
    assert (asked.interval_seconds, asked.lease_seconds) == (interval, lease)


def test_several_reports_fit_into_every_lease():
    for nodes in (1, 50, 500, 5000):
        asked = pacing.pace(nodes)
        assert asked.lease_seconds >= pacing.MISSES * asked.interval_seconds
        assert nodes / asked.interval_seconds <= 50


@pytest.mark.django_db
def test_an_agent_is_told(monkeypatch):
    agent = FakeAgent()
    agent.join()
    monkeypatch.setattr(pacing, "current", lambda: pacing.pace(1000))
    told = agent.report()
    assert (told.interval_seconds, told.lease_seconds) == (20, 100)
