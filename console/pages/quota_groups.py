"""Groups of tenants that hold no more than a limit together: each with its members, made, changed, deleted (admins)."""

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import keyset
from console.forms import styled
from console.pages.quotas import PER_PAGE, Ceilings, by_kind, group_page, held_of, initial_of, previewed
from console.web import Place, came_from, done, platform_page, refused
from kernel import errors
from kernel.texts import sought
from quotas import preview as previews
from quotas import selectors, services
from tenants import selectors as tenants


class GroupForm(Ceilings):
    """Limits that the tenants of a group have together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        styled(self)


class NewGroupForm(GroupForm):
    """A group that is to be made."""

    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=40,
        help_text=gettext_lazy("Lower-case letters, digits and hyphens. It cannot be changed later."),
    )  # fmt: skip


@platform_page
def group(request: HttpRequest, place: Place, group: str) -> HttpResponse:
    """What the tenants of a group hold together, and each of them of the group's limits."""
    found = selectors.group_with_members(services.group_named(group))
    wanted = sought(request.GET.get("q", ""))
    members = tenants.find(wanted).filter(quota__group=found.group)
    shown = keyset.page_by_name(request, members, PER_PAGE, {"q": wanted})
    lines = {member.tenant.id: member.lines for member in found.members}
    rows = [{"tenant": row, "cells": list(zip(lines[row.id], found.lines, strict=True))} for row in shown.rows]
    context = {
        "group": found.group, "lines": by_kind(found.lines), "rows": rows, "wanted": wanted, "keyset": shown,
        "count": len(found.members), "is_limited": any(not line.limit.unlimited for line in found.lines),
    }  # fmt: skip
    return render(request, "console/pages/quota_group.html", context)


@platform_page
def create(request: HttpRequest, place: Place) -> HttpResponse:
    """The dialog that makes a group, and the act."""
    form = NewGroupForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        name = form.cleaned_data["name"]
        try:
            made = services.set_group(actor=place.actor, name=name, changes=form.limits(), new=True)
        except errors.PlatformError as exc:
            form.refuse(exc)
        else:
            text = _("The group %(name)s is made. Choose it in the quota of each tenant that belongs to it.")
            return done(request, text % {"name": made.name}, group_page(made))
    context = {"form": form, "action": reverse("console:quota-group-create")}
    return render(request, "console/pages/quota_group_form.html", context, status=_status(request))


@platform_page
def edit(request: HttpRequest, place: Place, group: str) -> HttpResponse:
    """The dialog with what the group holds beside each limit, and the act."""
    found = selectors.group_with_members(services.group_named(group))
    form = GroupForm(request.POST if request.method == "POST" else None, initial=initial_of(found.group))
    if request.method == "POST" and form.is_valid():
        try:
            services.set_group(actor=place.actor, name=found.group.name, changes=form.limits())
        except errors.PlatformError as exc:
            form.refuse(exc)
        else:
            text = _("The quota of the group %(name)s is changed.") % {"name": found.group.name}
            return done(request, text, _back(request, found))
    context = {
        "form": form, "group": found.group, "held": held_of(found.lines), "count": len(found.members),
        "action": reverse("console:quota-group-edit", kwargs={"group": found.group.name}),
    }  # fmt: skip
    return render(request, "console/pages/quota_group_form.html", context, status=_status(request))


@platform_page
def preview(request: HttpRequest, place: Place, group: str) -> HttpResponse:
    """Whom the limits in the form would hurt, as a fragment; nothing is written."""
    name, form = services.group_named(group).name, GroupForm(request.POST)
    look = previews.preview_group
    return previewed(request, form, lambda: look(actor=place.actor, name=name, changes=form.limits()))


@platform_page
def delete(request: HttpRequest, place: Place, group: str) -> HttpResponse:
    """The dialog, which names the tenants that are still in the group, and the act where there are none."""
    found = selectors.group_with_members(services.group_named(group))
    if request.method != "POST":
        return render(request, "console/pages/quota_group_delete.html", {"found": found})
    try:
        services.delete_group(actor=place.actor, name=found.group.name)
    except errors.PlatformError as exc:
        return refused(request, exc, _back(request, found))
    text = _("The group %(name)s is deleted.") % {"name": found.group.name}
    return done(request, text, reverse("console:platform-quotas"))


def _back(request: HttpRequest, found: selectors.Together) -> str:
    return came_from(request, reverse("console:platform-quotas"), group_page(found.group))


def _status(request: HttpRequest) -> int:
    return 422 if request.method == "POST" else 200
