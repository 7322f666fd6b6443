"""Rollouts through REST and the loops, with an agent that starts what it is told and a gateway that reads its table."""

import datetime
import itertools
import uuid

import pytest
from django.db import IntegrityError, transaction

from kernel import clock, scope
from rollouts import advance, selectors
from rollouts.models import Rollout
from scheduling import cycle as scheduling
from serving.models import Deployment
from serving.reconcile import cycle as serving
from telemetry import outcomes
from telemetry.outcomes import Ended
from tenants.roles import Role
from tests.build import catalog, onnx
from tests.build.controlplane import client_for, make_member, make_tenant, owner_of
from tests.build.machines import GIB, FakeAgent, FakeGateway

pytestmark = pytest.mark.django_db
START = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


class Stage:
    """An endpoint ``chat`` with one deployment that serves, and everything around it, at a clock that is moved."""

    def __init__(self, replicas=2, memory_bytes=32 * GIB):
        self.now = START
        self.tenant = make_tenant("acme")
        self.client = client_for(owner_of(self.tenant))
        self.model = catalog.make_model(self.tenant)
        self.one = catalog.checked_version(self.tenant, model=self.model)
        self.two = catalog.checked_version(self.tenant, model=self.model)
        self.agent = FakeAgent(memory_bytes=memory_bytes, cpus=64, host_bytes=256 * GIB)
        self.gateway = FakeGateway()
        self._numbers = itertools.count()
        with self.at():
            self.agent.join()
            self.agent.report()
            self.gateway.join()
            body = {"endpoint": "chat", "model": self.model.name, "version": str(self.one.number), "replicas": replicas}
            made = self.post("deployments", body, 201)
            self.baseline = uuid.UUID(made["id"])
        self.beat()

    def at(self):
        return clock.frozen(self.now)

    def url(self, path):
        return f"/api/v1/tenants/acme/{path}"

    def post(self, path, body=None, status=200):
        with self.at():
            answer = self.client.post(self.url(path), body or {}, format="json")
        assert answer.status_code == status, answer.content
        return answer.json()

    def get(self, path):
        with self.at():
            answer = self.client.get(self.url(path))
        assert answer.status_code == 200, answer.content
        return answer.json()

    def beat(self, seconds=2, rounds=1):
        """Time passes; every loop runs; the agent does what it is told."""
        for _ in range(rounds):
            self.now += datetime.timedelta(seconds=seconds)
            with self.at():
                advance.run()
                serving.run()
                scheduling.run()
                self.agent.cycle()
                serving.run()
                advance.run()

    def traffic(self, deployment, count, *, failed=0, ttft=100.0):
        """``count`` requests ended now."""
        ended = [
            Ended(
                deployment_id=deployment, started_at=self.now, failed=number < failed, duration_ms=ttft + 2000,
                ttft_ms=ttft, completion_tokens=50,
            )
            for number in range(count)
        ]  # fmt: skip
        outcomes.write(ended)

    def roll_out(self, status=201, **changes):
        body = {
            "model": self.model.name, "version": str(self.two.number), "hold_seconds": 30, "min_requests": 50,
            "shares": [10, 100], **changes,
        }  # fmt: skip
        return self.post("endpoints/chat/rollouts", body, status)

    def shown(self, rollout):
        return self.get(f"rollouts/{rollout['id']}")

    def weights(self):
        """What the gateway would draw by."""
        with self.at():
            (endpoint,) = self.gateway.routes().endpoints
        return {uuid.UUID(variant.deployment_id): variant.weight for variant in endpoint.variants}

    def row(self, rollout):
        with scope.all_tenants():
            return Rollout.objects.get(id=rollout["id"])


@pytest.fixture
def stage():
    return Stage()


def to_first_share(stage, **changes):
    rollout = stage.roll_out(**changes)
    stage.beat(rounds=4)
    shown = stage.shown(rollout)
    assert shown["step_began_at"] is not None, shown
    return shown


