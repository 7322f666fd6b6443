"""Settings of the tests: the product's own, read once the test services have put their addresses in place."""

from tests import services

services.ensure()

from controlplane.settings import *  # noqa: E402, F403

STATIC_ROOT.mkdir(parents=True, exist_ok=True)  # noqa: F405  (WhiteNoise warns without it)

# Hashing passwords slowly is the product's duty, not the tests'.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
