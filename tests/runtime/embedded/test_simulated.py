"""Simulated nodes of `--simulate`: what is asked for, and how their agents are started."""

import pytest

from runtime.agent import settings
from runtime.agent.devices import description
from runtime.embedded import places, processes, simulated
from runtime.embedded.errors import EmbeddedError


def test_the_machines_offered_are_those_the_agent_knows():
    assert simulated.machines() == description.shipped()


def test_nodes_are_named_for_what_they_are():
    nodes = simulated.read(["dgx-h100", "a30:2", "dgx-h100"])
    assert [node.name for node in nodes] == [
        "simulated-dgx-h100-1", "simulated-dgx-h100-2", "simulated-a30-1", "simulated-a30-2",
    ]  # fmt: skip
    assert simulated.read([]) == []


@pytest.mark.parametrize("word", ["h9000", "dgx-h100:", "dgx-h100:x", "../a30", "products", "a30:999"])
def test_what_cannot_be_simulated_is_refused(word):
    with pytest.raises(EmbeddedError, match="--simulate"):
        simulated.read([word])


def test_a_simulated_node_is_an_agent_of_its_own_with_nothing_real(tmp_path):
    here = places.read({"MILLPOND_HOME": str(tmp_path)})
    env = processes.environments(here, database_url="postgres://secret", valkey_url="", base={})
    first, second = simulated.read(["a30:2"])
    one, two = (simulated.program(node, here, env) for node in (first, second))
    config = settings.from_env(one.env)
    assert (config.simulate, config.simulate_engines, config.cpu_memory_bytes) == ("a30", True, 0)
    assert config.node_name == one.name == "simulated-a30-1"
    assert len({one.env["MILLPOND_AGENT_DIR"], two.env["MILLPOND_AGENT_DIR"], str(here.agent)}) == 3
    assert "DATABASE_URL" not in one.env