def test_a_good_canary_is_promoted_and_the_old_one_retired(stage):
    rollout = stage.roll_out()
    candidate = uuid.UUID(rollout["candidate"])
    assert rollout["state"] == "running"
    assert stage.weights()[stage.baseline] == 100
    assert stage.weights()[candidate] == 0, "no traffic before a replica is ready"
    stage.beat(rounds=4)
    assert stage.weights() == {stage.baseline: 900, candidate: 100}
    for _ in range(4):
        stage.beat(8)
        stage.traffic(stage.baseline, 90)
        stage.traffic(candidate, 20)
    stage.beat()
    assert stage.shown(rollout)["step"] == 1
    stage.beat(rounds=3)
    assert stage.weights() == {stage.baseline: 0, candidate: 1000}
    for _ in range(4):
        stage.beat(8)
        stage.traffic(candidate, 100)
    stage.beat()
    shown = stage.shown(rollout)
    assert shown["state"] == "promoted"
    assert shown["can"]["roll_back"]
    assert [line["kind"] for line in stage.get(f"rollouts/{rollout['id']}/log")["data"]].count("verdict") == 2
    stage.beat(901)
    stage.beat(rounds=2)
    with scope.all_tenants():
        assert Deployment.objects.get(id=stage.baseline).state == "stopped"
    assert not stage.shown(rollout)["can"]["roll_back"]


def test_a_failing_canary_gives_everything_back_in_the_same_transaction(stage):
    shown = to_first_share(stage)
    candidate = uuid.UUID(shown["candidate"])
    stage.beat(8)
    stage.traffic(stage.baseline, 500)
    stage.traffic(candidate, 40, failed=20)
    stage.beat()
    shown = stage.shown(shown)
    assert shown["state"] == "rolled_back"
    assert shown["reason"] == "VerdictFailed"
    assert "error rate" in shown["message"]
    assert stage.weights() == {stage.baseline: 1000}
    stage.beat(rounds=2)
    with scope.all_tenants():
        assert Deployment.objects.get(id=candidate).state == "stopped"
        assert Deployment.objects.get(id=stage.baseline).desired_replicas == 2


def test_one_click_goes_back_after_promotion_while_the_old_one_is_warm(stage):
    shown = to_first_share(stage, shares=[100])
    candidate = uuid.UUID(shown["candidate"])
    stage.post(f"rollouts/{shown['id']}/promote")
    assert stage.weights() == {stage.baseline: 0, candidate: 1000}
    back = stage.post(f"rollouts/{shown['id']}/roll-back")
    assert back["state"] == "rolled_back"
    assert stage.weights() == {stage.baseline: 1000}


def test_promoting_early_goes_on_without_the_judge_once_all_replicas_are_ready(stage):
    shown = to_first_share(stage)
    stage.post(f"rollouts/{shown['id']}/promote")
    stage.beat(rounds=4)
    assert stage.shown(shown)["state"] == "promoted"
    assert stage.weights()[uuid.UUID(shown["candidate"])] == 1000


def test_pause_holds_everything_and_resume_judges_anew(stage):
    shown = to_first_share(stage)
    stage.post(f"rollouts/{shown['id']}/pause")
    stage.beat(8)
    stage.traffic(uuid.UUID(shown["candidate"]), 100, failed=100)
    stage.beat(60)
    assert stage.shown(shown)["state"] == "paused"
    stage.beat(10)
    assert stage.post(f"rollouts/{shown['id']}/resume")["state"] == "running"
    stage.beat(4)
    assert stage.shown(shown)["state"] == "running", "what happened before counts no more"


def test_without_traffic_it_pauses_and_says_so(stage):
    shown = to_first_share(stage)
    stage.beat(1300)
    shown = stage.shown(shown)
    assert shown["state"] == "paused"
    assert shown["reason"] == "VerdictUnclear"
    assert "0 of the 50 requests" in shown["message"]


def test_abort_leaves_the_shares_as_they_are(stage):
    shown = to_first_share(stage)
    before = stage.weights()
    assert stage.post(f"rollouts/{shown['id']}/abort")["state"] == "aborted"
    stage.beat(rounds=2)
    assert stage.weights() == before


def test_an_endpoint_has_one_rollout_at_a_time(stage):
    rollout = stage.roll_out()
    refused = stage.roll_out(status=409)
    assert refused["code"] == "endpoint_busy"
    assert refused["data"]["rollout"] == rollout["id"]
    row = stage.row(rollout)
    row.pk = uuid.uuid4()
    with scope.all_tenants(), pytest.raises(IntegrityError), transaction.atomic():
        row.save(force_insert=True)


