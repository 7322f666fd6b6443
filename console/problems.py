"""Errors of the rooms in the visitor's language: by code where we know it, else in the room's own words."""

from typing import Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from kernel import errors


class Said(NamedTuple):
    """``own_words`` is true where ``text`` is the room's English sentence."""

    title: str | Promise
    text: str
    own_words: bool


_TITLES: Final[dict[int, str | Promise]] = {
    400: _("Check the input"),
    401: _("Sign in first"),
    403: _("Not allowed"),
    404: _("Not found"),
    409: _("The state has changed"),
    410: _("Gone"),
    413: _("Too large"),
    422: _("Cannot be done"),
    429: _("Too many requests"),
    503: _("Not available now"),
}
_TEXTS: Final[dict[str, str | Promise]] = {
    "tenant_not_found": _("There is no such tenant, or you are not a member of it."),
    "tenant_suspended": _("This tenant is suspended: nothing can be changed. Ask a platform admin."),
    "slug_taken": _("A tenant with this name exists already. Choose another name."),
    "last_owner": _("This is the tenant’s last owner. Make somebody else owner first."),
    "key_revoked": _("This key is revoked already."),
    "api_key_not_found": _("There is no such API key here."),
    "member_not_found": _("There is no such member here."),
    "stale_transition": _("Somebody or something else was faster. Look again and repeat if it is still needed."),
    "invalid_slug": _("Use 1 to 40 lower-case letters, digits and hyphens; begin and end with a letter or digit."),
    "model_not_found": _("There is no such model here."),
    "version_not_found": _("There is no such version here."),
    "endpoint_not_found": _("There is no such endpoint here."),
    "deployment_not_found": _("There is no such deployment here."),
    "replica_not_found": _("There is no such replica here."),
    "node_not_found": _("There is no such node."),
    "rollout_not_found": _("There is no such rollout here."),
    "experiment_not_found": _("There is no such experiment here."),
    "endpoint_busy": _("Another rollout or experiment owns the traffic of this endpoint. End it first."),
    "no_single_baseline": _(
        "Exactly one deployment behind the endpoint must get its traffic. Change the shares first."
    ),
    "same_revision": _("This serves already. Choose another version or change the config."),
    "gap_not_accepted": _(
        "This plan interrupts or thins the service. Accept its sentence below, or choose other capacity."
    ),
    "deployment_gone": _("One of the two deployments was deleted; nothing can be moved any more."),
    "candidate_not_ready": _("The candidate has no ready replica yet. Wait until it serves."),
    "method_not_allowed": _("This page only answers GET."),
}


def describe(exc: errors.PlatformError) -> Said:
    """Title and sentence for ``exc``."""
    title = _TITLES.get(exc.status, _("Something went wrong"))
    known = _TEXTS.get(exc.code)
    if exc.code == "forbidden" and (role := exc.data.get("role_needed")):
        known = (
            _("Only platform admins may do this.")
            if role == "platform_admin"
            else _("This needs the role %(role)s or above. Ask an owner of the tenant.") % {"role": role}
        )
    return Said(title, str(known) if known else exc.detail, known is None)
