"""Accepting an invitation: with the account one has, or with a new one.

The token leaves the address bar at once: it is kept in the session, and the page has a plain address.
"""

from typing import Final

from allauth.account.internal.flows.login import perform_login, record_authentication
from allauth.account.models import Login
from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from console import problems
from console.account_events import actor_in
from console.forms import styled
from kernel import errors
from kernel.actors import Way
from tenants import identity, invitations
from tenants.models import Invitation, User

_KEPT: Final = "invitation"


class NewAccountForm(forms.Form):
    """Name and password of a new account."""

    name = forms.CharField(label=gettext_lazy("Your name"), max_length=120)
    password = forms.CharField(
        label=gettext_lazy("Password"), max_length=256, strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text=gettext_lazy("At least 10 characters, not a common password."),
    )  # fmt: skip

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        styled(self)


@never_cache
def open_link(request: HttpRequest, text: str) -> HttpResponse:
    """The address in the mail. Looking at it uses nothing up."""
    request.session[_KEPT] = text[:200]
    return redirect("account_invitation")


@never_cache
def accept(request: HttpRequest) -> HttpResponse:
    """The page, and both ways to say yes."""
    text = str(request.session.get(_KEPT, ""))
    address = identity.address_of(request.META)
    try:
        found = invitations.find(text, address=address)
    except errors.PlatformError as exc:
        return _refused(request, exc)
    user = request.user if isinstance(request.user, User) else None
    if request.method == "POST" and user is not None:
        try:
            invitations.accept(actor=actor_in(request, user), user=user, text=text)
        except errors.PlatformError as exc:
            return _refused(request, exc)
        request.session.pop(_KEPT, None)
        return redirect("console:home", slug=found.tenant.slug)
    form = NewAccountForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        answer = _new_account(request, form, text, address, found)
        if answer is not None:
            return answer
    return _page(request, found, user, form)


def _new_account(
    request: HttpRequest, form: NewAccountForm, text: str, address: str, found: Invitation
) -> HttpResponse | None:
    """Make the account and sign in; ``None`` where the form now says what is wrong."""
    try:
        user, _member = invitations.accept_as_new(
            text=text, name=form.cleaned_data["name"], password=form.cleaned_data["password"], address=address,
            request_id=getattr(request, "request_id", ""), way=Way.CONSOLE,
        )  # fmt: skip
    except errors.InvalidInput as exc:
        form.add_error("password" if exc.data.get("field") == "password" else None, exc.detail)
        return None
    except errors.PlatformError as exc:
        form.add_error(None, problems.describe(exc).text)
        return None
    request.session.pop(_KEPT, None)
    record_authentication(request, user, method="password")
    to = reverse("console:home", kwargs={"slug": found.tenant.slug})
    response: HttpResponse = perform_login(request, Login(user=user, email=user.email, redirect_url=to))
    return response


def _page(request: HttpRequest, found: Invitation, user: User | None, form: NewAccountForm) -> HttpResponse:
    context = {
        "invitation": found,
        "by": found.created_by.label if found.created_by else "",
        "form": form,
        "other": user is not None and user.email.lower() != found.email.lower(),
        "signed_in": user is not None,
        "here": reverse("account_invitation"),
    }
    return render(request, "account/invitation.html", context, status=422 if form.errors else 200)


def _refused(request: HttpRequest, exc: errors.PlatformError) -> HttpResponse:
    response = render(
        request,
        "account/invitation_refused.html",
        {"said": problems.describe(exc), "code": exc.code},
        status=exc.status,
    )
    if wait := exc.data.get("retry_after"):
        response["Retry-After"] = str(wait)
    return response