def test_the_preview_of_a_version_that_no_engine_runs_says_that_and_speaks_of_no_room():
    """It is the dry run's answer, and what the start is refused with."""
    stage = Stage()
    sight = catalog.make_model(stage.tenant, "sight")
    version = catalog.checked_version(stage.tenant, {"m.onnx": onnx.model()}, model=sight)
    body = {"model": sight.name, "version": str(version.number), "capacity": "squeeze"}
    shown = stage.post("endpoints/chat/rollouts/preview", body)
    fit = stage.post("fit", {"model": sight.name, "version": str(version.number)})
    assert (shown["fits"], shown["reason"], shown["offers"], shown["extra_bytes"]) == (False, "NoEngine", [], 0)
    assert shown["sentence"] == fit["message"]
    for capacity in ("spare", "squeeze"):  # before a gap is to be accepted, which would be for nothing
        refused = stage.post("endpoints/chat/rollouts", body | {"capacity": capacity}, 409)
        assert "No engine here runs ONNX models." in refused["detail"]
    usual = stage.post("endpoints/chat/rollouts/preview", {"model": stage.model.name, "version": "2"})
    assert (usual["reason"], len(usual["offers"])) == ("", 3)


def test_nothing_ends_for_a_candidate_that_no_device_here_could_run():
    stage = Stage(replicas=2)
    body = {"model": stage.model.name, "version": "2", "capacity": "in_place", "config": {"products": ["B200"]}}
    shown = stage.post("endpoints/chat/rollouts/preview", body)
    assert (shown["fits"], shown["reason"], shown["offers"]) == (False, "WrongProduct", [])
    for capacity in ("in_place", "squeeze"):
        refused = stage.post("endpoints/chat/rollouts", body | {"capacity": capacity}, 409)
        assert (refused["code"], "This needs one of B200" in refused["detail"]) == ("nowhere_to_run", True)
    large = body | {"config": {"kv_cache_gib": 40}}
    assert stage.post("endpoints/chat/rollouts/preview", large)["reason"] == "InsufficientDeviceMemory"
    assert stage.post("endpoints/chat/rollouts", large, 409)["code"] == "nowhere_to_run"


def test_the_preview_names_cost_and_offers_and_a_gap_is_accepted_in_so_many_words():
    stage = Stage(replicas=1)
    with scope.all_tenants():
        Deployment.objects.filter(id=stage.baseline).update(desired_replicas=1)
    body = {"model": stage.model.name, "version": str(stage.two.number), "capacity": "in_place"}
    shown = stage.post("endpoints/chat/rollouts/preview", body)
    offers = {offer["capacity"]: offer for offer in shown["offers"]}
    assert offers["spare"]["extra_replicas"] == 1
    assert offers["spare"]["extra_bytes"] > 0
    assert not offers["squeeze"]["possible"]
    gap = offers["in_place"]["accept"]
    assert "does not answer" in gap
    assert shown["plan"]["extra_replicas"] == 0
    refused = stage.roll_out(status=400, capacity="in_place", shares=[])
    assert refused["code"] == "gap_not_accepted"
    assert refused["data"]["accept"] == gap
    rollout = stage.roll_out(capacity="in_place", shares=[], accept=gap)
    stage.beat(rounds=5)
    assert stage.weights()[uuid.UUID(rollout["candidate"])] == 1000


def test_going_back_from_in_place_starts_the_old_one_again():
    stage = Stage(replicas=1)
    gap = "chat does not answer while the candidate loads"
    rollout = stage.roll_out(capacity="in_place", shares=[], accept=gap)
    stage.beat(rounds=5)
    candidate = uuid.UUID(rollout["candidate"])
    assert stage.weights()[candidate] == 1000
    back = stage.post(f"rollouts/{rollout['id']}/roll-back")
    assert back["state"] == "rolling_back"
    assert stage.weights()[candidate] == 1000, "the candidate serves until the baseline can"
    stage.beat(rounds=5)
    assert stage.shown(rollout)["state"] == "rolled_back"
    assert stage.weights() == {stage.baseline: 1000}


