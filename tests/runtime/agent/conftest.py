"""Fixtures of the agent's tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from agent_rig import ControlPlane, Rig


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
