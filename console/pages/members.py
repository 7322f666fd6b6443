"""Members: who they are, adding one (with an account, where there is none yet), changing a role, removing."""

import uuid

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import problems
from console.forms import styled
from console.web import Here, done, refused, tenant_page
from kernel import errors
from tenants import access, selectors, services
from tenants.models import User
from tenants.roles import Permission, Role

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
    context = {
        "members": members,
        "may_change": here.can(Permission.MANAGE_MEMBERS),
        "may_own": here.can(Permission.MANAGE_TENANT),
        "roles": ROLES,
    }
    return render(request, "console/pages/members.html", context)


@tenant_page(get=Permission.MANAGE_MEMBERS, post=Permission.MANAGE_MEMBERS)
def add(request: HttpRequest, here: Here) -> HttpResponse:
    """The dialog and the act."""
    form = MemberForm(request.POST or None, may_make_owners=here.can(Permission.MANAGE_TENANT))
    if request.method == "POST" and form.is_valid():
        user = User.objects.filter(email__iexact=form.cleaned_data["email"], is_active=True).first()
        if user is None:
            form.add_error("email", _("Nobody has an account with this address. A platform admin makes accounts."))
        else:
            try:
                services.set_member(
                    actor=here.actor, tenant=here.tenant, user=user, role=Role(form.cleaned_data["role"])
                )
            except errors.PlatformError as exc:
                form.add_error(None, problems.describe(exc).text)
            else:
                return done(request, _("%(who)s is a member now.") % {"who": user.label}, _back(here))
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/member_form.html", {"form": form}, status=status)


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


@tenant_page(get=Permission.MANAGE_MEMBERS, post=Permission.MANAGE_MEMBERS)
def remove(request: HttpRequest, here: Here, member_id: uuid.UUID) -> HttpResponse:
    """The dialog and the act."""
    member = access.access_member(here.actor, here.tenant, member_id, Permission.MANAGE_MEMBERS)
    if request.method != "POST":
        return render(request, "console/pages/member_remove.html", {"member": member})
    try:
        services.remove_member(actor=here.actor, tenant=here.tenant, member=member)
    except errors.PlatformError as exc:
        return refused(request, exc, _back(here))
    return done(request, _("%(who)s is no member any more.") % {"who": member.user.label}, _back(here))


def _back(here: Here) -> str:
    return reverse("console:members", kwargs={"slug": here.tenant.slug})