def test_a_deleted_side_ends_the_rollout(stage):
    shown = to_first_share(stage)
    with stage.at():
        assert stage.client.delete(stage.url(f"deployments/{shown['candidate']}")).status_code == 202
    stage.beat(rounds=3)
    shown = stage.shown(shown)
    assert (shown["state"], shown["reason"]) == ("aborted", "DeploymentDeleted")


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"version": "1"}, "same_revision"), ({"shares": [50, 10, 100]}, "invalid_input"), ({"version": "77"}, None)],
)
def test_what_makes_no_sense_is_refused(stage, changes, code):
    answer = stage.client.post(
        stage.url("endpoints/chat/rollouts"),
        {"model": stage.model.name, "version": str(stage.two.number), **changes},
        format="json",
    )
    assert answer.status_code in (400, 404), answer.content
    assert code is None or answer.json()["code"] == code
    with scope.all_tenants():
        assert not Rollout.objects.exists()
        assert Deployment.objects.count() == 1


def test_viewers_watch_and_cannot_touch(stage):
    rollout = stage.roll_out()
    viewer = client_for(make_member(stage.tenant, Role.VIEWER))
    assert viewer.get(stage.url(f"rollouts/{rollout['id']}")).status_code == 200
    for verb in ("pause", "promote", "roll-back", "abort", "resume", "start"):
        assert viewer.post(stage.url(f"rollouts/{rollout['id']}/{verb}")).status_code == 403


def test_an_experiment_splits_estimates_and_gives_back(stage):
    body = {
        "endpoint": "chat", "model": stage.model.name, "version": str(stage.two.number), "replicas": 1, "weight": 0
    }  # fmt: skip
    other = uuid.UUID(stage.post("deployments", body, 201)["id"])
    asked = {"endpoint": "chat", "name": "v2 or not", "candidate": str(other), "share": 50, "seconds": 3600}
    assert stage.post("experiments", asked, 409)["code"] == "candidate_not_ready"
    stage.beat(rounds=3)
    made = stage.post("experiments", asked, 201)
    assert stage.weights() == {stage.baseline: 950, other: 50}
    assert stage.roll_out(status=409)["code"] == "endpoint_busy"
    stage.beat(10)
    stage.traffic(stage.baseline, 400)
    stage.traffic(other, 400, ttft=300)
    results = stage.get(f"experiments/{made['id']}")["results"]
    apart = {row["measure"] for row in results["measures"] if row["apart"]}
    assert "ttft_p50" in apart
    assert "error_rate" not in apart
    stage.beat(3700)
    ended = stage.get(f"experiments/{made['id']}")
    assert (ended["state"], ended["reason"]) == ("ended", "TimeIsUp")
    assert ended["results"]["baseline_requests"] == 400
    assert stage.weights() == {stage.baseline: 100, other: 0}


def test_series_and_shares_say_what_each_side_did_when(stage):
    shown = to_first_share(stage)
    candidate = uuid.UUID(shown["candidate"])
    for _ in range(3):
        stage.beat(8)
        stage.traffic(stage.baseline, 90, failed=9)
        stage.traffic(candidate, 10, ttft=110.0)
    stage.now += datetime.timedelta(seconds=5)
    with stage.at():
        row = stage.row(shown)
        moments = selectors.over_time(row, selectors.shares_of(row))
        found = selectors.measured(row)
    assert sum(one.baseline.requests for one in moments) == 270
    assert sum(one.candidate.requests for one in moments) == 30
    assert len({later.at - sooner.at for sooner, later in itertools.pairwise(moments)}) == 1
    assert moments[0].planned == 0
    assert moments[-1].planned == 10
    busy = [one for one in moments if one.baseline.requests]
    assert {one.baseline.errors / one.baseline.requests for one in busy} == {0.1}
    assert all(107 < one.candidate.ttft.quantile(0.95) < 116 for one in busy)
    assert found.share == pytest.approx(0.1, abs=0.001)
    with scope.all_tenants():
        assert selectors.active_count(stage.tenant) == 1


def test_what_ends_after_a_rollout_is_no_part_of_its_comparison(stage):
    shown = to_first_share(stage)
    stage.beat(8)
    stage.traffic(stage.baseline, 500)
    stage.traffic(uuid.UUID(shown["candidate"]), 40, failed=20)
    stage.beat()
    assert stage.shown(shown)["state"] == "rolled_back"
    before = stage.get(f"rollouts/{shown['id']}/compared")["measures"]
    stage.now += datetime.timedelta(seconds=30)
    stage.traffic(stage.baseline, 300)
    stage.now += datetime.timedelta(seconds=10)
    assert stage.get(f"rollouts/{shown['id']}/compared")["measures"] == before
