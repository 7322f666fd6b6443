"""Verbs on invitations: an address is offered a role by a link that is good for one use within seven days.

Only the keyed hash of a link's token is stored. The link goes out by mail where mail is configured, and is then shown
to nobody else; without mail it is shown once, to be handed over. Who holds the link must have, or make, the account of
the invited address. A link says the same of a token that never was, was used, was revoked or has expired.
"""

import datetime
from typing import Final

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from kernel import clock, errors, ids, scope, texts
from kernel.actors import Actor, Way
from ledger import hints
from ledger.record import record
from tenants import access, identity, mail, pacing
from tenants.errors import AlreadyInvited, AlreadyMember, InvitationForOther, InvitationInvalid, TenantSuspended
from tenants.keys import digest_of, maker_of
from tenants.models import Invitation, Member, Tenant, User
from tenants.roles import Permission, Role, permits

LIFETIME: Final = datetime.timedelta(days=7)
RESEND_AFTER: Final = datetime.timedelta(seconds=60)
MAX_SENDS: Final = 20
MAX_OPEN: Final = 200
LINK_PATH: Final = "/accounts/invitations/"


def link_of(text: str) -> str:
    """The address to open. The page takes the token out of it at once."""
    return f"{settings.PUBLIC_URL}{LINK_PATH}{text}/"


def needed_for(role: Role) -> Permission:
    """What somebody needs who gives ``role``: only owners make owners."""
    return Permission.MANAGE_TENANT if role is Role.OWNER else Permission.MANAGE_MEMBERS


def invite(*, actor: Actor, tenant: Tenant, email: str, role: Role) -> tuple[Invitation, str]:
    """Offer ``role`` to ``email``; returns the row and the link, which is "" when it went out by mail.

    The answer does not depend on whether the address has an account.

    Raises:
        AlreadyMember: the address is a member's; change the role instead.
        AlreadyInvited: an open invitation stands; resend or revoke it.
        TooManyAttempts: the tenant, or the address, has had too many.
    """
    access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    access.require(actor, needed_for(role), tenant.id)
    address = _checked_email(email)
    secret = ids.new_secret("mpi").text
    now = clock.now()
    with transaction.atomic(), scope.tenant(tenant.id):
        Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        if Member.objects.filter(user__email__iexact=address).exists():
            raise AlreadyMember("This address is a member's already; change the role instead.", data={"field": "email"})
        pending = Invitation.objects.filter(accepted_at=None, revoked_at=None)
        pending.filter(email__iexact=address, expires_at__lte=now).update(revoked_at=now)
        if pending.count() >= MAX_OPEN:
            raise errors.Conflict(f"{MAX_OPEN} invitations are open, which is the most; revoke some.", code="too_many")
        pacing.take(pacing.INVITE, tenant.id)
        pacing.take(pacing.INVITE_TO, address)
        try:
            with transaction.atomic():
                row = Invitation.objects.create(
                    tenant=tenant, email=address, role=role.value, digest=digest_of(secret), expires_at=now + LIFETIME,
                    created_by_id=maker_of(actor), created_at=now, sent_at=now,
                )  # fmt: skip
        except IntegrityError:
            raise AlreadyInvited(
                "This address is invited already; send that invitation again, or revoke it.", data={"field": "email"}
            ) from None
        _note(actor, row, "invitation.created", {"role": role.value})
    return row, _deliver(actor, tenant, row, secret)


def _checked_email(email: str) -> str:
    address = email.strip().lower()
    try:
        validate_email(address)
    except ValidationError:
        raise errors.InvalidInput("This is no e-mail address.", data={"field": "email"}) from None
    return address


