"""Mail through Django, where the operator has named a server (``MILLPOND_EMAIL_URL``)."""

import logging
import smtplib

from django.conf import settings
from django.core.mail import EmailMessage

logger = logging.getLogger(__name__)


def is_on() -> bool:
    """Whether mail can be sent at all."""
    return bool(settings.MAIL_ENABLED)


def send(message: EmailMessage) -> bool:
    """Send; false where mail is off or the server did not take it, so that a link can be handed over instead."""
    if not is_on():
        return False
    try:
        return message.send() == 1
    except (OSError, smtplib.SMTPException) as exc:  # the text of a mail holds secrets: only the kind is logged
        logger.warning("mail was not sent", extra={"error": type(exc).__name__})
        return False
