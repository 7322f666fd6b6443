"""Errors of this room."""

from kernel import errors


class TenantSuspended(errors.Forbidden):
    code = "tenant_suspended"
    title = "Tenant suspended"


class SlugTaken(errors.Conflict):
    code = "slug_taken"
    title = "Name is taken"


class LastOwner(errors.Conflict):
    code = "last_owner"
    title = "A tenant keeps one owner"


class KeyRevoked(errors.Conflict):
    code = "key_revoked"
    title = "Key is already revoked"


class KeyTooWide(errors.Forbidden):
    code = "key_too_wide"
    title = "A key gives no more than it has"


class AddressNotAllowed(errors.Forbidden):
    code = "address_not_allowed"
    title = "Key is not for this address"


class TooManyAttempts(errors.TooManyRequests):
    code = "too_many_attempts"
    title = "Too many attempts"


class SecondFactorMissing(errors.Forbidden):
    code = "second_factor_missing"
    title = "A second factor is needed"


class AuthenticationTooOld(errors.Forbidden):
    code = "reauthentication_required"
    title = "Confirm that it is you"


class InvitationInvalid(errors.Gone):
    code = "invitation_invalid"
    title = "The invitation is not open"


class InvitationForOther(errors.Forbidden):
    code = "invitation_for_other"
    title = "The invitation is for another address"


class AlreadyInvited(errors.Conflict):
    code = "already_invited"
    title = "Already invited"


class AlreadyMember(errors.Conflict):
    code = "already_member"
    title = "Already a member"


class ServiceAccountDisabled(errors.Conflict):
    code = "service_account_disabled"
    title = "The service account is disabled"


class LastAdmin(errors.Conflict):
    code = "last_platform_admin"
    title = "The platform keeps one admin"
