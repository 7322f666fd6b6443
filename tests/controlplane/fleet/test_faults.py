"""What follows from a fault: the policy as a table, and devices that go and come back by reports and time alone."""

import datetime

import pytest
from msgspec.structs import replace

from fleet import faults, health
from fleet.faults import Action, Repair
from fleet.models import Device, HealthEvent, Node
from kernel import clock
from ledger.models import AuditEvent
from runtime.wire.devices import OFF_THE_BUS, DeviceKind, HealthCode, HealthFact, RemapFacts
from tests.build.controlplane import client_for, make_user
from tests.build.machines import FakeAgent

XID = HealthCode.XID


@pytest.mark.parametrize(
    ("xid", "action", "repair"),
    [
        (13, Action.WATCH, None),
        (31, Action.WATCH, None),
        (43, Action.IGNORE, None),
        (45, Action.IGNORE, None),
        (48, Action.RESET, Repair.RESET),
        (63, Action.WATCH, None),
        (64, Action.RESET, Repair.RESET),
        (74, Action.RESET, Repair.RESET),
        (79, Action.RESET, Repair.REBOOT),
        (94, Action.SUSPECT, None),
        (95, Action.RESET, Repair.RESET),
        (109, Action.WATCH, None),
        (119, Action.RESET, Repair.REBOOT),
        (121, Action.WATCH, None),
        (149, Action.WATCH, None),
        (999, Action.WATCH, None),
    ],
)
def test_what_an_xid_leads_to(xid, action, repair):
    verdict = faults.judge("xid", xid=xid)
    assert verdict.action is action
    assert repair is None or verdict.repair is repair


@pytest.mark.parametrize(
    ("code", "recovery", "action"),
    [
        ("remap_pending", "", Action.WATCH),
        ("remap_failed", "", Action.RETIRE),
        ("lost", "", Action.MOVE),
        ("unreadable", "", Action.IGNORE),
        ("thermal", "", Action.SUSPECT),
        ("power", "", Action.WATCH),
        ("nvlink", "", Action.SUSPECT),
        ("recovery_action", "reset", Action.RESET),
        ("recovery_action", "drain_p2p", Action.SUSPECT),
        ("recovery_action", "something new", Action.SUSPECT),
        ("returned", "", Action.IGNORE),
    ],
)
def test_what_other_facts_lead_to(code, recovery, action):
    assert faults.judge(code, recovery_action=recovery).action is action
    assert faults.judge(code, recovery_action=recovery, active=False).action is Action.IGNORE


def test_every_code_of_the_wire_has_a_row_and_every_row_a_source_and_a_sentence():
    named = {code.value for code in HealthCode} - {"xid", "recovery_action", "returned"}
    assert named <= faults.FACTS.keys()
    rules = [*faults.XIDS.values(), *faults.FACTS.values(), *faults.RECOVERY.values()]
    assert all(rule.source and rule.plain and not rule.plain.endswith(".") for rule in rules)
    disputed = {xid for xid, rule in faults.XIDS.items() if "disputed" in rule.source}
    assert {43, 63, 92, 94, 109, 121} <= disputed


def test_what_is_harmless_once_is_not_when_it_comes_again():
    assert [faults.judge("xid", xid=109, recent=n).action for n in (0, 1)] == [Action.WATCH, Action.RESET]
    assert [faults.judge("xid", xid=13, recent=n).action for n in (3, 4)] == [Action.WATCH, Action.SUSPECT]


def test_the_sentence_for_tenants_says_what_happened_and_names_no_device():
    assert faults.for_tenants("Xid79") == (
        "Its GPU has fallen off the bus (Xid 79), so this replica is replaced on another one."
    )
    assert "no spare memory" in faults.for_tenants("RemapFailed")
    assert "is not well" in faults.for_tenants("SomethingElse")


# --- with rows

_sequence = iter(range(1, 10_000))


def fact(agent, code=XID, xid=0, device=0, **more):
    uuid = agent.devices[device].uuid
    return HealthFact(
        sequence=next(_sequence), code=code, at=clock.now().timestamp(), device_uuid=uuid, xid=xid, **more
    )


