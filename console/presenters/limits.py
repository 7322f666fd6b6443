"""Words for the choices of limits and endpoints."""

from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

PERIODS: Final[dict[str, Promise]] = {
    "hour": _("per hour"),
    "day": _("per day"),
    "week": _("per week"),
    "month": _("per month"),
    "none": _("in all"),
}
STICKY: Final[dict[str, Promise]] = {
    "none": _("nothing: every request is drawn anew"),
    "key": _("the key"),
    "user": _("the user named in the request"),
    "header": _("the header x-millpond-sticky"),
}