def resend(*, actor: Actor, tenant: Tenant, invitation: Invitation) -> tuple[Invitation, str]:
    """A new link, good for the whole time again; the one before is dead. Returns what :func:`invite` does.

    Raises:
        TooManyAttempts: the last one was sent less than a minute ago, or it was sent too often.
    """
    access.require(actor, needed_for(Role(invitation.role)), tenant.id)
    secret = ids.new_secret("mpi").text
    now = clock.now()
    with transaction.atomic(), scope.tenant(tenant.id):
        row = _locked(invitation)
        wait = (row.sent_at + RESEND_AFTER - now).total_seconds()
        if wait > 0:
            raise errors.TooManyRequests(
                "This invitation was sent less than a minute ago.", data={"retry_after": int(wait) + 1}
            )
        if row.sends >= MAX_SENDS:
            raise errors.Conflict(
                f"This invitation was sent {MAX_SENDS} times; revoke it and make a new one.", code="too_many"
            )
        pacing.take(pacing.INVITE_TO, row.email)
        row.digest, row.sent_at, row.expires_at, row.by_mail = digest_of(secret), now, now + LIFETIME, False
        row.sends += 1
        row.save(update_fields=["digest", "sent_at", "expires_at", "by_mail", "sends"])
        _note(actor, row, "invitation.resent", {"role": row.role})
    return row, _deliver(actor, tenant, row, secret)


def _deliver(actor: Actor, tenant: Tenant, row: Invitation, secret: str) -> str:
    """Mail the link and return "", or return it where that cannot be done."""
    link = link_of(secret)
    words = {"who": actor.label, "tenant": tenant.name, "link": link, "until": f"{row.expires_at:%Y-%m-%d %H:%M} UTC"}
    message = EmailMessage(
        subject=" ".join((_("You are invited to %(tenant)s on Millpond") % words).split()),
        body=_(
            "%(who)s invites you to work in %(tenant)s on Millpond.\n\n"
            "Open this link to accept. It is good for one use, until %(until)s:\n%(link)s\n\n"
            "If you did not expect this, leave it: nothing happens without you."
        )
        % words,
        to=[row.email],
    )
    if not mail.send(message):
        return link
    with scope.tenant(tenant.id):
        Invitation.objects.filter(id=row.id, digest=row.digest).update(by_mail=True)
    row.by_mail = True
    return ""


def revoke(*, actor: Actor, tenant: Tenant, invitation: Invitation) -> None:
    """The link is dead from now on."""
    access.require(actor, Permission.MANAGE_MEMBERS, tenant.id)
    with transaction.atomic(), scope.tenant(tenant.id):
        row = _locked(invitation)
        row.revoked_at = clock.now()
        row.save(update_fields=["revoked_at"])
        _note(actor, row, "invitation.revoked", {"role": row.role})


def end_of_maker(actor: Actor, tenant: Tenant, user: User, role: Role | None) -> None:
    """Revoke the open invitations of ``user`` that ``role`` (``None``: no member any more) may not make.

    Called in the transaction that takes the right away: an offer does not outlive the right to make it.
    """
    for row in Invitation.objects.select_for_update(no_key=True).filter(
        created_by=user, accepted_at=None, revoked_at=None
    ):
        if not permits(role, needed_for(Role(row.role))):
            row.revoked_at = clock.now()
            row.save(update_fields=["revoked_at"])
            _note(actor, row, "invitation.revoked", {"role": row.role})


def _locked(invitation: Invitation) -> Invitation:
    row = (
        Invitation.objects.select_for_update(no_key=True)
        .filter(id=invitation.id, accepted_at=None, revoked_at=None)
        .first()
    )
    if row is None:
        raise InvitationInvalid("This invitation is accepted or revoked.")
    return row


def find(text: str, *, address: str) -> Invitation:
    """The open invitation behind a link's token; ``address`` is who asks, for the pace.

    Raises:
        InvitationInvalid: there is none, whatever the reason.
        TooManyAttempts: the address has tried too many.
    """
    pacing.take(pacing.LINK_FROM, pacing.network_of(address))
    with scope.all_tenants():
        row = (
            Invitation.objects.select_related("tenant", "created_by")
            .filter(digest=digest_of(text), accepted_at=None, revoked_at=None, expires_at__gt=clock.now())
            .first()
        )
    if row is None or row.tenant.suspended_at is not None:
        raise _invalid()
    return row


