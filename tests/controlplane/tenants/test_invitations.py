"""Invitations: made, sent, accepted once, and dead when they should be."""

import datetime
import re

import pytest
from django.core import mail
from django.core.cache import cache
from rest_framework.test import APIClient

from kernel import clock, errors, scope
from ledger.models import AuditEvent
from tenants import expiry, invitations, services
from tenants.errors import InvitationInvalid
from tenants.models import Invitation, Member, Tenant, User
from tenants.roles import Role
from tests.build.controlplane import actor_for, client_for, make_member, make_tenant, make_user, owner_of

pytestmark = pytest.mark.django_db
GUEST = "guest@example.org"


@pytest.fixture(autouse=True)
def fresh_counters() -> None:
    cache.clear()


@pytest.fixture
def tenant() -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def owner(tenant: Tenant) -> APIClient:
    return client_for(owner_of(tenant))


def invite(client: APIClient, email: str = GUEST, role: str = "developer", want: int = 201) -> dict:
    answer = client.post("/api/v1/tenants/acme/invitations", {"email": email, "role": role}, format="json")
    assert answer.status_code == want, answer.json()
    return answer.json()


def token_of(link: str) -> str:
    return link.rstrip("/").rpartition("/")[2]


def take(user: User, link: str) -> tuple[int, dict]:
    answer = client_for(user).post("/api/v1/invitations/accept", {"token": token_of(link)}, format="json")
    return answer.status_code, answer.json()


def test_a_link_is_shown_once_stored_as_a_digest_and_good_for_one_use(owner: APIClient, tenant: Tenant) -> None:
    made = invite(owner)
    guest = make_user(GUEST.upper())
    listed = owner.get("/api/v1/tenants/acme/invitations").json()["data"]
    assert [(row["email"], "link" in row) for row in listed] == [(GUEST, False)]
    with scope.all_tenants():
        assert token_of(made["link"]) not in {str(value) for value in vars(Invitation.objects.get()).values()}
    assert take(guest, made["link"]) == (200, {"slug": "acme", "name": "Acme", "role": "developer"})
    assert owner.get("/api/v1/tenants/acme/invitations").json()["data"] == []
    assert take(guest, made["link"])[1]["code"] == "invitation_invalid"
    with scope.tenant(tenant.id):
        assert Member.objects.get(user=guest).role == Role.DEVELOPER
    actions = AuditEvent.objects.filter(subject_kind="invitation").order_by("id").values_list("action", "actor_label")
    assert list(actions) == [
        ("invitation.created", owner_of(tenant).email),
        ("invitation.accepted", guest.email),
    ]


def test_roles_are_changed_of_members_only_and_nobody_learns_who_has_an_account(
    owner: APIClient, tenant: Tenant
) -> None:
    def answer(email: str) -> tuple[int, dict]:
        said = owner.post("/api/v1/tenants/acme/members", {"email": email, "role": "viewer"}, format="json")
        body = {key: value for key, value in said.json().items() if key != "request_id"}
        return said.status_code, {key: str(value).replace(email, "X") for key, value in body.items()}

    known, unknown = answer(make_user().email), answer("nobody@guest.example")
    assert known == unknown
    assert (known[0], known[1]["code"]) == (404, "not_a_member")
    assert answer(make_member(tenant, Role.DEVELOPER).email.upper())[0] == 201


@pytest.mark.parametrize("end", ["expired", "revoked", "resent", "suspended", "maker gone", "maker demoted", "forged"])
def test_a_dead_link_says_the_same_whatever_killed_it(owner: APIClient, tenant: Tenant, end: str) -> None:
    admin = make_member(tenant, Role.ADMIN)
    made = invite(client_for(admin))
    guest = make_user(GUEST)
    boss = actor_for(owner_of(tenant))
    link = made["link"]
    later = clock.now()
    if end == "expired":
        later += invitations.LIFETIME
    elif end == "revoked":
        assert owner.delete(f"/api/v1/tenants/acme/invitations/{made['id']}").status_code == 204
    elif end == "resent":
        later += datetime.timedelta(minutes=2)
        with clock.frozen(later):
            again = owner.post(f"/api/v1/tenants/acme/invitations/{made['id']}/resend").json()
        assert again["link"] != link
    elif end == "suspended":
        services.suspend_tenant(actor=actor_for(make_user(admin=True)), tenant=tenant, reason="late")
    elif end == "forged":
        link = f"http://x/mpi_{'a' * 12}_{'b' * 43}/"
    else:
        with scope.tenant(tenant.id):
            member = Member.objects.get(user=admin)
        if end == "maker gone":
            services.remove_member(actor=boss, tenant=tenant, member=member)
        else:
            services.set_member(actor=boss, tenant=tenant, user=admin, role=Role.DEVELOPER)
    with clock.frozen(later):
        status, body = take(guest, link)
    assert (status, body["code"]) == (410, "invitation_invalid")
    assert client_for(guest).get("/api/v1/me").json()["tenants"] == []


def test_a_link_is_for_the_invited_address_alone(owner: APIClient) -> None:
    link = invite(owner)["link"]
    assert take(make_user(), link)[1]["code"] == "invitation_for_other"
    assert take(make_user(GUEST), link)[0] == 200


