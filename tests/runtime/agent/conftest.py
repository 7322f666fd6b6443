"""Fixtures of the agent's tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from agent_rig import ControlPlane, Rig

from tests.build.nvml_stub import FakeDriver, build


@pytest.fixture
async def control():
    plane = await ControlPlane().start()
    yield plane
    await plane.stop()


@pytest.fixture
async def rig(tmp_path, control):
    rig = Rig(tmp_path, control)
    yield rig
    await rig.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The compiled stand-in for NVIDIA's library; who asks for it needs gcc."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library, tmp_path):
    """A machine of a shipped description behind that library."""
    return lambda machine: FakeDriver(library, tmp_path, machine)