@pytest.fixture
def agent(db):
    made = FakeAgent(kind=DeviceKind.CUDA)
    made.join()
    made.report()
    return made


def device():
    return Device.objects.get()


def later(monkeypatch, span):
    now = clock.now() + span
    monkeypatch.setattr(clock, "now", lambda: now)


def state():
    row = device()
    return row.state, row.reason, row.repair


def test_xid_79_is_heard_once_and_the_device_is_back_after_a_restart_and_a_probation(agent, monkeypatch):
    bad = fact(agent, xid=79)
    agent.report(health=[bad])
    assert state() == ("quarantined", "Xid79", "reboot")
    assert device().dead
    agent.report(health=[bad])  # told again, since its first receipt was not: no news
    assert HealthEvent.objects.filter(code="Xid79").get().data.get("times", 1) == 1
    agent.report(boot_id="another")
    assert state() == ("recovering", "Repaired", "")
    assert not device().dead
    assert health.heal() == 0
    later(monkeypatch, faults.PROBATION)
    assert health.heal() == 1
    assert state()[0] == "healthy"
    moves = AuditEvent.objects.filter(subject_kind="device").order_by("id").values_list("action", flat=True)
    assert list(moves) == ["device.quarantined", "device.recovering", "device.healthy"]


def test_an_agent_that_starts_again_does_not_tell_old_facts_anew(agent):
    bad = fact(agent, xid=64)
    agent.report(health=[bad])
    admin = client_for(make_user(admin=True))
    assert admin.post(f"/api/v1/devices/{device().id}/return", {}, format="json").json()["state"] == "recovering"
    agent.restart()
    agent.report(health=[bad])
    assert state()[0] == "recovering"


def test_a_lost_device_waits_until_it_answers(agent):
    well = agent.devices
    agent.devices = [replace(well[0], problem=OFF_THE_BUS)]
    agent.report(health=[fact(agent, HealthCode.LOST, message=OFF_THE_BUS)])
    assert (device().state, device().dead) == ("quarantined", True)
    agent.report(boot_id="another")  # started again, and still not there
    assert device().state == "quarantined"
    agent.devices = well
    agent.report(boot_id="another", health=[fact(agent, HealthCode.RETURNED, active=False)])
    assert device().state == "recovering"


def test_a_device_that_could_not_be_read_is_suspect_until_it_can(agent):
    agent.report(health=[fact(agent, HealthCode.LOST, message="the driver did not answer within 5 s")])
    assert device().state == "healthy"
    assert HealthEvent.objects.get().code == "Unreadable"


def test_heat_stops_new_work_until_it_is_over_and_quiet(agent, monkeypatch):
    cool = agent.devices
    agent.devices = [replace(cool[0], throttle=["hw_thermal"])]
    agent.report(health=[fact(agent, HealthCode.THERMAL)])
    assert state() == ("suspect", "Thermal", "")
    later(monkeypatch, faults.QUIET)
    assert health.heal() == 0  # it is still hot
    agent.devices = cool
    agent.report(health=[fact(agent, HealthCode.THERMAL, active=False)])
    assert health.heal() == 1
    assert state()[0] == "healthy"


def test_a_program_that_fails_again_and_again_makes_its_device_suspect(agent):
    for count in range(5):
        assert state()[0] == "healthy", count
        agent.report(health=[fact(agent, xid=31)])
    assert state()[:2] == ("suspect", "Xid31")
    assert HealthEvent.objects.get().data["times"] == 5  # a flood is one row


def test_a_device_without_spare_rows_is_retired_and_only_a_person_brings_it_back(agent):
    agent.devices = [replace(agent.devices[0], remap=RemapFacts(failed=True))]
    agent.report(health=[fact(agent, HealthCode.REMAP_FAILED)])
    assert state()[0] == "retired"
    agent.report(boot_id="another")
    assert state()[0] == "retired"
    admin = client_for(make_user(admin=True))
    assert admin.post(f"/api/v1/devices/{device().id}/return", {}, format="json").json()["state"] == "recovering"
    assert health.heal() == 0


