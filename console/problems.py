"""Errors of the rooms in the visitor's language: by code where we know it, else in the room's own words."""

from typing import Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

from console.presenters import sentences
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
    "not_a_member": _("This address is no member's here. Invite it."),
    "member_not_found": _("There is no such member here."),
    "stale_transition": _("Somebody or something else was faster. Look again and repeat if it is still needed."),
    "invalid_slug": _("Use 1 to 40 lower-case letters, digits and hyphens; begin and end with a letter or digit."),
    "invalid_isolation": _("Choose how strictly replicas are kept apart from the list."),
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
    "nowhere_to_run": _("No device here could run this version so; what serves would end for nothing."),
    "deployment_gone": _("One of the two deployments was deleted; nothing can be moved any more."),
    "candidate_not_ready": _("The candidate has no ready replica yet. Wait until it serves."),
    "invitation_invalid": _("This link is used, revoked or expired, or never was one. Ask for a new invitation."),
    "invitation_for_other": _(
        "This invitation is for another address. Sign out, and sign in with the account it was sent to."
    ),
    "invitation_not_found": _("There is no such open invitation here."),
    "already_invited": _("This address is invited already. Make a new link for that invitation, or revoke it."),
    "already_member": _("This address is a member’s already. Change the role instead."),
    "account_exists": _("This address has an account already. Sign in with it."),
    "service_account_not_found": _("There is no such service account here."),
    "service_account_disabled": _("This service account is disabled. Enable it first."),
    "name_taken": _("This name is taken. Choose another one."),
    "too_many": _("There are as many as there may be. End some first."),
    "too_many_attempts": _("Too many attempts. Wait a few minutes and try again."),
    "last_platform_admin": _("This is the last platform admin that can sign in. Make another one first."),
    "account_off": _("This account is switched off. A platform admin can switch it on again."),
    "wrong_password": _("The password is wrong."),
    "second_factor_wrong": _("The code is wrong, or was used already."),
    "session_not_found": _("There is no such session."),
    "person_not_found": _("There is no such person here."),
    "key_too_wide": _("A key gives no more than it has itself. Let a member do this."),
    "openid_provider_failed": _("Your company’s sign-in does not answer. Try again, or use a password."),
    "openid_refused": _("The answer of your company’s sign-in cannot be taken. Begin again."),
    "openid_unknown_user": _(
        "Nobody here has an account with your address. Ask an owner of your tenant for an invitation."
    ),
    "openid_other_subject": _("Your address belongs to another person’s account. Ask a platform admin."),
    "openid_no_email": _("Your company’s sign-in does not tell your e-mail address."),
    "openid_email_not_verified": _(
        "Your company’s sign-in has not verified your e-mail address, so it is matched with no account."
    ),
    "openid_domain": _("Addresses of this domain may not sign in here."),
    "openid_state": _("This answer belongs to no sign-in of this browser. Begin again."),
    "openid_late": _("The sign-in took longer than ten minutes. Begin again."),
    "openid_cancelled": _("The sign-in was cancelled, or your company refused it."),
    "openid_not_fresh": _("Your company’s sign-in did not ask you again just now. Use another way to confirm."),
    "openid_not_found": _("There is no such sign-in here."),
    "method_not_allowed": _("This page only answers GET."),
    "price_not_found": _("There is no such price, or it holds already."),
    "price_start_invalid": _("A price begins later than now; that of a device with a whole hour (UTC)."),
    "alias_not_found": _("There is no such alias here."),
    "grant_not_found": _("There is no such grant here."),
    "grant_exists": _("This tenant may call the endpoint already."),
    "endpoint_name_taken": _("An endpoint with this name exists already. Choose another name."),
    "deployment_deleting": _("This deployment is being deleted; nothing can be changed any more."),
    "version_is_ready": _("The version is ready. Archive it first, then delete it."),
    "revision_not_found": _("There is no such revision here."),
    "device_not_found": _("There is no such device."),
    "gateway_not_found": _("There is no such gateway."),
    "upload_not_found": _("There is no such upload here."),
    "quota_group_not_found": _("There is no such quota group."),
    "quota_group_exists": _("A group with this name exists already. Choose another name."),
    "too_many_deployments": _("The tenant has as many deployments as it may. Delete one first."),
    "too_many_endpoints": _("The tenant has as many endpoints as it may. Delete one first."),
    "too_many_models": _("The tenant has as many models as it may. Delete one first."),
    "too_many_grants": _("The endpoint is granted to as many tenants as it may be."),
    "too_many_unfinished_versions": _("Too many versions are unfinished. Finish or delete one first."),
    "too_many_aliases": _("The model has as many aliases as it may. Remove one first."),
    "storage_full": _("The platform’s storage is full. Ask a platform admin."),
    "address_not_allowed": _("This key may not be used from your address."),
    "checksum_mismatch": _("A part arrived damaged. It is sent again."),
    "checksum_unsupported": _("This kind of checksum is not known here. Use SHA-1 or SHA-256."),
    "digest_mismatch": _("The file that arrived is not the one that was announced. Choose it again."),
    "file_complete": _("This file has arrived completely already."),
    "idempotency_in_progress": _("The same request is still at work. Ask again in a moment."),
    "idempotency_key_reused": _("This Idempotency-Key was used for another request. Choose a new one."),
    "invalid_api_key": _("This API key is not known, or is revoked or expired."),
    "invalid_token": _("This token is not known, or has ended. Sign in again."),
    "offset_mismatch": _("Another part was expected here. The upload goes on at the right place."),
    "reauthentication_required": _("Confirm first that it is you."),
    "scope_missing": _("The scopes of this key do not allow this."),
    "second_factor_missing": _("The platform wants a second factor. Set up an authenticator app first."),
    "second_factor_needed": _("Enter the code of your authenticator app as well."),
    "token_not_found": _("There is no such token."),
    "too_many_groups": _("There are as many quota groups as there may be. Delete one first."),
    "too_many_requests": _("Too many requests at once. Wait a moment."),
    "tus_version": _("This upload protocol is not spoken here. Use tus 1.0.0."),
    "unauthenticated": _("Sign in first."),
    "unknown_user": _("Nobody has an account with this address. Invite them instead."),
    "unsupported_media_type": _("The body of this request is of a kind that is not taken here."),
    "upload_complete": _("This upload is complete already."),
    "upload_gone": _("This upload was aborted or has expired. Begin it again."),
    "upload_locked": _("Another window is sending this file. Close it, or wait."),
    "version_closed": _("This version takes no more files. Upload a new version."),
    "wrong_credentials": _("The address or the password is wrong."),
    "busy": _("Too much changed at once. Try again."),
}
# Codes under which a room says which name, number or limit it is about: in another language our sentence stands before
# the room's, so that nothing it says is lost.
_BEGINNINGS: Final[dict[str, str | Promise]] = {
    "capacity_gone": _("The room was taken in the meantime."),
    "conflict": _("The state has changed in the meantime."),
    "device_elsewhere": _("This device belongs to another node."),
    "endpoint_in_use": _("The endpoint is still used."),
    "file_refused": _("This file is not taken."),
    "files_missing": _("Files are missing."),
    "forbidden": _("You may not do this."),
    "gone": _("This is over."),
    "in_use": _("This is still used."),
    "internal_error": _("Something went wrong here."),
    "invalid_alias": _("This is no name for an alias."),
    "invalid_config": _("The serving config cannot be used."),
    "invalid_input": _("Something in the input is wrong."),
    "invalid_name": _("This name cannot be used."),
    "layout_impossible": _("The GPU cannot be cut like this."),
    "layout_in_use": _("Somebody holds a part of this GPU."),
    "need_unknown": _("What a replica needs is not known yet."),
    "node_holds_replicas": _("The node still holds replicas. Drain it first."),
    "not_found": _("This does not exist here."),
    "precondition_failed": _("Somebody changed this in the meantime. Load it again."),
    "quota_exceeded": _("The tenant’s quota does not suffice."),
    "quota_group_in_use": _("Tenants are in this group."),
    "too_large": _("This is larger than what is taken."),
    "unavailable": _("This does not answer at the moment."),
    "unprocessable": _("This cannot be done as asked."),
    "version_not_ready": _("The version is not ready."),
    "no_engine": _("No engine here runs models of this format. The version is kept; upload another format to deploy."),
    "weak_password": _("This password is too weak."),
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
    if known:
        return Said(title, str(known), False)
    beginning = _BEGINNINGS.get(exc.code)
    if beginning is None or (get_language() or "en").startswith("en"):
        found = sentences.said(exc.detail)
        return Said(title, found.text, not found.is_translated)
    return Said(title, f"{beginning} {sentences.said(exc.detail).text}".strip(), False)
