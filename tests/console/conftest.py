"""Pages through Django's client: no manifest of static files is needed for that."""

import pytest
from django.conf import LazySettings


@pytest.fixture(autouse=True)
def plain_static_files(settings: LazySettings) -> None:
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }
