"""What happens to accounts through allauth, as audit events: connected to its signals when the app starts.

Rows of second factors are watched where they are written, so that event and change are in one transaction.
"""

from typing import Any

from allauth.account.signals import password_changed, password_reset, password_set, user_logged_in
from allauth.core import context
from allauth.mfa.models import Authenticator
from allauth.mfa.signals import authenticator_used
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.http import HttpRequest

from kernel.actors import Actor, Way
from tenants import identity, people
from tenants.models import User


def connect() -> None:
    """Once, when the app is ready."""
    user_logged_in.connect(_signed_in, dispatch_uid="console.signed_in")
    password_changed.connect(_password_changed, dispatch_uid="console.password_changed")
    password_set.connect(_password_changed, dispatch_uid="console.password_set")
    password_reset.connect(_password_reset, dispatch_uid="console.password_reset")
    authenticator_used.connect(_factor_used, dispatch_uid="console.factor_used")
    post_save.connect(_factor_saved, sender=Authenticator, dispatch_uid="console.factor_saved")
    post_delete.connect(_factor_deleted, sender=Authenticator, dispatch_uid="console.factor_deleted")


def actor_in(request: HttpRequest, user: User) -> Actor:
    """``user``, acting through a page."""
    return identity.actor_of_user(
        user,
        way=Way.CONSOLE,
        address=identity.address_of(request.META),
        request_id=getattr(request, "request_id", ""),
    )


def _note(request: HttpRequest, user: User, action: str, **data: object) -> None:
    with transaction.atomic():
        people.note(actor_in(request, user), user, action, **data)


def _signed_in(request: HttpRequest, user: User, **kwargs: Any) -> None:
    records = request.session.get("account_authentication_methods") or []
    _note(request, user, "user.signed_in", methods=sorted({str(record.get("method")) for record in records}))


def _password_changed(request: HttpRequest, user: User, **kwargs: Any) -> None:
    _note(request, user, "user.password_changed")


def _password_reset(request: HttpRequest, user: User, **kwargs: Any) -> None:
    """Who resets a password may have lost more than that: what acts for the person ends too."""
    with transaction.atomic():
        people.note(actor_in(request, user), user, "user.password_reset", tokens_revoked=people.end_tokens(user))


def _factor_used(request: HttpRequest, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    if authenticator.type == Authenticator.Type.RECOVERY_CODES:
        _note(request, user, "user.recovery_code_used")


def _factor_saved(instance: Authenticator, created: bool, **kwargs: Any) -> None:
    if created:
        _note_factor(instance, {"totp": "second_factor_added", "recovery_codes": "recovery_codes_made"})


def _factor_deleted(instance: Authenticator, **kwargs: Any) -> None:
    _note_factor(instance, {"totp": "second_factor_removed"})


def _note_factor(row: Authenticator, actions: dict[str, str]) -> None:
    """What people do to their own factors; what others do to them is noted by ``tenants.people``."""
    request = context.request
    if request is None or getattr(request, "user", None) != row.user or row.type not in actions:
        return
    _note(request, row.user, f"user.{actions[row.type]}")
