"""The two deployments of a rollout or an experiment: found, locked, and looked at."""

import uuid
from collections.abc import Mapping
from typing import Final

from rollouts.decide import Side
from rollouts.errors import EndpointBusy, NoBaseline, SideGone
from rollouts.models import Experiment, Rollout
from rollouts.states import ACTIVE, ExperimentState
from serving.models import Deployment, Endpoint, Replica
from serving.states import SERVING, DeploymentState, ReplicaState

FULL: Final = 1000
NOTHING: Final = uuid.UUID(int=0)


def only_baseline(endpoint: Endpoint) -> Deployment:
    """The one deployment of ``endpoint`` that gets traffic, within the tenant's scope.

    Raises:
        NoBaseline: there is none, or there are several.
    """
    rows = list(
        Deployment.objects.select_related("revision__version")
        .filter(endpoint=endpoint, state=DeploymentState.RUNNING, weight__gt=0)
        .order_by("id")
    )
    if len(rows) != 1:
        found = "none gets" if not rows else f"{len(rows)} get"
        raise NoBaseline(
            f"Exactly one deployment behind {endpoint.name!r} must get its traffic, and {found} some. "
            "Set the weight of the others to 0 first."
        )
    return rows[0]


def check_free(endpoint: Endpoint, *, but: uuid.UUID = NOTHING) -> None:
    """Raise :class:`EndpointBusy` when something else owns the weights of ``endpoint`` (tenant's scope open)."""
    busy = Rollout.objects.filter(endpoint=endpoint, state__in=ACTIVE).exclude(id=but).first()
    if busy is not None:
        raise EndpointBusy(
            f"A rollout of {endpoint.name!r} is {busy.get_state_display().lower()} already; end it first.",
            data={"rollout": str(busy.id)},
        )
    running = Experiment.objects.filter(endpoint=endpoint, state=ExperimentState.RUNNING).exclude(id=but).first()
    if running is not None:
        raise EndpointBusy(
            f"The experiment {running.name!r} runs on {endpoint.name!r}; end it first.",
            data={"experiment": str(running.id)},
        )


def locked(row: Rollout | Experiment) -> tuple[Deployment, Deployment]:
    """Baseline and candidate, locked in the order of their ids.

    Raises:
        SideGone: one of them was deleted.
    """
    wanted = [key for key in (row.baseline_id, row.candidate_id) if key is not None]
    found = {
        item.id: item
        for item in Deployment.objects.select_for_update(of=("self",), no_key=True)
        .select_related("endpoint", "tenant")
        .filter(id__in=wanted)
        .exclude(state=DeploymentState.DELETING)
        .order_by("id")
    }
    baseline, candidate = (found.get(key) if key else None for key in (row.baseline_id, row.candidate_id))
    if baseline is None or candidate is None:
        gone = "baseline" if baseline is None else "candidate"
        raise SideGone(f"The {gone} was deleted.")
    return baseline, candidate


def looked_at(*deployments: Deployment) -> list[Side]:
    """How each stands: one query for all."""
    ready: dict[uuid.UUID, int] = {}
    rows = Replica.objects.filter(deployment__in=deployments, state__in=SERVING).values_list("deployment_id", flat=True)
    for key in rows:
        ready[key] = ready.get(key, 0) + 1
    return [
        Side(
            desired=item.desired_replicas,
            ready=ready.get(item.id, 0),
            weight=item.weight,
            running=item.state == DeploymentState.RUNNING,
        )
        for item in deployments
    ]


def waits_for_place(deployment: Deployment) -> bool:
    """True while a replica of ``deployment`` found no place."""
    return Replica.objects.filter(deployment=deployment, state=ReplicaState.PENDING).exclude(reason="").exists()


def weights(baseline: Deployment, candidate: Deployment, per_mille: int) -> Mapping[uuid.UUID, int]:
    """The weights that give the candidate ``per_mille`` of the traffic."""
    return {baseline.id: FULL - per_mille, candidate.id: per_mille}


def label_of(deployment: Deployment) -> str:
    """How people name a side: model, version, and the first letters of the revision."""
    revision = deployment.revision
    return f"{revision.model.name} v{revision.version.number} · {str(revision.id)[-6:]}"
