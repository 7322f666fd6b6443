"""A model is judged before it is uploaded: its ``config.json`` says what it needs, the planner where that would fit."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from catalog import configs, outline
from catalog.errors import FileRefused
from catalog.formats.facts import Rejected
from kernel.actors import Actor
from scheduling.fit import Fit, placement, sized
from scheduling.need import in_order
from tenants import access
from tenants.models import Tenant
from tenants.roles import Permission


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """``served`` says whether an engine here runs the architecture; ``reason`` and ``message`` why not, in the words of
    the check after an upload.

    ``parameters`` follow from the config, tensor by tensor where ``exact``, else by general formulas. ``needs`` has
    what one replica needs on each kind of device; ``placement`` is the dry run's answer for the fleet as it is now.
    """

    architecture: str
    served: bool
    reason: str
    message: str
    parameters: int
    exact: bool
    max_model_len: int
    needs: list[dict[str, Any]]
    placement: Fit


def evaluate(
    *, actor: Actor, tenant: Tenant, config: Mapping[str, Any], serving: Mapping[str, Any], replicas: int = 1
) -> Evaluation:
    """Judge a model by its ``config`` (what its ``config.json`` says) under a ``serving`` config. Writes nothing.

    Where ``serving`` names no ``dtype`` the weights are taken as they are stored.

    Raises:
        FileRefused: its size cannot be told; ``data["reason"]`` says why.
        errors.InvalidInput: a setting that does not exist or is out of bounds.
        errors.Unprocessable: the settings leave no way to run it.
    """
    access.require(actor, Permission.VIEW, tenant.id)
    settings = configs.normalise({"dtype": stored_dtype(config), **serving})
    try:
        found = outline.read(config)
    except Rejected as refusal:
        raise refused(refusal) from refusal
    needs = sized(tenant, found, settings)
    return Evaluation(
        architecture=found.architecture,
        served=found.served,
        reason=found.reason,
        message=found.message,
        parameters=found.parameters,
        exact=found.exact,
        max_model_len=found.max_model_len,
        needs=[need.as_dict() for need in in_order(needs)],
        placement=placement(tenant, found, settings, needs, replicas),
    )


def stored_dtype(config: Mapping[str, Any]) -> str:
    """The number format that a ``config`` says its weights have; bfloat16, as most have, where it says none."""
    stated = config.get("torch_dtype") or config.get("dtype")
    return stated if isinstance(stated, str) and stated in configs.DTYPE_BYTES else "bfloat16"


def refused(refusal: Rejected) -> FileRefused:
    """The error of a ``config.json`` that cannot be read."""
    return FileRefused(refusal.message, data={"reason": refusal.reason.value, "path": "config.json"})