def _invalid() -> InvitationInvalid:
    return InvitationInvalid("This link is used, revoked or expired, or never was one. Ask for a new invitation.")


def accept(*, actor: Actor, user: User, text: str) -> Member:
    """The signed-in ``user`` takes the role. A member keeps a role that is stronger already.

    Raises:
        InvitationInvalid: see :func:`find`.
        InvitationForOther: the invited address is not the user's.
    """
    invitation = find(text, address=actor.address)
    if invitation.email.lower() != user.email.lower():
        raise InvitationForOther(
            "This invitation is for another address. Sign out, and sign in with the account it was sent to."
        )
    with transaction.atomic(), scope.tenant(invitation.tenant_id):
        return _take(actor, user, invitation, text)


def accept_as_new(
    *, text: str, name: str, password: str, address: str, request_id: str, way: str
) -> tuple[User, Member]:
    """Make the account of the invited address, with ``password``, and take the role.

    Raises:
        errors.InvalidInput: the password does not follow the rules; ``data["field"]`` is ``password``.
        errors.Conflict: the address has an account; sign in with it.
    """
    invitation = find(text, address=address)
    draft = User(email=invitation.email.lower(), name=texts.readable(name)[:120])
    try:
        validate_password(password, draft)
    except ValidationError as exc:
        raise errors.InvalidInput(" ".join(exc.messages), code="weak_password", data={"field": "password"}) from None
    try:
        with transaction.atomic(), scope.tenant(invitation.tenant_id):
            user = User.objects.create_user(draft.email, password, name=draft.name)
            actor = identity.actor_of_user(user, way=Way(way), address=address, request_id=request_id)
            record(
                actor=actor, action="user.created", subject_kind="user", subject_id=user.id, tenant_id=None,
                subject_label=user.email, data={"invited_to": invitation.tenant.slug},
            )  # fmt: skip
            return user, _take(actor, user, invitation, text)
    except IntegrityError:
        raise errors.Conflict("This address has an account already. Sign in with it.", code="account_exists") from None


def _take(actor: Actor, user: User, invitation: Invitation, text: str) -> Member:
    tenant = Tenant.objects.select_for_update(no_key=True).get(id=invitation.tenant_id)
    if tenant.suspended_at is not None:
        raise TenantSuspended(f"Tenant {tenant.slug!r} is suspended: nothing can be changed.")
    now = clock.now()
    row = (
        Invitation.objects.select_for_update(no_key=True)
        .filter(id=invitation.id, accepted_at=None, revoked_at=None)
        .first()
    )
    if row is None or row.expires_at <= now or row.digest != digest_of(text):
        raise _invalid()
    row.accepted_at, row.accepted_by = now, user
    row.save(update_fields=["accepted_at", "accepted_by"])
    if row.by_mail and user.email_verified_at is None:
        user.email_verified_at = now
        user.save(update_fields=["email_verified_at"])
    order = list(Role)
    member, made = Member.objects.get_or_create(tenant=tenant, user=user, defaults={"role": row.role})
    if not made and order.index(Role(member.role)) < order.index(Role(row.role)):
        member.role = row.role
        member.save(update_fields=["role"])
    _note(actor, row, "invitation.accepted", {"role": member.role})
    return member


def _note(actor: Actor, row: Invitation, action: str, data: dict[str, str]) -> None:
    record(
        actor=actor,
        action=action,
        subject_kind="invitation",
        subject_id=row.id,
        tenant_id=row.tenant_id,
        subject_label=row.email,
        data=data,
    )
    hints.push_on_commit(hints.tenant_topic(row.tenant_id), {"what": "members"})
