"""Audit events as lines for people: a glyph, a sentence in the visitor's language, and the facts beside it."""

import dataclasses
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

# Sentences by action; ``%(who)s`` acts, ``%(what)s`` is the subject's label.
SENTENCES: Final[dict[str, tuple[str, str | Promise]]] = {
    "tenant.created": ("added", _("%(who)s created the tenant %(what)s")),
    "tenant.suspended": ("removed", _("%(who)s suspended the tenant %(what)s")),
    "tenant.resumed": ("added", _("%(who)s resumed the tenant %(what)s")),
    "tenant.isolation_set": ("changed", _("%(who)s changed how strictly the tenant %(what)s is kept apart")),
    "tenant.limits_set": ("changed", _("%(who)s changed the limits of the tenant %(what)s")),
    "member.set": ("changed", _("%(who)s gave %(what)s a role")),
    "member.removed": ("removed", _("%(who)s removed the member %(what)s")),
    "api_key.created": ("added", _("%(who)s created the key %(what)s")),
    "api_key.changed": ("changed", _("%(who)s changed what the key %(what)s may")),
    "api_key.rotated": ("changed", _("%(who)s gave the key %(what)s a new secret")),
    "budget.reached": ("attention", _("The budget of %(what)s is used up")),
    "price.set": ("changed", _("%(who)s changed the price of %(what)s")),
    "price.removed": ("removed", _("%(who)s removed the price of %(what)s")),
    "price.withdrawn": ("removed", _("%(who)s took back a later price of %(what)s")),
    "device_price.set": ("changed", _("%(who)s changed what an hour of %(what)s costs")),
    "device_price.withdrawn": ("removed", _("%(who)s took back a later price of %(what)s")),
    "api_key.revoked": ("removed", _("%(who)s revoked the key %(what)s")),
    "invitation.created": ("added", _("%(who)s invited %(what)s")),
    "invitation.resent": ("changed", _("%(who)s sent a new invitation to %(what)s")),
    "invitation.revoked": ("removed", _("%(who)s revoked the invitation of %(what)s")),
    "invitation.accepted": ("done", _("%(what)s accepted the invitation")),
    "service_account.created": ("added", _("%(who)s created the service account %(what)s")),
    "service_account.changed": ("changed", _("%(who)s changed the role of the service account %(what)s")),
    "service_account.disabled": ("removed", _("%(who)s disabled the service account %(what)s")),
    "service_account.enabled": ("added", _("%(who)s enabled the service account %(what)s")),
    "service_account.deleted": ("removed", _("%(who)s deleted the service account %(what)s")),
    "user.created": ("added", _("The account %(what)s was made")),
    "user.signed_in": ("changed", _("%(what)s signed in")),
    "user.password_changed": ("changed", _("%(what)s changed the password")),
    "user.password_reset": ("changed", _("%(what)s chose a new password by a link")),
    "user.password_link_made": ("changed", _("%(who)s made a password link for %(what)s")),
    "user.second_factor_added": ("added", _("%(what)s set up a second factor")),
    "user.second_factor_removed": ("removed", _("%(who)s removed the second factor of %(what)s")),
    "user.recovery_codes_made": ("changed", _("%(what)s made new recovery codes")),
    "user.recovery_code_used": ("attention", _("%(what)s signed in with a recovery code")),
    "user.sessions_ended": ("removed", _("%(who)s signed out devices of %(what)s")),
    "user.identity_linked": ("added", _("The account %(what)s was linked with a company’s sign-in")),
    "user.switched_off": ("removed", _("%(who)s switched off the account %(what)s")),
    "user.switched_on": ("added", _("%(who)s switched on the account %(what)s")),
    "user.admin_made": ("attention", _("%(who)s made %(what)s a platform admin")),
    "user.admin_unmade": ("removed", _("%(who)s took the rights of a platform admin from %(what)s")),
    "user_token.created": ("added", _("%(who)s created a token")),
    "user_token.revoked": ("removed", _("%(who)s revoked a token")),
    "model.created": ("added", _("%(who)s created the model %(what)s")),
    "model.deleted": ("removed", _("%(who)s deleted the model %(what)s")),
    "model_version.created": ("added", _("%(who)s began the version %(what)s")),
    "model_version.validating": ("changed", _("%(what)s is being checked")),
    "model_version.ready": ("done", _("%(what)s is ready to deploy")),
    "model_version.rejected": ("failed", _("%(what)s was rejected")),
    "model_version.archived": ("removed", _("%(who)s archived %(what)s")),
    "alias.moved": ("changed", _("%(who)s moved the alias %(what)s")),
    "alias.deleted": ("removed", _("%(who)s removed the alias %(what)s")),
    "revision.created": ("added", _("%(who)s made the revision %(what)s")),
    "endpoint.created": ("added", _("%(who)s created the endpoint %(what)s")),
    "endpoint.deleted": ("removed", _("%(who)s deleted the endpoint %(what)s")),
    "endpoint.granted": ("changed", _("%(who)s granted the endpoint %(what)s")),
    "endpoint.grant_revoked": ("removed", _("%(who)s took back a grant of %(what)s")),
    "endpoint.changed": ("changed", _("%(who)s changed what %(what)s promises")),
    "endpoint.slo_set": ("changed", _("%(who)s changed what %(what)s promises")),
    "deployment.created": ("added", _("%(who)s deployed to %(what)s")),
    "deployment.scaled": ("changed", _("%(who)s scaled %(what)s")),
    "deployment.running": ("changed", _("%(who)s started %(what)s")),
    "deployment.stopped": ("changed", _("%(who)s stopped %(what)s")),
    "deployment.deleting": ("removed", _("%(who)s deletes the deployment of %(what)s")),
    "deployment.deleted": ("removed", _("The deployment of %(what)s is gone")),
    "replica.created": ("added", _("Replica %(what)s is wanted")),
    "replica.assigned": ("changed", _("Replica %(what)s has a place")),
    "replica.fetching": ("changed", _("Replica %(what)s fetches its weights")),
    "replica.loading": ("changed", _("Replica %(what)s loads its weights")),
    "replica.warming": ("changed", _("Replica %(what)s warms up")),
    "replica.ready": ("done", _("Replica %(what)s is ready")),
    "replica.degraded": ("attention", _("Replica %(what)s is degraded")),
    "replica.asleep": ("changed", _("Replica %(what)s sleeps")),
    "replica.moving": ("changed", _("Replica %(what)s is asked to leave its place once its successor serves")),
    "replica.draining": ("changed", _("Replica %(what)s drains")),
    "replica.stopped": ("removed", _("Replica %(what)s has stopped")),
    "replica.failed": ("failed", _("Replica %(what)s failed")),
    "replica.pending": ("changed", _("Replica %(what)s waits for a place")),
    "replica.ejected": ("attention", _("A gateway sends nothing to the replica %(what)s for now")),
    "replica.readmitted": ("done", _("A gateway sends requests to the replica %(what)s again")),
    "replica.unreachable": ("attention", _("Replica %(what)s cannot be reached")),
    "node.joined": ("added", _("The node %(what)s joined")),
    "node.ready": ("done", _("The node %(what)s is ready")),
    "node.lost": ("failed", _("The node %(what)s fell silent")),
    "node.cordoned": ("changed", _("%(who)s cordoned the node %(what)s")),
    "node.draining": ("changed", _("%(who)s drains the node %(what)s")),
    "node.drained": ("done", _("The node %(what)s is drained")),
    "node.gap_accepted": ("changed", _("%(who)s lets what is left on the node %(what)s stop now")),
    "node.fault_domain_set": ("changed", _("%(who)s set what the node %(what)s fails together with")),
    "node.removed": ("removed", _("%(who)s removed the node %(what)s")),
    "gateway.joined": ("added", _("The gateway %(what)s joined")),
    "join_token.created": ("added", _("%(who)s made a join token")),
    "model_version.deleted": ("removed", _("%(who)s deleted the version %(what)s")),
    "upload.complete": ("done", _("%(what)s has arrived and is verified")),
    "upload.aborted": ("removed", _("The upload of %(what)s was aborted")),
    "upload.expired": ("removed", _("The upload of %(what)s expired")),
    "node.rejoined": ("added", _("The node %(what)s joined again")),
    "node.joining": ("changed", _("The node %(what)s is joining")),
    "node.ready_on_return": ("changed", _("%(who)s puts %(what)s into service when it returns")),
    "node.cordoned_on_return": ("changed", _("%(who)s cordons %(what)s when it returns")),
    "node.draining_on_return": ("changed", _("%(who)s drains %(what)s when it returns")),
    "gateway.rejoined": ("added", _("The gateway %(what)s joined again")),
    "gateway.removed": ("removed", _("%(who)s removed the gateway %(what)s")),
    "device.healthy": ("done", _("The device %(what)s is healthy")),
    "device.suspect": ("attention", _("The device %(what)s is suspect")),
    "device.quarantined": ("failed", _("The device %(what)s is quarantined")),
    "device.recovering": ("changed", _("The device %(what)s recovers")),
    "device.layout_set": ("changed", _("%(who)s changed how the device %(what)s is cut")),
    "device.retired": ("removed", _("The device %(what)s is retired")),
    "deployment.weighted": ("changed", _("%(who)s moved traffic of %(what)s")),
    "rollout.created": ("added", _("%(who)s planned a rollout of %(what)s")),
    "rollout.running": ("changed", _("The rollout of %(what)s runs")),
    "rollout.hurried": ("changed", _("%(who)s promotes %(what)s: on to the last step, without judging")),
    "rollout.paused": ("attention", _("The rollout of %(what)s is paused")),
    "rollout.promoted": ("done", _("The rollout of %(what)s was promoted")),
    "rollout.rolling_back": ("attention", _("The rollout of %(what)s rolls back")),
    "rollout.rolled_back": ("failed", _("The rollout of %(what)s was rolled back")),
    "rollout.aborted": ("removed", _("%(who)s aborted the rollout of %(what)s")),
    "experiment.started": ("added", _("%(who)s started the experiment %(what)s")),
    "experiment.ended": ("done", _("The experiment %(what)s has ended")),
    "quota_group.created": ("added", _("%(who)s made the quota group %(what)s")),
    "quota_group.set": ("changed", _("%(who)s changed the quota of the group %(what)s")),
    "quota_group.deleted": ("removed", _("%(who)s deleted the quota group %(what)s")),
    "deployment.prioritized": ("changed", _("%(who)s changed the priority of %(what)s")),
    "quota.set": ("changed", _("%(who)s changed the quota of %(what)s")),
}


