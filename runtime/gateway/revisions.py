"""The revision that a request names for itself, past weights and stickiness (pure).

For people who compare the sides of a rollout, and for checks of a candidate before it has a share. Such calls are
metered, and marked so that no judge takes them for traffic.
"""

from collections.abc import Sequence
from typing import Final

from runtime.gateway.auth import Caller
from runtime.gateway.refusals import Reason, Refusal
from runtime.wire.routes import EndpointEntry, Variant

HEADER_REVISION: Final = "x-millpond-revision"
_MOST_SHOWN: Final = 64  # characters of what the caller wrote
_MOST_NAMES: Final = 20


def picked(asked: str, caller: Caller, endpoint: EndpointEntry) -> str:
    """The deployment id of the variant that ``asked`` (the header's value; "": none) names; "" where it names none.

    A variant is called by its revision's number (``r5``), its model version (``v3``), or the id of revision or
    deployment.

    Raises:
        Refusal: 403 for a key that may not, or another tenant's endpoint; 404 for a name that no variant has; 400 for
            one that several have.
    """
    if not asked:
        return ""
    if not caller.key.picks_revision or endpoint.tenant_id != caller.tenant.id:
        raise Refusal(
            Reason.REVISION_NOT_ALLOWED,
            403,
            f"This API key may not name the revision of this model. Leave out {HEADER_REVISION}, or use a key of the "
            "model's own tenant with the scopes inference and manage.",
            code="revision_not_allowed",
            param=HEADER_REVISION,
        )
    found = [variant for variant in endpoint.variants if asked.lower() in _names_of(variant)]
    if len(found) == 1:
        return found[0].deployment_id
    if found:
        raise Refusal(
            Reason.BAD_REQUEST,
            400,
            f"Several revisions are called {asked[:_MOST_SHOWN]!r}. Name one of {_list(found)}.",
            code="revision_ambiguous",
            param=HEADER_REVISION,
        )
    there = f"There are: {_list(endpoint.variants)}." if endpoint.variants else "It has none that runs."
    raise Refusal(
        Reason.REVISION_NOT_FOUND,
        404,
        f"This model has no revision {asked[:_MOST_SHOWN]!r}. {there}",
        code="revision_not_found",
        param=HEADER_REVISION,
    )


def not_ready(variant: Variant | None) -> Refusal:
    """The named revision cannot answer now; ``None``: it does not run any more."""
    what = (
        "The named revision does not run any more." if variant is None else "No replica of the named revision is ready."
    )
    return Refusal(
        Reason.REVISION_NOT_READY,
        503,
        f"{what} Nothing else was tried. Leave out {HEADER_REVISION} to be served by the others.",
        code="revision_not_ready",
        param=HEADER_REVISION,
        retry_after=5,
    )


def _names_of(variant: Variant) -> tuple[str, ...]:
    # An older control plane tells no number.
    by_id = (f"v{variant.version}", variant.revision_id, variant.deployment_id)
    return (f"r{variant.revision_number}", *by_id) if variant.revision_number else by_id


def _list(variants: Sequence[Variant]) -> str:
    """The variants by names that tell them apart, the number of the revision where it does."""
    numbers = [variant.revision_number for variant in variants]
    names = [
        f"r{variant.revision_number} (v{variant.version})"
        if variant.revision_number and numbers.count(variant.revision_number) == 1
        else f"{variant.deployment_id} (v{variant.version})"
        for variant in variants[:_MOST_NAMES]
    ]
    return ", ".join(names)
