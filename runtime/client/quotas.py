"""Quotas in words: how they are given on the command line and shown."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from runtime.client import output
from runtime.client.errors import UsageError
from runtime.client.output import Column, field
from runtime.client.session import Session

GIB: Final = 1024**3
UNLIMITED: Final = -1


class _Unit(NamedTuple):
    """The API's name of a quota, and how many of its units one of a person's is."""

    name: str
    factor: int


_UNITS: Final[Mapping[str, _Unit]] = {
    "gpus": _Unit("gpu_millis", 1000),
    "device memory": _Unit("hbm_bytes", GIB),
    "replicas": _Unit("replicas", 1),
    "storage": _Unit("storage_bytes", GIB),
    "guaranteed gpus": _Unit("guaranteed_gpu_millis", 1000),
    "guaranteed device memory": _Unit("guaranteed_hbm_bytes", GIB),
}
_WORDS: Final = {unit.name: "GPUs" if word == "gpus" else word for word, unit in _UNITS.items()}

Gpus = Annotated[float | None, typer.Option(min=0, help="GPUs; a MIG slice counts its share.")]
DeviceMemory = Annotated[float | None, typer.Option(min=0, help="Device memory in GiB.")]
Replicas = Annotated[int | None, typer.Option(min=0, help="Replicas.")]
Storage = Annotated[float | None, typer.Option(min=0, help="Storage in GiB.")]
Unlimited = Annotated[
    list[str] | None, typer.Option("--no", help="Take this limit or guarantee off: gpus, device-memory, storage, …")
]
Preview = Annotated[bool, typer.Option("--preview", help="Say whom it would hurt, and change nothing.")]


def body(given: Mapping[str, float | None], unlimited: Sequence[str] | None) -> dict[str, Any]:
    """What the API takes: ``given`` in a person's units by the words above; ``unlimited`` are -1.

    Raises:
        UsageError: a name that is no quota.
    """
    if odd := [word for word, number in given.items() if number is not None and not math.isfinite(number)]:
        raise UsageError(f"{odd[0]} is a number; say --no {odd[0].replace(' ', '-')} for no limit.")
    found = {
        _UNITS[word].name: round(number * _UNITS[word].factor) for word, number in given.items() if number is not None
    }
    for name in unlimited or []:
        word = name.replace("-", " ").replace("_", " ").lower()
        if word not in given:
            known = ", ".join(each.replace(" ", "-") for each in given)
            raise UsageError(f"There is no limit {name!r}; one of {known}.")
        found[_UNITS[word].name] = UNLIMITED
    return found


def word(name: str) -> str:
    """A quota's name for people."""
    return _WORDS.get(name, name.replace("_", " "))


def amount(name: str, number: Any) -> output.Quantity | str:
    """A number of it, with its unit for people."""
    if number == UNLIMITED:
        return "unlimited"
    if name.endswith("gpu_millis"):
        return f"{number / 1000:g}"
    return output.size(number) if name.endswith("_bytes") else output.count(number)


def show(session: Session, answer: Mapping[str, Any]) -> None:
    """The lines of a quota, then weight and group."""
    if session.output.form == "json":
        session.output.json(answer)
        return

    session.output.rows(
        answer["items"],
        [("quota", lambda row: word(row["quota"])), _amounts("used"), _amounts("limit"), ("guaranteed", _guaranteed),
         ("above it", lambda row: amount(row["quota"], row["borrowed"]) if row["borrowed"] else "")],
        empty="No quotas.",
    )  # fmt: skip
    if answer.get("over_quota_weight") is not None:
        session.output.note(f"Weight in what others leave free: {answer['over_quota_weight']}.")
    if answer.get("group"):
        session.output.note(f"In the group {answer['group']}, which has a limit of its own.")


def _guaranteed(row: Mapping[str, Any]) -> output.Quantity | str:
    return "all of it" if row["guaranteed"] == UNLIMITED else amount(row["quota"], row["guaranteed"])


def group_columns() -> list[Column]:
    """Use and limit of a group, a column per quota."""
    names = [unit.name for unit in _UNITS.values() if not unit.name.startswith("guaranteed")]
    return [(word(name), _of_group(name)) for name in names]


def _of_group(name: str) -> Any:
    def read(row: Mapping[str, Any]) -> str:
        line = next(each for each in row["items"] if each["quota"] == name)
        return f"{amount(name, line['used'])} of {amount(name, line['limit'])}"

    return read


def show_group(session: Session, answer: Mapping[str, Any]) -> None:
    """The lines of a group, then what each of its tenants holds of them."""
    if session.output.form == "json":
        session.output.json(answer)
        return
    lines = answer["items"]
    session.output.rows(
        lines,
        [("quota", lambda row: word(row["quota"])), *(_amounts(key) for key in ("used", "limit", "left"))],
        empty="No quotas.",
    )
    session.output.rows(
        answer["held_by"],
        [("tenant", field("tenant")), *((word(line["quota"]), _use_of(line["quota"])) for line in lines)],
        empty=f"No tenants in it: limits quota TENANT --group {answer['name']}.",
    )


def _use_of(name: str) -> Any:
    return lambda row: amount(name, next(each["used"] for each in row["items"] if each["quota"] == name))


def show_preview(session: Session, answer: Mapping[str, Any], keeps: str = "The tenant keeps everything.") -> None:
    """Whom a change would hurt; ``keeps`` is said where those whose limits change lose nothing."""
    if session.output.form == "json":
        session.output.json(answer)
        return
    session.output.rows(
        [row for row in answer["changes"] if answer["hurts"] and (row["newly_borrowed"] or _is_tight(row))],
        [
            ("quota", lambda row: word(row["quota"])),
            _amounts("used"),
            _amounts("limit_after", "new limit"),
            _amounts("over", "above it"),
            _amounts("newly_borrowed", "can be claimed back"),
            _amounts("left_after", "could still be taken"),
        ],
        empty=keeps,
    )
    if answer["reclaimable"]:
        session.output.rows(
            answer["reclaimable"], [("gives way", field("endpoint")), ("of", field("tenant")), *_held()], empty=""
        )
    if answer["may_lose"]:
        session.output.rows(
            answer["may_lose"], [("other tenant above its guarantee", field("tenant")), *_held()], empty=""
        )
    if answer["group"] is not None:
        session.output.rows(
            [row for row in answer["group"]["changes"] if _is_tight(row)],
            [
                (f"all of {answer['group']['name']}", lambda row: word(row["quota"])),
                _amounts("used", "would hold"),
                _amounts("limit_after", "of"),
                _amounts("over", "above it"),
            ],
            empty=f"The group {answer['group']['name']} has room for it.",
        )
    if answer["members"]:
        session.output.rows(
            [{"tenant": one["tenant"], **row} for one in answer["members"] for row in one["changes"]],
            [
                ("tenant of the group", field("tenant")),
                ("quota", lambda row: word(row["quota"])),
                _amounts("used", "keeps"),
                _amounts("left_before", "can take now"),
                _amounts("left_after", "then"),
            ],
            empty="",
        )


def _is_tight(row: Mapping[str, Any]) -> bool:
    """More is held than may be, or nothing more could be taken, and now something can."""
    return bool(row["over"] or (row["left_before"] and not row["left_after"]))


def _amounts(key: str, title: str = "") -> Column:
    return (title or key, lambda row: amount(row["quota"], row[key]))


def _held() -> list[Column]:
    return [
        ("GPUs", lambda row: amount("gpu_millis", row["gpu_millis"])),
        ("device memory", lambda row: amount("hbm_bytes", row["hbm_bytes"])),
    ]
