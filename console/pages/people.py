"""People, for platform admins: every account, who else is one, and what is done for who is locked out or has left."""

import uuid
from collections.abc import Callable
from typing import Final

from allauth.mfa.models import Authenticator
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from console import keyset, sessions
from console.freshness import before_secrets
from console.web import Place, done, platform_page, refused
from kernel import errors
from kernel.texts import sought
from tenants import people, selectors
from tenants.models import User

PER_PAGE = 50
LINK: Final = "password-link"
#: What is done, and what is said then.
ACTS: Final[dict[str, tuple[Callable[..., object], Promise]]] = {
    "off": (people.switch_off, gettext_lazy("%(who)s is switched off.")),
    "on": (people.switch_on, gettext_lazy("%(who)s can sign in again.")),
    "make-admin": (people.make_admin, gettext_lazy("%(who)s is a platform admin now.")),
    "unmake-admin": (people.unmake_admin, gettext_lazy("%(who)s is no platform admin any more.")),
    "remove-factor": (people.remove_second_factor, gettext_lazy("%(who)s signs in without a second factor now.")),
    "sign-out": (sessions.end_all, gettext_lazy("%(who)s is signed out everywhere.")),
}


def _rows(wanted: str) -> QuerySet[User]:
    factor = Authenticator.objects.filter(user=OuterRef("pk"), type=Authenticator.Type.TOTP)
    return selectors.people(wanted).annotate(has_factor=Exists(factor))


@platform_page
def index(request: HttpRequest, place: Place) -> HttpResponse:
    """The list, by address, found by name or address."""
    wanted = sought(request.GET.get("q", ""))
    page = keyset.page_by_name(request, _rows(wanted), PER_PAGE, {"q": wanted}, by="email")
    return render(request, "console/pages/people.html", {"keyset": page, "wanted": wanted})


@never_cache
@platform_page
@before_secrets
def verb(request: HttpRequest, place: Place, user_id: uuid.UUID, verb: str) -> HttpResponse:
    """The dialog that says what an act means, and the act."""
    user = User.objects.filter(id=user_id).first()
    if user is None or verb not in (LINK, *ACTS):
        raise errors.NotFound(_("There is no such person here."), code="person_not_found")
    if request.method != "POST":
        return render(request, "console/pages/person_verb.html", {"person": user, "verb": verb})
    try:
        if verb == LINK:
            link = people.password_link(actor=place.actor, user=user)
            return render(request, "console/pages/person_link.html", {"person": user, "secret": link})
        act, said = ACTS[verb]
        act(actor=place.actor, user=user)
    except errors.PlatformError as exc:
        return refused(request, exc, reverse("console:platform-people"))
    gave_up = verb == "unmake-admin" and str(user.id) == place.actor.id  # this page is not theirs any more
    return done(request, str(said) % {"who": user.label}, "/" if gave_up else reverse("console:platform-people"))
