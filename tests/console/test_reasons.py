"""Why a replica waits, as its page tells it: devices that say the same in one row."""

from console.presenters import reasons


def test_devices_are_told_together_and_those_beyond_are_counted() -> None:
    rows = [
        {"node": "n1", "product": "L4", "reason": "DeviceTaken", "fits": False, "device_uuid": f"GPU-{n:08d}",
         "message": f"L4 GPU-{n:08d} belongs to one replica as a whole.", "would_fit_if": f"L4 GPU-{n:08d} were free"}
        for n in range(3)
    ]  # fmt: skip
    why = reasons.why({"devices": rows, "refused": {"DeviceTaken": 10}, "would_fit_if": "help"})
    assert why is not None
    (group,) = why.groups
    assert (len(group.uuids), group.message, group.would_fit_if) == (
        3, "L4 belongs to one replica as a whole.", "L4 were free",
    )  # fmt: skip
    assert (why.more, why.would_fit_if) == (7, "help")
    assert reasons.why({}) is None
    assert reasons.why({"devices": [{"fits": True}]}) is None


def test_devices_with_other_numbers_stand_apart_where_the_numbers_are_shown() -> None:
    row = {"node": "n1", "product": "L4", "reason": "", "fits": True, "free_bytes": 24}
    rows = [row | {"device_uuid": "GPU-1"}, row | {"device_uuid": "GPU-2", "free_bytes": 9}]
    assert [group.uuids for group in reasons.together(rows)] == [["GPU-1", "GPU-2"]]
    assert [group.device["free_bytes"] for group in reasons.together(rows, "free_bytes")] == [24, 9]
