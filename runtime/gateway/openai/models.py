"""Model names as callers say them, and the model list."""

import msgspec

from runtime.gateway.auth import Caller
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.table import Snapshot
from runtime.wire.routes import EndpointEntry, KeyEntry


class Model(msgspec.Struct, frozen=True):
    """One entry of ``GET /v1/models``. ``owned_by`` is the slug of the endpoint's owner."""

    id: str
    created: int
    owned_by: str
    max_model_len: int
    object: str = "model"


class ModelList(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/models``."""

    data: list[Model]
    object: str = "list"


def resolve(snapshot: Snapshot, caller: Caller, name: str) -> EndpointEntry:
    """Return the endpoint that ``caller`` means by ``name``.

    Raises:
        Refusal: 404 for what does not exist for this tenant (another's endpoint included, in the same words), 403 for
            the tenant's own that this key may not call.
    """
    endpoint = snapshot.names.get((caller.tenant.id, name))
    if endpoint is None:
        raise Refusal(
            Reason.MODEL_NOT_FOUND,
            404,
            f"The model {name!r} does not exist or you do not have access to it.",
            code="model_not_found",
            param="model",
        )
    if not _may_call(caller.key, endpoint):
        raise Refusal(
            Reason.MODEL_NOT_ALLOWED,
            403,
            f"This API key may not call the model {name!r}. Use another key, or have the model added to this one.",
            code="model_not_allowed",
            param="model",
        )
    return endpoint


def listing(snapshot: Snapshot, caller: Caller) -> ModelList:
    """Return every model the caller's key may call."""
    rows = snapshot.callable_by(caller.tenant.id)
    return ModelList([entry(snapshot, name, endpoint) for name, endpoint in rows if _may_call(caller.key, endpoint)])


def entry(snapshot: Snapshot, name: str, endpoint: EndpointEntry) -> Model:
    """One model under the name the caller uses."""
    owner = snapshot.tenants[endpoint.tenant_id]
    return Model(id=name, created=endpoint.created, owned_by=owner.slug, max_model_len=endpoint.max_model_len)


def _may_call(key: KeyEntry, endpoint: EndpointEntry) -> bool:
    return not key.allowed_endpoints or endpoint.id in key.allowed_endpoints
