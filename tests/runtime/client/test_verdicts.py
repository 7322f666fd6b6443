"""Verdicts on devices in few rows."""

from runtime.client import verdicts
from runtime.client.errors import ApiError, Exit


def _row(uuid, **facts):
    text = {"message": f"L4 {uuid} is suspect: hot", "would_fit_if": f"L4 {uuid} were well again"}
    values = {"node": "n1", "product": "L4", "reason": "DeviceUnhealthy", "fits": False, "free_bytes": 9, **text}
    return {**values, "device_uuid": uuid, **facts}


def test_devices_that_say_the_same_stand_in_one_row_and_the_others_alone():
    rows = verdicts.alike([_row("GPU-aaaaaaaa"), _row("GPU-bbbbbbbb"), _row("GPU-cccccccc", free_bytes=1)])
    assert [verdicts.devices(row) for row in rows] == ["2 × L4 (aaaaaaaa, bbbbbbbb)", "L4 (cccccccc)"]
    assert [verdicts.why_not(row) for row in rows] == ["L4 is suspect: hot", "L4 GPU-cccccccc is suspect: hot"]


def test_replicas_that_wait_for_the_same_are_told_together():
    told = {"devices": [_row("GPU-aaaaaaaa")]}
    each = [("pending", told), ("ready", told), ("pending", told), ("pending", {**told, "would_fit_if": "x"})]
    rows = [{"state": state, "explanation": explanation} for state, explanation in each]
    assert [len(group) for group in verdicts.waiting_alike(rows)] == [2, 1]


def test_a_quota_that_is_used_up_is_no_lack_of_rights():
    facts = {"title": "", "detail": "", "request_id": ""}
    assert ApiError(status=403, code="quota_exceeded", **facts).exit_code == Exit.FAILED
    assert ApiError(status=403, code="forbidden", **facts).exit_code == Exit.NOT_ALLOWED
