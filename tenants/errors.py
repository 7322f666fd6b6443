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