def test_who_may_invite_whom(tenant: Tenant) -> None:
    admin = client_for(make_member(tenant, Role.ADMIN))
    assert invite(admin, role="owner", want=403)["code"] == "forbidden"
    assert invite(client_for(make_member(tenant, Role.DEVELOPER)), want=403)["code"] == "forbidden"
    assert invite(admin, role="admin")["role"] == "admin"
    assert invite(admin, want=409)["code"] == "already_invited"
    assert invite(admin, email=owner_of(tenant).email, want=409)["code"] == "already_member"


def test_an_invitation_that_has_expired_makes_room_for_a_new_one(owner: APIClient) -> None:
    invite(owner)
    with clock.frozen(clock.now() + invitations.LIFETIME):
        assert invite(owner)["sends"] == 1


def test_a_member_keeps_a_role_that_is_stronger(owner: APIClient, tenant: Tenant) -> None:
    link = invite(owner, role="viewer")["link"]
    guest = make_member(tenant, Role.ADMIN, make_user(GUEST))
    assert take(guest, link)[1]["role"] == "admin"


def test_invitations_are_paced(owner: APIClient, tenant: Tenant) -> None:
    now = clock.now().replace(minute=1, second=0)
    with clock.frozen(now):
        for number in range(60):
            invite(owner, email=f"p{number}@example.org")
        answer = owner.post("/api/v1/tenants/acme/invitations", {"email": GUEST, "role": "viewer"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_attempts")
    assert int(answer["Retry-After"]) == 59 * 60
    made = client_for(owner_of(tenant)).get("/api/v1/tenants/acme/invitations").json()["data"][0]
    with clock.frozen(now):
        again = owner.post(f"/api/v1/tenants/acme/invitations/{made['id']}/resend")
    assert (again.status_code, again["Retry-After"]) == (429, "61")


def test_with_mail_the_link_goes_to_the_address_and_nowhere_else(owner: APIClient, settings, mailoutbox) -> None:  # type: ignore[no-untyped-def]
    settings.MAIL_ENABLED = True
    made = invite(owner)
    assert (made["link"], made["by_mail"]) == (None, True)
    (sent,) = mail.outbox
    assert sent.to == [GUEST]
    link = re.search(r"https?://\S+", sent.body)
    guest = make_user(GUEST)
    assert link is not None
    assert take(guest, link[0])[0] == 200
    guest.refresh_from_db()
    assert guest.email_verified_at is not None


def test_mail_that_fails_leaves_the_link_with_who_invites(owner: APIClient, settings) -> None:  # type: ignore[no-untyped-def]
    settings.MAIL_ENABLED = True
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 9
    made = invite(owner)
    assert made["link"] is not None
    assert made["by_mail"] is False


def test_a_new_account_is_made_by_accepting(owner: APIClient, tenant: Tenant) -> None:
    text = token_of(invite(owner)["link"])
    given = {"text": text, "name": "Gwen", "address": "127.0.0.1", "request_id": "r-12345678", "way": "console"}
    with pytest.raises(errors.InvalidInput) as refused:
        invitations.accept_as_new(password="12345678901", **given)
    assert refused.value.data["field"] == "password"
    user, member = invitations.accept_as_new(password="a long enough phrase", **given)
    assert (user.email, user.name, member.role, user.is_staff) == (GUEST, "Gwen", "developer", False)
    assert user.email_verified_at is None  # the link was handed over: who used it need not read the mail
    made = AuditEvent.objects.get(action="user.created")
    assert (made.actor_label, made.address, made.request_id, made.way) == (GUEST, "127.0.0.1", "r-12345678", "console")
    with pytest.raises(InvitationInvalid):
        invitations.accept_as_new(password="a long enough phrase", **given)


def test_an_account_that_is_there_already_is_not_taken_over(owner: APIClient) -> None:
    text = token_of(invite(owner)["link"])
    guest = make_user(GUEST)
    with pytest.raises(errors.Conflict) as refused:
        invitations.accept_as_new(
            text=text, name="x", password="a long enough phrase", address="::1", request_id="", way="console"
        )
    assert refused.value.code == "account_exists"
    before = guest.password
    guest.refresh_from_db()
    assert guest.password == before


def test_anybody_may_leave_and_the_last_owner_stays(owner: APIClient, tenant: Tenant) -> None:
    viewer = make_member(tenant, Role.VIEWER)
    rows = {row["email"]: row["id"] for row in owner.get("/api/v1/tenants/acme/members").json()["data"]}
    path = "/api/v1/tenants/acme/members"
    assert client_for(viewer).delete(f"{path}/{rows[owner_of(tenant).email]}").status_code == 403
    assert client_for(viewer).delete(f"{path}/{rows[viewer.email]}").status_code == 204
    assert owner.delete(f"{path}/{rows[owner_of(tenant).email]}").json()["code"] == "last_owner"


def test_what_has_had_its_time_is_forgotten(owner: APIClient) -> None:
    invite(owner)
    expiry.forget_old()
    assert Invitation._base_manager.count() == 1
    with clock.frozen(clock.now() + invitations.LIFETIME + expiry.KEPT + datetime.timedelta(seconds=1)):
        expiry.forget_old()
    assert Invitation._base_manager.count() == 0
