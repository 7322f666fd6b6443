"""Pages of rollouts and experiments: what they show is what the services know, and what is pressed arrives."""

import datetime
import re
from typing import Any

import pytest
from django.test import Client

from catalog.models import Model
from kernel import clock, scope
from rollouts import experiments
from rollouts.models import Experiment, Rollout
from serving.models import Deployment
from serving.services import deploy_version
from tenants.models import Tenant
from tenants.roles import Role
from tests.build import catalog, onnx
from tests.build.controlplane import actor_for, make_member, make_tenant, owner_of
from tests.build.rollouts import Story

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("harbor")


@pytest.fixture
def story(tenant: Tenant) -> Story:
    start = clock.now() - datetime.timedelta(minutes=20)
    return Story(tenant, actor_for(owner_of(tenant)), endpoint="support", model="helpdesk", start=start)


def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def client(tenant: Tenant) -> Client:
    return signed_in(owner_of(tenant))


def row_of(made: Any) -> Rollout:
    with scope.all_tenants():
        return Rollout.objects.get(id=made.id)


def text_of(content: bytes) -> str:
    """What is read, without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", content.decode()))


FORM = {
    "endpoint": "support", "version": "helpdesk:2", "strategy": "canary", "shares": "10, 100", "hold_seconds": "60",
    "min_requests": "50", "capacity": "spare", "auto_rollback": "on", "config_of": "baseline", "error_points": "1",
    "slower": "20", "tail_points": "5", "length_points": "15", "keep_seconds": "900", "ready_seconds": "1800",
}  # fmt: skip


def test_an_empty_list_explains_and_offers_the_first_step(client: Client) -> None:
    page = client.get("/t/harbor/rollouts/")
    assert b"No rollouts yet" in page.content
    assert b"No endpoint has traffic to move" in client.get("/t/harbor/rollouts/new/").content


def test_a_rollout_is_started_from_the_form(client: Client, story: Story) -> None:
    assert b"helpdesk:2" in client.get("/t/harbor/rollouts/new/?endpoint=support").content
    answer = client.post("/t/harbor/rollouts/new/", {**FORM, "changes": "max_num_seqs=48"})
    assert answer.status_code == 302, text_of(answer.content)
    with scope.all_tenants():
        made = Rollout.objects.select_related("candidate__revision__serving_config").get()
    assert made.state == "running"
    assert [step["share"] for step in made.plan["steps"]] == [10, 100]
    assert made.settings["tolerance"]["slower"] == 0.2
    assert made.candidate
    assert made.candidate.revision.serving_config.max_num_seqs == 48
    page = client.get(answer.headers["Location"])
    assert "max_num_seqs 32 to 48" in text_of(page.content)
    assert "v1 to v2" in text_of(client.get("/t/harbor/rollouts/").content)


def test_the_baselines_config_is_kept_unless_asked_otherwise(client: Client, tenant: Tenant, story: Story) -> None:
    with scope.all_tenants():
        Deployment.objects.filter(id=story.baseline.id).update(weight=0)
    deploy_version(
        actor=story.actor, tenant=tenant, endpoint_name="support", model="helpdesk", version=1, replicas=1,
        config={"max_num_seqs": 7},
    )  # fmt: skip
    story.make_ready()
    assert client.post("/t/harbor/rollouts/new/", {**FORM, "plan": "1"}).status_code == 302
    with scope.all_tenants():
        made = Rollout.objects.select_related("candidate__revision__serving_config").get()
    assert made.state == "planned"
    assert made.candidate
    assert made.candidate.revision.serving_config.max_num_seqs == 7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shares": "50, 10"}, "rising percentages"),
        ({"shares": "a lot"}, "Whole percentages"),
        ({"hold_seconds": "-1"}, "At least 0"),
        ({"version": "helpdesk:9"}, "helpdesk:9"),
        ({"version": "helpdesk:1"}, "This serves already"),
        ({"changes": "speed=9"}, "There is no setting"),
        ({"changes": "speed"}, "Each line is name=value"),
        ({"capacity": "in_place"}, "This plan interrupts or thins the service"),
    ],
)
def test_errors_are_shown_in_place(client: Client, story: Story, changes: dict[str, str], said: str) -> None:
    answer = client.post("/t/harbor/rollouts/new/", {**FORM, **changes})
    assert answer.status_code == 422
    assert said in text_of(answer.content).replace("&#x27;", "'")
    assert not Rollout._base_manager.exists()


def test_a_gap_is_accepted_in_its_own_words(client: Client, story: Story) -> None:
    asked = {**FORM, "capacity": "in_place"}
    preview = client.post("/t/harbor/rollouts/new/preview/", asked)
    words = "support does not answer while the candidate loads"
    assert f'<q lang="en">{words}</q>' in preview.content.decode()
    assert "checked" not in preview.content.decode()
    again = client.post("/t/harbor/rollouts/new/preview/", {**asked, "accept": words})
    assert "checked" in again.content.decode()
    assert client.post("/t/harbor/rollouts/new/", {**asked, "accept": words}).status_code == 302


def test_the_preview_says_steps_cost_and_other_ways(client: Client, story: Story) -> None:
    text = text_of(client.post("/t/harbor/rollouts/new/preview/", FORM).content)
    assert "1 replica more than now at the peak" in text or "2 replicas more than now at the peak" in text
    assert "Squeeze" in text
    assert "millpond rollouts start helpdesk:2" in text
    assert "products" not in text  # what the baseline says nothing of is not said in the sample either
    broken = text_of(client.post("/t/harbor/rollouts/new/preview/", {**FORM, "shares": "50, 10"}).content)
    assert "rising percentages" in broken


def test_what_no_engine_runs_is_not_chosen_and_its_preview_speaks_of_no_room(client: Client, story: Story) -> None:
    with scope.all_tenants():
        model = Model.objects.get(name="helpdesk")
    version = catalog.checked_version(story.tenant, {"m.onnx": onnx.model()}, model=model)
    page = client.get("/t/harbor/rollouts/new/").content.decode()
    assert f"helpdesk v{version.number} (no engine)" in page
    assert f'<option value="helpdesk:{version.number - 1}" selected>' in page
    asked = {**FORM, "version": f"helpdesk:{version.number}"}
    text = text_of(client.post("/t/harbor/rollouts/new/preview/", asked).content)
    assert "No engine here runs ONNX models." in text
    assert "NoEngine" in text
    assert "more than now at the peak" not in text
    assert "Ways to get the room" not in text


def test_a_running_rollout_shows_both_sides_with_intervals_and_limits(client: Client, story: Story) -> None:
    made = story.roll_out(shares=(25, 100))
    story.live(8)
    with clock.frozen(story.now):
        page = client.get(f"/t/harbor/rollouts/{made.id}/")
    text = text_of(page.content)
    assert "Running, step 1 of 2" in text
    assert "75 % of traffic" in text
    assert "25 % of traffic" in text
    assert "Judged in" in text
    assert re.search(r"TTFT p95 \d+\D+ms \d+\D+ms .{1,40}Pass", text), text
    assert "Roll back to v1" in text
    assert "If you act now" in text
    assert page.content.count(b'class="forest') >= 6
    assert page.content.count(b"As a table") == 3
    assert f"millpond rollouts pause {made.id}" in text
    assert f"playground/?model={story.endpoint.name}%40r1&amp;with={story.endpoint.name}%40r2" in page.content.decode()


def test_a_failing_rollout_says_why_it_went_back(client: Client, story: Story) -> None:
    made = story.roll_out(shares=(50, 100))
    story.live(8, failing=0.6)
    assert row_of(made).state == "rolled_back"
    text = text_of(client.get(f"/t/harbor/rollouts/{made.id}/").content)
    assert "Rolled back; the baseline has all the traffic. Failed: error rate" in text
    assert "Roll back to v1" not in text
    listed = text_of(client.get("/t/harbor/rollouts/").content)
    assert "Rolled back" in listed
    assert "Failed: error rate" in listed


def test_buttons_act_and_a_late_click_is_refused_in_words(client: Client, story: Story) -> None:
    made = story.roll_out(shares=(25, 100))
    story.live(2)
    url = f"/t/harbor/rollouts/{made.id}/"
    client.post(url + "pause/")
    assert row_of(made).state == "paused"
    assert "The step is held and judged anew" in text_of(client.get(url).content)
    late = client.post(url + "pause/", headers={"HX-Request": "true"})
    assert late.status_code == 409
    client.post(url + "resume/")
    assert row_of(made).state == "running"
    assert (
        b"without judging the rest" in client.get(url + "promote/").content
        or b"Skips the judge" in client.get(url + "promote/").content
    )
    client.post(url + "roll-back/")
    assert row_of(made).state == "rolled_back"
    assert client.get(url + "abort/", headers={"HX-Request": "true"}).status_code == 409


def test_promoting_and_aborting_say_what_they_leave(client: Client, story: Story) -> None:
    made = story.roll_out(shares=(100,))
    story.live(1)
    url = f"/t/harbor/rollouts/{made.id}/"
    asked = text_of(client.get(url + "abort/").content)
    assert "The shares stay as they are (100 % for v2)" in asked
    client.post(url + "promote/")
    assert row_of(made).state == "promoted"
    text = text_of(client.get(url).content)
    assert "v1 is kept warm" in text
    assert "Roll back to v1" in text


def test_a_viewer_looks_and_cannot_act(tenant: Tenant, story: Story) -> None:
    made = story.roll_out()
    viewer = signed_in(make_member(tenant, Role.VIEWER))
    page = viewer.get(f"/t/harbor/rollouts/{made.id}/")
    assert page.status_code == 200
    assert b"Roll back to" not in page.content
    assert viewer.post(f"/t/harbor/rollouts/{made.id}/roll-back/").status_code == 403
    assert viewer.get("/t/harbor/rollouts/new/").status_code == 403
    assert row_of(made).state == "running"


def test_a_rollout_whose_deployment_was_deleted_still_tells_its_story(client: Client, story: Story) -> None:
    made = story.roll_out()
    story.live(1)
    Rollout._base_manager.filter(id=made.id).update(candidate=None, state="aborted")
    page = client.get(f"/t/harbor/rollouts/{made.id}/")
    assert page.status_code == 200
    assert b"One of the two deployments was deleted" in page.content


def test_the_deployment_page_leads_to_its_rollout_and_to_a_new_one(client: Client, story: Story) -> None:
    url = f"/t/harbor/deployments/{story.baseline.id}/"
    assert b"/t/harbor/rollouts/new/?endpoint=support" in client.get(url).content
    made = story.roll_out()
    page = client.get(url).content.decode()
    assert f"/t/harbor/rollouts/{made.id}/" in page


def with_second(tenant: Tenant, story: Story) -> Deployment:
    made = deploy_version(
        actor=story.actor, tenant=tenant, endpoint_name="support", model="helpdesk", version=2, config={}, replicas=1,
        weight=0,
    )  # fmt: skip
    story.make_ready()
    return made


def test_an_experiment_is_started_shown_and_ended(client: Client, tenant: Tenant, story: Story) -> None:
    assert b"No experiments yet" in client.get("/t/harbor/rollouts/experiments/").content
    assert b"No deployment can be the candidate" in client.get("/t/harbor/rollouts/experiments/new/").content
    second = with_second(tenant, story)
    form = {"name": "longer context", "candidate": str(second.id), "percent": "12.5", "seconds": "3600"}
    refused = client.post("/t/harbor/rollouts/experiments/new/", {**form, "percent": "100"})
    assert refused.status_code == 422
    assert client.post("/t/harbor/rollouts/experiments/new/", form).status_code == 302
    made = Experiment._base_manager.get()
    assert made.share == 125
    assert story.weights() == {story.baseline.id: 875, second.id: 125}
    again = client.post("/t/harbor/rollouts/experiments/new/", {**form, "name": "another"})
    assert again.status_code == 422
    story.now = clock.now()
    story.live(2)
    url = f"/t/harbor/rollouts/experiments/{made.id}/"
    text = text_of(client.get(url).content)
    assert "12.5 % of traffic" in text
    assert "Error rate" in text
    assert "TTFT p50" in text
    assert b"The shares of before come back" in client.get(url + "end/").content
    client.post(url + "end/")
    assert story.weights() == {story.baseline.id: 100, second.id: 0}
    assert experiments.compare(Experiment._base_manager.get())["measures"]
    assert "Ended" in text_of(client.get("/t/harbor/rollouts/experiments/").content)
