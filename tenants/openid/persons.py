"""Which of our accounts a subject of a provider is.

1. A subject that was here before is the same account, whatever its address says now.
2. Otherwise the account with the same e-mail address, if the provider says that it has verified the address, and the
   address is of an allowed domain. Such an account is linked once: when another subject of the same provider has it
   already (addresses are given to new people), the sign-in is refused.
   Where nobody has verified the account's address before, whoever made the account may not be who reads the mail: its
   password, tokens and second factor end with the link.
3. Otherwise nobody: refused, or, where the provider's setting says so, a new account without any membership.
"""

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from kernel import clock, errors
from kernel.actors import Way
from tenants import identity, people, second_factor
from tenants.models import ExternalIdentity, User
from tenants.openid.protocol import SignInRefused
from tenants.openid.providers import Provider


def person_of(provider: Provider, claims: Mapping[str, Any], *, address: str, request_id: str) -> User:
    """The account behind the (verified) claims.

    Raises:
        SignInRefused: nobody, a switched-off account, or an address that may not be matched.
    """
    subject = str(claims["sub"])
    try:
        with transaction.atomic():
            user = _known(provider, subject) or _matched(provider, claims, subject, address, request_id)
    except IntegrityError:  # two first sign-ins at once: the other one has linked
        linked = _known(provider, subject)
        if linked is None:
            raise SignInRefused("Somebody else was faster. Sign in again.") from None
        user = linked
    if not user.is_active:
        raise SignInRefused(
            "This account is switched off. A platform admin can switch it on again.", code="account_off"
        )
    return user


def subject_is(provider: Provider, claims: Mapping[str, Any], user: User) -> bool:
    """Whether the claims are of ``user``, for a confirmation of who is signed in already."""
    found = _known(provider, str(claims["sub"]))
    return found is not None and found.pk == user.pk


def _known(provider: Provider, subject: str) -> User | None:
    row = ExternalIdentity.objects.select_related("user").filter(issuer=provider.issuer, subject=subject).first()
    if row is None:
        return None
    ExternalIdentity.objects.filter(id=row.id).update(last_used_at=clock.now())
    return row.user


def _matched(provider: Provider, claims: Mapping[str, Any], subject: str, address: str, request_id: str) -> User:
    email = _verified_email(provider, claims)
    user = User.objects.select_for_update(no_key=True).filter(email__iexact=email).first()
    now = clock.now()
    made = user is None
    if user is None:
        if not provider.creates_users:
            raise SignInRefused(
                "Nobody here has an account with your address. Ask an owner of your tenant for an invitation.",
                code="openid_unknown_user",
            )
        name = claims.get("name")
        name = name[:120] if isinstance(name, str) and name.isprintable() else ""
        user = User.objects.create_user(email, None, name=name, email_verified_at=now)
    elif ExternalIdentity.objects.filter(user=user, issuer=provider.issuer).exists():
        raise SignInRefused(
            "The account with your address belongs to another person of your company. Ask a platform admin.",
            code="openid_other_subject",
        )
    if user.is_active:
        ExternalIdentity.objects.create(
            user=user, issuer=provider.issuer, subject=subject, created_at=now, last_used_at=now
        )
    actor = identity.actor_of_user(user, way=Way.CONSOLE, address=address, request_id=request_id)
    if made:
        people.note(actor, user, "user.created", provider=provider.name)
    took_over = user.email_verified_at is None
    if took_over:
        user.set_unusable_password()
        user.email_verified_at = now
        user.save(update_fields=["password", "email_verified_at"])
        people.end_tokens(user)
        second_factor.forget(user)
    people.note(actor, user, "user.identity_linked", provider=provider.name, credentials_ended=took_over)
    return user


def _verified_email(provider: Provider, claims: Mapping[str, Any]) -> str:
    email = str(claims.get("email") or "").strip().lower()
    if not email.isprintable() or len(email) > 254 or "@" not in email:
        raise SignInRefused("Your company's sign-in does not tell your e-mail address.", code="openid_no_email")
    if claims.get("email_verified") not in (True, "true"):
        raise SignInRefused(
            "Your company's sign-in has not verified your e-mail address, so it is not matched with an account.",
            code="openid_email_not_verified",
        )
    if provider.domains and email.rpartition("@")[2] not in provider.domains:
        raise SignInRefused("Addresses of this domain may not sign in here.", code="openid_domain")
    return email


def provider_by_id(providers: tuple[Provider, ...], ident: str) -> Provider:
    """The configured provider.

    Raises:
        errors.NotFound: there is none of that id.
    """
    for provider in providers:
        if provider.id == ident:
            return provider
    raise errors.NotFound("There is no such sign-in here.", code="openid_not_found")