#: What is said instead when the event tells more.
SHARE: Final = _("%(who)s moved traffic of %(what)s: %(share)s %% of it to v%(version)s")

INTO_GROUP: Final = _("%(who)s changed the quota of %(what)s and put it into the group %(group)s")
OUT_OF_GROUP: Final = _("%(who)s changed the quota of %(what)s and took it out of the group %(group)s")

_EVERY: Final = {"all endpoints": _("all endpoints"), "all devices": _("all devices")}


@dataclasses.dataclass(frozen=True)
class Line:
    """``glyph`` is a state of the kind "event"; ``known`` is false when the action has no sentence yet."""

    event: Any
    glyph: str
    text: str
    known: bool

    @property
    def message(self) -> str:
        """What the event says beside its sentence; "" where that is only who it was."""
        said: str = self.event.message
        return "" if said == f"By {self.event.actor_label}." else said


def line(event: Any) -> Line:
    """One event as a line; an action without a sentence is shown by its name."""
    glyph, template = SENTENCES.get(event.action, ("changed", ""))
    what = _EVERY.get(event.subject_label) or event.subject_label or event.subject_id[-8:]
    if not template:
        return Line(event, glyph, f"{event.action} {what}", False)
    words = {"who": event.actor_label, "what": what}
    if event.action == "deployment.weighted" and {"share", "version"} <= event.data.keys():
        words |= {"share": f"{event.data['share']:g}", "version": event.data["version"]}
        return Line(event, glyph, str(SHARE) % words, True)
    if event.action == "quota.set" and (moved := _moved(event.data)):
        return Line(event, glyph, str(moved[0]) % {**words, "group": moved[1]}, True)
    return Line(event, glyph, str(template) % words, True)


def _moved(data: dict[str, Any]) -> tuple[str | Promise, str] | None:
    """The sentence for a tenant that came into a group or left it, and the group's name."""
    was, is_now = (data.get(side, {}).get("group") for side in ("before", "after"))
    if was == is_now:
        return None
    return (INTO_GROUP, is_now) if is_now else (OUT_OF_GROUP, was)
