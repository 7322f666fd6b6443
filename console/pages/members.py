"""Members, invitations and service accounts: the list; inviting, changing a role, removing, leaving."""

import uuid

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from console import problems
from console.forms import styled
from console.web import Here, done, refused, tenant_page
from kernel import clock, errors
from tenants import access, invitations, mail, selectors, services
from tenants.models import Invitation
from tenants.roles import SERVICE_ROLES, Permission, Role

MAX_SHOWN = 200
ROLES = (
    (Role.VIEWER.value, gettext_lazy("Viewer: reads everything but secrets")),
    (Role.DEVELOPER.value, gettext_lazy("Developer: publishes, deploys, manages keys")),
    (Role.ADMIN.value, gettext_lazy("Admin: also members and grants")),
    (Role.OWNER.value, gettext_lazy("Owner: also the tenant itself")),
)


class MemberForm(forms.Form):
    """Whom to add, as what."""

    email = forms.EmailField(label=gettext_lazy("E-mail address"), max_length=254)
    role = forms.ChoiceField(label=gettext_lazy("Role"), choices=ROLES, initial=Role.DEVELOPER.value)

    def __init__(self, *args: object, may_make_owners: bool, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if not may_make_owners:
            self.fields["role"].choices = [role for role in ROLES if role[0] != Role.OWNER.value]  # type: ignore[attr-defined]
        styled(self)


@tenant_page
def index(request: HttpRequest, here: Here) -> HttpResponse:
    """The list."""
    order = list(Role)[::-1]
    members = sorted(
        selectors.members_of(here.tenant), key=lambda member: (order.index(Role(member.role)), member.user.email)
    )
    may_change = here.can(Permission.MANAGE_MEMBERS)
    now = clock.now()
    pending = selectors.invitations_of(here.tenant)[:MAX_SHOWN] if may_change else []
    context = {
        "members": members,
        "invitations": [(one, one.expires_at <= now) for one in pending],
        "accounts": selectors.service_accounts_of(here.tenant),
        "may_change": may_change,
        "may_own": here.can(Permission.MANAGE_TENANT),
        "roles": ROLES,
        "service_roles": [role for role in ROLES if role[0] in SERVICE_ROLES],
        "me": here.actor.id,
    }
    return render(request, "console/pages/members.html", context)


@never_cache
@tenant_page(get=Permission.MANAGE_MEMBERS, post=Permission.MANAGE_MEMBERS)
def add(request: HttpRequest, here: Here) -> HttpResponse:
    """The dialog and the act: an invitation. Its link is in the answer where it did not go out by mail."""
    form = MemberForm(request.POST or None, may_make_owners=here.can(Permission.MANAGE_TENANT))
    if request.method == "POST" and form.is_valid():
        try:
            invitation, link = invitations.invite(
                actor=here.actor,
                tenant=here.tenant,
                email=form.cleaned_data["email"],
                role=Role(form.cleaned_data["role"]),
            )
        except errors.PlatformError as exc:
            field = exc.data.get("field")
            form.add_error(field if field in form.fields else None, problems.describe(exc).text)
        else:
            return _invited(request, here, invitation, link)
    status = 422 if request.method == "POST" else 200
    context = {"form": form, "mail_is_on": mail.is_on()}
    return render(request, "console/pages/member_form.html", context, status=status)


def _invited(request: HttpRequest, here: Here, invitation: Invitation, link: str) -> HttpResponse:
    if not link:
        return done(request, _("The invitation went out to %(who)s.") % {"who": invitation.email}, _back(here))
    context = {"invitation": invitation, "secret": link, "mail_failed": mail.is_on()}
    return render(request, "console/pages/invitation_link.html", context)


@never_cache
@tenant_page(get=Permission.MANAGE_MEMBERS, post=Permission.MANAGE_MEMBERS)
def resend(request: HttpRequest, here: Here, invitation_id: uuid.UUID) -> HttpResponse:
    """The dialog that says what it means, and the act: a new link, the old one is dead."""
    invitation = access.access_invitation(here.actor, here.tenant, invitation_id)
    if request.method != "POST":
        context = {"invitation": invitation, "mail_is_on": mail.is_on()}
        return render(request, "console/pages/invitation_resend.html", context)
    try:
        invitation, link = invitations.resend(actor=here.actor, tenant=here.tenant, invitation=invitation)
    except errors.PlatformError as exc:
        return refused(request, exc, _back(here))
    return _invited(request, here, invitation, link)


@tenant_page(post=Permission.MANAGE_MEMBERS)
def revoke(request: HttpRequest, here: Here, invitation_id: uuid.UUID) -> HttpResponse:
    """The link is dead."""
    invitation = access.access_invitation(here.actor, here.tenant, invitation_id)
    try:
        invitations.revoke(actor=here.actor, tenant=here.tenant, invitation=invitation)
    except errors.PlatformError as exc:
        return refused(request, exc, _back(here))
    return done(request, _("The invitation of %(who)s is revoked.") % {"who": invitation.email}, _back(here))


@tenant_page(post=Permission.MANAGE_MEMBERS)
def change(request: HttpRequest, here: Here, member_id: uuid.UUID) -> HttpResponse:
    """Another role."""
    member = access.access_member(here.actor, here.tenant, member_id, Permission.MANAGE_MEMBERS)
    try:
        role = Role(request.POST.get("role", ""))
        services.set_member(actor=here.actor, tenant=here.tenant, user=member.user, role=role)
    except ValueError:
        return refused(request, errors.InvalidInput(_("There is no such role.")), _back(here))
    except errors.PlatformError as exc:
        return refused(request, exc, _back(here))
    return done(request, _("%(who)s has another role now.") % {"who": member.user.label}, _back(here))


@tenant_page(get=Permission.VIEW, post=Permission.VIEW)
def remove(request: HttpRequest, here: Here, member_id: uuid.UUID) -> HttpResponse:
    """The dialog and the act: of somebody else with the right to, of oneself always."""
    member = access.access_member(here.actor, here.tenant, member_id)
    leaving = str(member.user_id) == here.actor.id
    if not leaving:
        access.require(here.actor, Permission.MANAGE_MEMBERS, here.tenant.id)
    if request.method != "POST":
        return render(request, "console/pages/member_remove.html", {"member": member, "leaving": leaving})
    try:
        services.remove_member(actor=here.actor, tenant=here.tenant, member=member)
    except errors.PlatformError as exc:
        return refused(request, exc, _back(here))
    if leaving:
        return done(request, _("You have left %(name)s.") % {"name": here.tenant.name}, "/")
    return done(request, _("%(who)s is no member any more.") % {"who": member.user.label}, _back(here))


def _back(here: Here) -> str:
    return reverse("console:members", kwargs={"slug": here.tenant.slug})
