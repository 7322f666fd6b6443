"""Verdicts on devices, for people: those of one node that say the same stand in one row (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any

_SHORT = 8


def alike(devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for the devices of a product on a node with the same verdict; ``uuids`` are the ends of their UUIDs."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in devices:
        uuid = str(each.get("device_uuid") or "")
        texts = {name: _without(each.get(name), uuid) for name in ("message", "would_fit_if")}
        key = (*(each.get(name) for name in ("node", "product", "reason", "fits", "free_bytes")), *texts.values())
        if key in found:
            found[key] |= texts
            found[key]["uuids"].append(uuid[-_SHORT:])
        else:
            found[key] = {**each, "uuids": [uuid[-_SHORT:]]}
    return list(found.values())


def _without(text: Any, uuid: str) -> str:
    return " ".join(str(text or "").replace(uuid, "").split()) if uuid else str(text or "")


def devices(row: Mapping[str, Any]) -> str:
    """``4 × NVIDIA L40S`` and which ones."""
    count = len(row["uuids"])
    return f"{f'{count} × ' if count > 1 else ''}{row.get('product')} ({', '.join(row['uuids'])})"


def why_not(row: Mapping[str, Any]) -> str:
    """Why a device cannot take it; "" where it can."""
    return "" if row.get("fits") else str(row.get("message") or row.get("reason"))


def waiting_alike(replicas: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Replicas without a place, together where the planner said the same of them."""
    found: list[list[Mapping[str, Any]]] = []
    for replica in replicas:
        if replica["state"] != "pending" or not (replica.get("explanation") or {}).get("devices"):
            continue
        same = next((group for group in found if group[0]["explanation"] == replica["explanation"]), None)
        if same is None:
            found.append([replica])
        else:
            same.append(replica)
    return found
