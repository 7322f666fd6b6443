"""The dry run before a deployment: the planner's own answer, with nothing written."""

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any, Final, Protocol

from catalog import configs
from catalog.access import access_model, access_version
from catalog.errors import VersionNotReady
from catalog.estimate import VersionFacts
from catalog.models import ModelVersion, ServingConfig
from catalog.selectors import files_of
from catalog.states import VersionState
from fleet import policy
from kernel import errors, scope
from kernel.actors import Actor
from kernel.texts import counted
from quotas.amount import Amount, Kind
from quotas.errors import exceeded
from quotas.selectors import lines_of
from scheduling import advice, demand_log, reading
from scheduling.answers import Answer, Ask
from scheduling.measured import refine
from scheduling.need import Isolated, Need, NeedUnknown, in_order, need_on, needs_of, part_of
from scheduling.plan import plan
from scheduling.spreading import spread_of, spread_out
from serving.models import Priority
from serving.peaks import Measured, measured
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission

#: The reason of a dry run where there may be room, and no engine that would use it.
NO_ENGINE: Final = "NoEngine"


@dataclasses.dataclass(frozen=True)
class Fit:
    """``placed`` of ``replicas`` would find a place now. ``devices`` judges each device for the first replica.

    ``makes_room``: deployed all the same, others give way to all that find none, and it starts when they have.
    ``room_helps`` is false where nobody's end would help: no device here is of the kind and size that it needs.
    """

    fits: bool
    replicas: int
    placed: int
    need: dict[str, Any]
    devices: list[dict[str, Any]]
    reason: str
    message: str
    would_fit_if: str
    makes_room: bool = False
    room_helps: bool = True


class Subject(VersionFacts, Isolated, Protocol):
    """What would be deployed, as far as the dry run reads it: a version, or the outline of one."""


def fit(
    *, actor: Actor, tenant: Tenant, model: str, version: str | int, config: Mapping[str, Any], replicas: int = 1
) -> Fit:
    """Say whether ``replicas`` of a version under ``config`` would find a place now, and why not.

    Raises:
        VersionNotReady: what the version needs is not known yet.
        errors.InvalidInput: a setting that does not exist or is out of bounds.
    """
    access.require(actor, Permission.VIEW, tenant.id)
    found = access_version(actor, tenant, access_model(actor, tenant, model), version)
    if found.state != VersionState.READY:
        raise VersionNotReady(f"Version {found.number} is {found.state}; what it needs is known once it is ready.")
    return fit_version(tenant, found, configs.normalise(config), replicas)


def fit_version(tenant: Tenant, version: ModelVersion, settings: configs.Settings, replicas: int) -> Fit:
    """As :func:`fit`, for a version at hand."""
    needs = sized(tenant, version, settings)
    files = frozenset(file.sha256 for file in files_of(version))
    peaks = _peaks(tenant, version, settings)
    found = placement(tenant, version, settings, needs, replicas, files=files, peaks=peaks)
    if why := configs.no_engine(settings, version.format):
        help_ = advice.ANOTHER_FORMAT
        return dataclasses.replace(found, fits=False, reason=NO_ENGINE, message=why, would_fit_if=help_)
    return found


def sized(tenant: Tenant, subject: Subject, settings: configs.Settings) -> dict[str, Need]:
    """What one replica of ``subject`` needs on each kind of device, under what the tenant requires.

    Raises:
        errors.InvalidInput: a setting that ``subject`` cannot have.
        errors.Unprocessable: its facts do not say what it needs.
    """
    experts = int(subject.metadata.get("num_experts") or 0)
    configs.check_version(settings, max_model_len=subject.max_model_len, num_experts=experts)
    try:
        least = policy.required_by([tenant.id]).get(tenant.id, "")
        return needs_of(
            subject, settings, num_threads=settings.num_threads, sleeps=settings.sleep_after_seconds > 0,
            part=part_of(subject, settings, least),
        )  # fmt: skip
    except NeedUnknown as exc:
        raise errors.Unprocessable(str(exc), code="need_unknown") from exc


def placement(
    tenant: Tenant,
    subject: Subject,
    settings: configs.Settings,
    needs: dict[str, Need],
    replicas: int,
    *,
    files: frozenset[str] = frozenset(),
    peaks: tuple[Measured, ...] = (),
) -> Fit:
    """The planner's answer for the fleet as it is now; ``needs`` are those of :func:`sized`.

    ``files`` are the digests of its weights, which some nodes may have, and ``peaks`` what engines measured.
    """
    spread = spread_of(subject, settings, needs)
    needs = refine(needs, peaks, settings.watermark_critical)
    here = uuid.UUID(int=0)  # a deployment that does not exist yet
    asks = [
        Ask(
            replica_id=uuid.UUID(int=number),
            generation=0,
            deployment_id=here,
            needs=needs,
            files=files,
            desired=replicas,
            tenant_id=tenant.id,
            priority=Priority.NORMAL.rank,
            products=settings.products,
            spread=spread,
        )
        for number in range(max(replicas, 1))
    ]
    snapshot = reading.take(files, holders_of=[tenant.id])
    answers = plan(snapshot, spread_out(asks, snapshot), demand_log.current(), explained=True)
    placed = sum(1 for answer in answers if answer.chosen is not None)
    refused = next((answer for answer in answers if answer.chosen is None), None)
    need = _need_shown(answers[0])
    reason, message, help_ = _words(refused, placed, replicas)
    if refused is None and (over := _over_quota(tenant, replicas, [a.need for a in answers if a.need])):
        reason, message, help_ = "QuotaExceeded", over, advice.MORE_QUOTA
    return Fit(
        fits=not reason,
        replicas=replicas,
        placed=placed,
        need=need.as_dict(),
        devices=answers[0].devices(),
        reason=reason,
        message=message,
        would_fit_if=help_,
        makes_room=refused is not None and all(answer.chosen or answer.relief for answer in answers),
        room_helps=refused is None or refused.room_helps,
    )


def _peaks(tenant: Tenant, version: ModelVersion, settings: configs.Settings) -> tuple[Measured, ...]:
    """What engines measured of this version under the very same config."""
    with scope.tenant(tenant.id):
        config = ServingConfig.objects.filter(digest=settings.digest).values_list("id", flat=True).first()
    return measured({(version.id, config)}).get((version.id, config), ()) if config is not None else ()


def _words(refused: Answer | None, placed: int, replicas: int) -> tuple[str, str, str]:
    if refused is None:
        return "", f"{counted(replicas, 'replica')} would find a place now.", ""
    first = f"{placed} of {counted(replicas, 'replica')} would find a place. " if placed else ""
    if refused.relief is not None:
        first += "Deployed all the same, others make room for it: lower priorities, and what is above a guarantee. "
    return refused.reason, first + refused.message, refused.would_fit_if


def _need_shown(answer: Answer) -> Need:
    """The need on the chosen device; else on the device that stands nearest; else on a CPU where it runs there."""
    if answer.need is not None:
        return answer.need
    needs = answer.ask.needs
    near = (need_on(candidate.device, needs) for candidate in answer.candidates)
    return next((need for need in near if need is not None), needs.get("cpu", in_order(needs)[0]))


def _over_quota(tenant: Tenant, replicas: int, taken: list[Need]) -> str:
    asked = {Kind.REPLICAS: replicas, Kind.HBM_BYTES: sum(need.total_bytes for need in taken)}
    for line in lines_of(tenant):
        if line.kind in asked and not line.allows(Amount.of(asked[line.kind])):
            return exceeded(line, Amount.of(asked[line.kind])).detail
    return ""
