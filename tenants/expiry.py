"""What has had its time is forgotten: sessions, and rows that are of use to nobody. Audit events stay."""

import datetime
from typing import Final

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db.models import Q

from kernel import clock, scope
from tenants.models import Invitation, UserToken

KEPT: Final = datetime.timedelta(days=90)


def forget_old() -> int:
    """Delete ended sessions at once, and ended invitations and tokens after 90 days; return how many rows."""
    now = clock.now()
    edge = now - KEPT
    count = Session.objects.filter(expire_date__lt=now).delete()[0]
    count += UserSession.objects.exclude(session_key__in=Session.objects.values("session_key")).delete()[0]
    count += UserToken.objects.filter(Q(expires_at__lt=edge) | Q(revoked_at__lt=edge)).delete()[0]
    with scope.all_tenants():
        ended = Q(accepted_at__lt=edge) | Q(revoked_at__lt=edge) | Q(expires_at__lt=edge)
        count += Invitation.objects.filter(ended).delete()[0]
    return int(count)
