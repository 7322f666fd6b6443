"""Machines whose GPUs reach each other, a model with heads to divide among them, and what became of its replicas."""

from pathlib import Path

import msgspec

from kernel import scope
from runtime.agent.devices.simulated import SimulatedSource
from runtime.wire.devices import DeviceKind, DevicePath, NvLinkFacts
from scheduling import cycle
from scheduling.fit import fit
from serving import services
from serving.models import Member, Replica
from serving.reconcile import cycle as serving
from tests.build import catalog
from tests.build.controlplane import actor_for, owner_of
from tests.build.machines import GIB, FakeAgent

WIDE = {
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


def wide_version(tenant):
    """A checked version with eight layers and eight heads."""
    values = {**catalog.CONFIG, **WIDE}
    return catalog.checked_version(
        tenant, catalog.huggingface(WIDE, model__safetensors=catalog.weights(catalog.layer_shapes(values)))
    )


def machine(name, gpus=4, gib=16, *, cpus=64, nvlink=True, stand_in=True, kind=DeviceKind.SIMULATED, rank_address=""):
    """A node whose GPUs all reach each other."""
    made = FakeAgent(name, kind=kind, memory_bytes=gib * GIB, cpus=cpus, host_bytes=256 * GIB)
    made.rank_address = rank_address
    made.devices = [
        FakeAgent.device(kind, gib * GIB, stand_in=stand_in, architecture="hopper") for _number in range(gpus)
    ]
    if nvlink:
        made.devices = [
            msgspec.structs.replace(
                one,
                nvlink=NvLinkFacts(links=18, active=18, version="4.0"),
                paths=[DevicePath(uuid=other.uuid, nvlinks=18) for other in made.devices if other is not one],
            )
            for one in made.devices
        ]
    made.join()
    made.report()
    return made


#: Four A30 joined by bridges in pairs, not beside each other.
PAIRS = """
driver: {version: "535.183.01"}
devices:
- {product: a30-24gb, nvlink: {links: 4, version: "3.0"}}
- {product: a30-24gb, nvlink: {links: 4, version: "3.0"}}
- {product: a30-24gb, nvlink: {links: 4, version: "3.0"}}
- {product: a30-24gb, nvlink: {links: 4, version: "3.0"}}
bridges: [[0, 2], [1, 3]]
"""


def real(name, gpus=2, rank_address=""):
    """A node with real GPUs of 16 GiB."""
    return machine(name, gpus=gpus, stand_in=False, kind=DeviceKind.CUDA, rank_address=rank_address)


def described(name, folder: Path, text=PAIRS, **facts):
    """A node with the simulated GPUs that ``text`` describes, as its agent reports them but for ``facts``."""
    (folder / "machine.yaml").write_text(text)
    source = SimulatedSource(folder / "machine.yaml", seed=name, stand_ins=True)
    made = FakeAgent(name, cpus=64, host_bytes=256 * GIB)
    made.devices = [msgspec.structs.replace(one, **facts) for one in source.scan()]
    made.join()
    made.report()
    return made


def deploy(tenant, version, replicas=1, *, endpoint="chat", priority=None, **config):
    return services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name=endpoint, model=version.model.name,
        version=version.number, config=config, replicas=replicas, priority=priority,
    )  # fmt: skip


def asked(tenant, version, **config):
    return fit(
        actor=actor_for(owner_of(tenant)), tenant=tenant, model=version.model.name, version=version.number,
        config=config,
    )  # fmt: skip


def row():
    with scope.all_tenants():
        return Replica.objects.get()


def members():
    with scope.all_tenants():
        return list(Member.objects.order_by("node__name"))


def settle():
    serving.run()
    cycle.run()
