"""Pages through Django's client: no manifest of static files is needed for that."""

from collections.abc import Iterator
from typing import Any

import pytest
from allauth.account.internal.flows.login import record_authentication
from django.conf import LazySettings
from django.contrib.auth.signals import user_logged_in
from django.http import HttpRequest


@pytest.fixture(autouse=True)
def plain_static_files(settings: LazySettings) -> None:
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }


@pytest.fixture(autouse=True)
def forced_sign_ins_are_proofs() -> Iterator[None]:
    """``force_login`` skips the form that notes when the person proved who they are."""

    def note(request: HttpRequest, user: Any, **kwargs: Any) -> None:
        record_authentication(request, user, method="password")

    user_logged_in.connect(note)
    yield
    user_logged_in.disconnect(note)
