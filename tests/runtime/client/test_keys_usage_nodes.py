"""Keys, usage, quota and nodes."""

import csv
import datetime
import io

import pytest

from kernel import clock, ids, scope
from metering import booking
from metering.models import Holding
from serving.services import create_endpoint
from tenants.models import ApiKey
from tests.build import controlplane as build
from tests.controlplane.metering.usage_records import GATEWAY, record


def test_a_keys_text_is_alone_on_stdout_and_in_no_list(signed_in, shell):
    key = shell("keys", "create", "prod", "--rpm-limit", "60", "--expires", "2100-01-01T00:00:00Z").out.strip()
    assert key.startswith("mp_")
    listed = shell("keys", "list")
    assert key not in listed.out
    row = shell("keys", "list", "-o", "json").json[0]
    assert (row["name"], row["rpm_limit"], row["scopes"]) == ("prod", 60, ["inference"])


def test_revoking_by_name(signed_in, shell):
    shell("keys", "create", "prod")
    shell("keys", "revoke", "prod")
    assert ApiKey._base_manager.get().revoked_at is not None
    shell("keys", "revoke", "prod", want=4)


def test_two_keys_of_one_name_have_to_be_told_apart(signed_in, shell):
    shell("keys", "create", "prod")
    ident = shell("keys", "create", "prod", "-o", "json").json["id"]
    assert ident in shell("keys", "revoke", "prod", want=2).err
    shell("keys", "revoke", ident)


def test_usage_as_table_json_and_csv(signed_in, shell):
    tenant = signed_in.tenant
    booking.book(gateway_id=GATEWAY, records=[record(tenant.id, at=clock.now(), completion_tokens=1234)])
    assert "1,234" in shell("usage", "--by", "key").out
    assert shell("usage", "--by", "endpoint", "-o", "json").json["totals"]["completion_tokens"] == 1234
    lines = list(csv.reader(io.StringIO(shell("usage", "-o", "csv").out)))
    assert lines[0][0] == "day"
    assert len(lines) == 2
    assert "1234" in lines[1]  # a number to a program, not a text with separators
    assert "is not a valid choice" in shell("usage", "--by", "colour", want=1).err


def test_device_hours_as_table_and_csv(signed_in, shell):
    assert "Nothing was used" in shell("usage", "--devices").err
    with scope.all_tenants():
        Holding.objects.create(
            partition_id=ids.new_id(), replica_id=ids.new_id(), tenant_id=signed_in.tenant.id,
            deployment_id=ids.new_id(), endpoint_id=ids.new_id(), revision_id=ids.new_id(),
            product="NVIDIA H100", kind="cuda", millis=500, began_at=clock.now() - datetime.timedelta(hours=4),
        )  # fmt: skip
    assert "2.00" in shell("usage", "--devices", "--by", "device").out
    (row,) = shell("usage", "--devices", "--by", "device", "-o", "json").json["rows"]
    assert (row["label"], round(row["gpu_hours"], 3), round(row["idle_gpu_hours"], 3)) == ("NVIDIA H100", 2.0, 2.0)


def test_no_usage_is_said_in_words(signed_in, shell):
    assert "Nothing was used" in shell("usage").err


def test_quota_in_words(signed_in, shell):
    shown = shell("quota").out
    assert "device memory" in shown
    assert "hbm_bytes" not in shown
    assert "GiB" in shown


@pytest.fixture
def admin(plane, shell):
    user = build.make_user(admin=True)
    shell("login", "--email", user.email, "--password-stdin", stdin=build.PASSWORD)
    return plane


def test_a_machine_joins_with_the_token_and_is_steered_by_name(admin, shell):
    made = shell("nodes", "join", "--name", "mill-2", "-o", "json").json
    assert made["token"].startswith("mpj_")
    admin.worker.join_agent(name="mill-1")
    assert [row["name"] for row in shell("nodes", "list", "-o", "json").json] == ["mill-1"]
    assert "cpu" in shell("nodes", "devices").out
    assert "takes part in no replica over several nodes" in shell("nodes", "show", "mill-1").out
    assert "Nothing was said." in shell("devices", "events", "--like", "no-such-node").err
    assert shell("nodes", "cordon", "mill-1", "-o", "json").json["state"] == "cordoned"
    assert shell("nodes", "uncordon", "mill-1", "-o", "json").json["state"] == "ready"
    assert "Nothing was removed" in shell("nodes", "remove", "mill-1", want=2).err
    assert "Replicas stop now." in shell("nodes", "drain", "mill-1", "--accept-gap").out
    assert shell("nodes", "uncordon", "mill-1", "-o", "json").json["state"] == "ready"


