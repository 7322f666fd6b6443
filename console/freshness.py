"""Pages with secrets ask first who is there, unless that was proved a few minutes ago."""

import functools
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode

from console import web
from tenants import freshness, second_factor
from tenants.models import ExternalIdentity, User

View = Callable[..., HttpResponse]


def before_secrets(view: View) -> View:
    """Wrap a view under ``tenant_page``, ``platform_page`` or ``signed_in``: GET needs a recent proof, POST the form's.

    A dialog becomes the dialog that asks, which opens the wanted one afterwards; a page goes to the page that asks.
    """

    @functools.wraps(view)
    def outer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        within = freshness.FORM_SECONDS if request.method == "POST" else freshness.RECENT_SECONDS
        if freshness.is_recent(request, within):
            return view(request, *args, **kwargs)
        path = request.get_full_path()
        if web.is_htmx(request):
            return render(request, "account/confirm_dialog.html", {**choices_of(request), "next": path})
        return HttpResponseRedirect(f"{reverse('account_confirm')}?{urlencode({'next': path})}")

    return outer


def choices_of(request: HttpRequest) -> dict[str, Any]:
    """How the signed-in person can prove who is there: a password, a code, the company's sign-in."""
    user = request.user
    assert isinstance(user, User)
    issuers = set(ExternalIdentity.objects.filter(user=user).values_list("issuer", flat=True))
    return {
        "has_password": user.has_usable_password(),
        "has_code": second_factor.is_enrolled(user),
        "providers": [one for one in settings.OPENID_PROVIDERS if one.issuer in issuers],
    }
