"""Verbs on accounts, for platform admins: switching off and on, making and unmaking others platform admins, a one-time
password link, a lost second factor.
"""

import datetime
from typing import Final

from allauth.account.forms import default_token_generator
from allauth.account.utils import user_pk_to_url_str
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.urls import reverse

from kernel import clock, errors, scope
from kernel.actors import Actor
from ledger import generations
from ledger.record import record
from tenants import access, second_factor
from tenants.errors import LastAdmin
from tenants.models import ApiKey, KeyKind, User, UserToken

LINK_LIFETIME: Final = datetime.timedelta(seconds=86400)


def note(actor: Actor, user: User, action: str, **data: object) -> None:
    """One audit event about an account; it belongs to no tenant."""
    record(
        actor=actor, action=action, subject_kind="user", subject_id=user.id, tenant_id=None, subject_label=user.email,
        data=data,
    )  # fmt: skip


def end_tokens(user: User) -> int:
    """Revoke the person's tokens and playground keys."""
    _end_playgrounds(user)
    return UserToken.objects.filter(user=user, revoked_at=None).update(revoked_at=clock.now())


def _end_playgrounds(user: User) -> None:
    with scope.all_tenants():
        keys = ApiKey.objects.filter(created_by=user, kind=KeyKind.PLAYGROUND, revoked_at=None)
        if keys.update(revoked_at=clock.now()):
            generations.bump(generations.ROUTES)


def _keep_an_admin(user: User) -> None:
    """Lock the platform admins, and raise :class:`LastAdmin` where none that can sign in is left without ``user``."""
    admins = list(User.objects.select_for_update(no_key=True).filter(is_staff=True, is_active=True).order_by("id"))
    if [admin.id for admin in admins] == [user.id]:
        raise LastAdmin("This is the last platform admin that can sign in; make another one first.")


def end_sessions(actor: Actor, user: User, rows: "QuerySet[UserSession]") -> int:
    """Sign ``user`` out of the sessions ``rows``; return of how many."""
    with transaction.atomic():
        found = list(rows)
        for row in found:
            row.end()
        if found:
            note(actor, user, "user.sessions_ended", count=len(found))
    return len(found)


def switch_off(*, actor: Actor, user: User) -> None:
    """The person cannot sign in and nothing acts for them any more; memberships and what they made stay.

    Raises:
        LastAdmin: no active platform admin would be left.
    """
    access.require_platform_admin(actor)
    with transaction.atomic():
        _keep_an_admin(user)
        if User.objects.filter(id=user.id, is_active=True).update(is_active=False):
            note(actor, user, "user.switched_off", tokens_revoked=end_tokens(user))
            end_sessions(actor, user, UserSession.objects.filter(user=user))
    user.refresh_from_db()


def switch_on(*, actor: Actor, user: User) -> None:
    """The person can sign in again; revoked tokens stay revoked."""
    access.require_platform_admin(actor)
    with transaction.atomic():
        if User.objects.filter(id=user.id, is_active=False).update(is_active=True):
            note(actor, user, "user.switched_on")
    user.refresh_from_db()


def make_admin(*, actor: Actor, user: User) -> None:
    """The person stands above tenants from the next call on. Whoever asks has proved who they are (see the callers).

    Raises:
        errors.Conflict: ``account_off``.
    """
    access.require_platform_admin(actor)
    with transaction.atomic():
        if User.objects.filter(id=user.id, is_active=True, is_staff=False).update(is_staff=True, is_superuser=True):
            note(actor, user, "user.admin_made")
        elif not User.objects.filter(id=user.id, is_active=True).exists():
            raise errors.Conflict("This account is switched off; switch it on first.", code="account_off")
    user.refresh_from_db()


def unmake_admin(*, actor: Actor, user: User) -> None:
    """The person is a member of tenants and nothing else from the next call on; open pages of the platform close.

    Raises:
        LastAdmin: no active platform admin would be left.
    """
    access.require_platform_admin(actor)
    with transaction.atomic():
        _keep_an_admin(user)
        if User.objects.filter(id=user.id, is_staff=True).update(is_staff=False, is_superuser=False):
            note(actor, user, "user.admin_unmade")
            _end_playgrounds(user)  # they may have been of tenants that the person is no member of
    user.refresh_from_db()


def password_link(*, actor: Actor, user: User) -> str:
    """A link with which the person chooses a new password: one use, for a day, dead as soon as the password changes.

    A second factor stays, so that the link alone opens nothing where there is one.
    """
    access.require_platform_admin(actor)
    if not user.is_active:
        raise errors.Conflict("This account is switched off; switch it on first.", code="account_off")
    token = default_token_generator.make_token(user)
    path = reverse("account_reset_password_from_key", kwargs={"uidb36": user_pk_to_url_str(user), "key": token})
    with transaction.atomic():
        note(actor, user, "user.password_link_made")
    return f"{settings.PUBLIC_URL}{path}"


def remove_second_factor(*, actor: Actor, user: User) -> None:
    """For a lost phone: the next sign-in asks for the password alone, unless the platform wants a factor."""
    access.require_platform_admin(actor)
    with transaction.atomic():
        if second_factor.forget(user):
            note(actor, user, "user.second_factor_removed")
