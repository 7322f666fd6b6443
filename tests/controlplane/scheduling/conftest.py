"""A tenant with a model that has heads and layers to divide; modules that need others make their own."""

import pytest

from tests.build.controlplane import make_tenant
from tests.build.spreads import wide_version


@pytest.fixture
def tenant():
    return make_tenant("acme")


@pytest.fixture
def version(tenant):
    return wide_version(tenant)