def test_a_keys_limits_are_edited_and_its_secret_rotated(signed_in, shell):
    first = shell(
        "keys", "create", "prod", "--max-budget", "1000", "--budget-duration", "day", "--budget-alerts", "--address",
        "127.0.0.0/8", "--criticality", "critical",
    ).out.strip()  # fmt: skip
    shown = shell("keys", "edit", "prod", "--tpm-limit", "500", "--no", "max-budget")
    assert "500" in shown.out
    row = shell("keys", "show", "prod", "-o", "json").json
    assert (row["tpm_limit"], row["max_budget"], row["criticalities"]) == (500, None, ["critical"])
    turned = shell("keys", "rotate", "prod", "--overlap", "60")
    assert turned.out.strip() != first
    assert "accepted until" in turned.err
    assert "what to change" in shell("keys", "edit", "prod", want=2).err
    assert "not 'speed'" in shell("keys", "edit", "prod", "--no", "speed", want=2).err
    revoked = shell("keys", "revoke", "prod", "-o", "json").json
    assert revoked["revocation"]["complete"] is True
    assert "no gateway" in shell("keys", "show", revoked["id"]).out


def test_limits_with_their_use(signed_in, shell):
    shell("keys", "create", "prod", "--rpm-limit", "60", "--max-budget", "1000")
    shown = shell("limits", "show").out
    assert "0 of 60" in shown
    assert "0 of 1,000 tokens per month" in shown
    shell("limits", "set", signed_in.tenant.slug, "--rpm-limit", "5", want=3)


def test_admins_set_limits_and_prices(signed_in, admin, shell):
    slug = signed_in.tenant.slug
    row = shell("limits", "set", slug, "--rpm-limit", "5", "--weight", "2", "-o", "json").json
    assert (row["rpm_limit"], row["weight"]) == (5, 2.0)
    shell("prices", "set", "--prompt", "0.5", "--completion", "1.5")
    shell("prices", "set", "--prompt", "1", "--completion", "2", "--endpoint", "chat", want=2)
    shell("prices", "remove", f"{slug}/chat", want=4)


def test_an_endpoint_promises_and_keeps_callers(signed_in, shell):
    tenant = signed_in.tenant
    create_endpoint(actor=build.actor_for(build.owner_of(tenant)), tenant=tenant, name="chat", slo={"error_rate": 0.1})
    row = shell("endpoints", "edit", "chat", "--ttft-p95-ms", "500", "--sticky", "user", "-o", "json").json
    assert (row["slo"], row["sticky"]) == ({"error_rate": 0.1, "ttft_p95_ms": 500.0}, "user")
    assert "ttft_p95_ms 500" in shell("endpoints", "list").out
    row = shell("endpoints", "edit", "chat", "--no", "error-rate", "-o", "json").json
    assert row["slo"] == {"ttft_p95_ms": 500.0}
    shell("endpoints", "edit", "chat", "--sticky", "luck", want=1)


def test_admins_set_quotas_in_words_and_look_first(signed_in, admin, shell):
    slug = signed_in.tenant.slug
    looked = shell("limits", "quota", slug, "--gpus", "2.5", "--guaranteed-gpus", "1", "--preview")
    assert "keeps everything" in looked.err
    shown = shell("limits", "quota", slug, "--gpus", "2.5", "--guaranteed-gpus", "1", "--no", "device-memory").out
    assert [word in shown for word in ("GPUs", "2.5", "device memory", "unlimited", "all of it")] == [True] * 5
    assert "millis" not in shown
    assert "no limit 'speed'" in shell("limits", "quota", slug, "--no", "speed", want=2).err
    assert "what to set" in shell("limits", "quota", slug, want=2).err
    shell("limits", "set-group", "research", "--device-memory", "80")
    assert "80.0 GiB" in shell("limits", "groups").out
    into = ("limits", "quota", slug, "--group", "research")
    for endless in (into, (*into, "--preview"), (*into, "--no", "guaranteed-device-memory")):
        assert "Name a number as the guarantee; 0 guarantees nothing." in shell(*endless, want=1).err
    into = (*into, "--guaranteed-device-memory", "0")
    assert "has room for it" in shell(*into, "--preview").err
    assert "In the group research" in shell(*into).err
    lower = shell("limits", "set-group", "research", "--device-memory", "0", "--preview")
    assert [word in lower.out for word in ("0 B", "could still be taken", "tenant of the group", slug)] == [True] * 4
    shown = shell("limits", "group", "research").out
    assert [word in shown for word in (slug, "80.0 GiB")] == [True] * 2
    assert slug in shell("limits", "remove-group", "research", "--preview", want=1).err
    shell("limits", "quota", slug, "--group", "")
    assert "nobody would be worse off" in shell("limits", "remove-group", "research", "--preview").err
    assert "keep everything" in shell("limits", "set-group", "research", "--device-memory", "0", "--preview").err
    shell("limits", "remove-group", "research")