def test_repaired_in_vain_three_times_it_waits_for_a_person(agent, monkeypatch):
    for round_ in range(faults.TRIES):
        agent.report(health=[fact(agent, xid=48)])
        assert device().repair == ("reset" if round_ < faults.TRIES - 1 else "person")
        agent.boot_id = f"boot-{round_}"
        agent.report()
        later(monkeypatch, datetime.timedelta(minutes=5))
        health.heal()
    assert device().state == "quarantined"
    assert "a person must decide" in device().message


def test_a_burst_is_told_by_the_strongest_of_what_was_decided_and_counts_as_one_time_out_of_service(agent, monkeypatch):
    for _ in range(2):
        agent.report(health=[fact(agent, xid=109) for _ in range(3)])
        later(monkeypatch, datetime.timedelta(minutes=1, seconds=5))
    first = HealthEvent.objects.filter(code="Xid109").order_by("id").first()
    assert (first.data["action"], first.data["times"], first.data["sent"]) == ("reset", 3, 1)
    assert device().repair == "reset"
    agent.boot_id = "repaired"
    agent.report()
    later(monkeypatch, datetime.timedelta(minutes=15))
    assert health.heal() == 1
    agent.report(health=[fact(agent, xid=109) for _ in range(2)])
    assert (device().state, device().repair) == ("quarantined", "reset")  # it left service twice, not three times


def test_what_happened_before_a_restart_is_repaired_by_it_and_what_came_after_is_not(agent):
    old = fact(agent, xid=48)
    agent.report(boot_id="second", health=[replace(old, at=old.at - 60)])
    assert state()[0] == "recovering"
    agent.report(boot_id="third", health=[fact(agent, xid=48)])
    assert state()[0] == "quarantined"


def test_a_fault_during_probation_sends_it_away_again(agent):
    agent.report(health=[fact(agent, xid=48)])
    agent.report(boot_id="another")
    assert device().state == "recovering"
    agent.report(boot_id="another", health=[fact(agent, xid=48)])
    assert device().state == "quarantined"


def test_a_fact_of_the_whole_node_is_an_event_of_the_node(agent):
    agent.report(health=[HealthFact(sequence=next(_sequence), code=HealthCode.DRIVER, at=0.0, message="gone")])
    event = HealthEvent.objects.get()
    assert (event.device, event.code, event.node) == (None, "Driver", Node.objects.get())


def test_what_a_person_decides(agent):
    admin = client_for(make_user(admin=True))
    base = f"/api/v1/devices/{device().id}"

    def post(verb, **body):
        answer = admin.post(f"{base}/{verb}", body, format="json")
        return answer.status_code, answer.json()

    assert post("return")[0] == 409
    assert post("quarantine", message="smells")[1]["state"] == "quarantined"
    assert (device().message, device().repair) == ("smells", "person")
    agent.report(boot_id="another")
    assert device().state == "quarantined"
    assert post("return")[1]["state"] == "recovering"
    assert post("retire")[1]["state"] == "retired"
    assert post("quarantine")[0] == 409
    seen = admin.get(base).json()
    assert (seen["state"], seen["repair"]) == ("retired", "person")
    assert admin.get(f"/api/v1/devices/{Node.objects.get().id}").json()["code"] == "device_not_found"
    somebody = client_for(make_user())
    assert [somebody.post(f"{base}/{verb}").status_code for verb in ("quarantine", "return", "retire")] == [403] * 3


@pytest.mark.parametrize(
    ("nvlink", "want"),
    [
        ({"links": 18, "active": 18, "fabric_state": "completed"}, ""),
        ({"links": 18, "active": 17, "fabric_state": "completed"}, "nvlink"),
        ({"links": 18, "active": 0, "fabric_state": "completed"}, "nvlink"),
        ({"links": 18, "active": 18, "fabric_state": "completed", "fabric_healthy": False}, "nvlink"),
        ({"links": 4, "active": 3}, "nvlink"),
        ({"links": 12, "active": 0}, ""),  # a card that no bridge joins to another: it would never be trusted again
        (None, ""),
    ],
)
def test_links_that_are_down_stand(nvlink, want):
    assert faults.standing({"nvlink": nvlink}) == want
