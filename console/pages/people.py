"""People, for platform admins: every account, and what an admin does for one who is locked out or has left."""

import uuid

from allauth.mfa.models import Authenticator
from django.core.paginator import Paginator
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import sessions
from console.freshness import before_secrets
from console.web import Place, done, platform_page, refused
from kernel import errors
from kernel.texts import sought
from tenants import people, selectors
from tenants.models import User

PER_PAGE = 50


def _rows(wanted: str) -> QuerySet[User]:
    factor = Authenticator.objects.filter(user=OuterRef("pk"), type=Authenticator.Type.TOTP)
    return selectors.people(wanted).annotate(has_factor=Exists(factor)).order_by("email")


@platform_page
def index(request: HttpRequest, place: Place) -> HttpResponse:
    """The list."""
    wanted = sought(request.GET.get("q", ""))
    page = Paginator(_rows(wanted), PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "console/pages/people.html", {"page": page, "wanted": wanted})


@never_cache
@platform_page
@before_secrets
def verb(request: HttpRequest, place: Place, user_id: uuid.UUID, verb: str) -> HttpResponse:
    """The dialog that says what an act means, and the act."""
    user = User.objects.filter(id=user_id).first()
    if user is None or verb not in ("off", "on", "password-link", "remove-factor", "sign-out"):
        raise errors.NotFound(_("There is no such person here."), code="person_not_found")
    if request.method != "POST":
        return render(request, "console/pages/person_verb.html", {"person": user, "verb": verb})
    try:
        if verb == "password-link":
            link = people.password_link(actor=place.actor, user=user)
            return render(request, "console/pages/person_link.html", {"person": user, "secret": link})
        text = _do(place, user, verb)
    except errors.PlatformError as exc:
        return refused(request, exc, reverse("console:platform-people"))
    return done(request, text, reverse("console:platform-people"))


def _do(place: Place, user: User, verb: str) -> str:
    who = {"who": user.label}
    if verb == "off":
        people.switch_off(actor=place.actor, user=user)
        return _("%(who)s is switched off.") % who
    if verb == "on":
        people.switch_on(actor=place.actor, user=user)
        return _("%(who)s can sign in again.") % who
    if verb == "remove-factor":
        people.remove_second_factor(actor=place.actor, user=user)
        return _("%(who)s signs in without a second factor now.") % who
    sessions.end_all(actor=place.actor, user=user)
    return _("%(who)s is signed out everywhere.") % who
