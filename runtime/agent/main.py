"""Composition root: settings from the environment, parts put together, signals, exit codes.

Exit codes: 0 asked to stop, 2 a setting cannot be used, 3 another agent holds the folder.
"""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack

import aiohttp

from runtime.agent import files, hardware, identity, isolation, recover, settings
from runtime.agent.agent import Agent, Parts
from runtime.agent.apply import Applier
from runtime.agent.desired import DesiredKeeper
from runtime.agent.devices.health import HealthLog
from runtime.agent.devices.inventory import Inventory
from runtime.agent.errors import AlreadyRunning, SettingsError
from runtime.agent.fetch import Fetcher
from runtime.agent.host import Host
from runtime.agent.link import ControlPlane
from runtime.agent.membership import Membership
from runtime.agent.mig import MigKeeper
from runtime.agent.mps import Mps
from runtime.agent.observe import Observer
from runtime.agent.owners import engine_memory
from runtime.agent.probe import Prober
from runtime.agent.records import Records
from runtime.agent.replicas import Slot
from runtime.agent.settings import AgentSettings
from runtime.agent.starting import Starter
from runtime.agent.store import ArtifactStore
from runtime.agent.views import Policy
from runtime.base import lifeline, logs
from runtime.base.clock import Clock, SystemClock

log = logs.get(__name__)


async def serve(
    config: AgentSettings, stop: asyncio.Event, *, clock: Clock | None = None, policy: Policy | None = None
) -> bool:
    """Run an agent until ``stop`` is set; False when a driver call still hangs in a thread then.

    The caller holds the folder's lock.

    Raises:
        SettingsError: the description of simulated devices does not fit, or a wall asked for cannot be put up.
    """
    clock, policy = clock or SystemClock(), policy or Policy()
    wake = asyncio.Event()
    who = identity.load(config.folder)
    boot = identity.boot_id()
    slots: dict[str, Slot] = {}
    walls = isolation.survey(config)
    host = Host(config.folder, walls=lambda: walls.facts)
    found = hardware.find(
        config, who, cpu_used=lambda: engine_memory(slots, who.cpu_uuid), cpu_load=lambda: host.cpu_used
    )
    mps = Mps(config.folder / "mps", several_users=bool(config.engine_uids), pretended=found.pretends)
    host.walls = lambda: [*walls.facts, mps.wall]
    host.shown = found.shown
    inventory = Inventory(found.sources)
    async with AsyncExitStack() as stack:
        found.start()
        stack.push_async_callback(found.stop)
        outward = await stack.enter_async_context(aiohttp.ClientSession())
        inward = await stack.enter_async_context(aiohttp.ClientSession())
        control, prober = ControlPlane(outward, config.control_url), Prober(inward)
        records = Records(config.folder, config.folder_mode)
        store = ArtifactStore(
            config.folder / "store", max_bytes=config.store_max_bytes, reserve_bytes=config.disk_reserve_bytes
        )
        mig = MigKeeper(found.mig, clock=clock, wake=wake.set)
        listens = recover.Listens(config.bind_host, config.data_host, config.rank_address)
        slots |= await recover.recover(
            records=records, prober=prober, clock=clock, policy=policy, boot_id=boot, listens=listens
        )
        applier = Applier(
            slots=slots,
            clock=clock,
            policy=policy,
            records=records,
            store=store,
            fetcher=Fetcher(store, control),
            prober=prober,
            starter=Starter(settings=config, boot_id=boot, walls=walls, mps=mps, changing=mig.changing),
            wake=wake.set,
        )
        parts = Parts(
            settings=config,
            clock=clock,
            policy=policy,
            boot_id=boot,
            host=host,
            inventory=inventory,
            events=found.events,
            health=HealthLog(config.folder / "health.json", clock),
            mig=mig,
            mps=mps,
            store=store,
            desired=DesiredKeeper(records),
            applier=applier,
            observer=Observer(clock=clock, prober=prober, wake=wake.set),
            control=control,
            membership=Membership(settings=config, identity=who, control=control, clock=clock),
        )
        await Agent(parts, wake).run(stop)
    return await inventory.close()


async def _run(config: AgentSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if not await serve(config, stop):  # such a thread cannot be joined, and the interpreter would wait for it
        log.warning("left_a_hanging_driver_call")
        logs.drain()
        os._exit(0)


def main() -> int:
    """Run the agent; returns the exit code."""
    try:
        config = settings.from_env(os.environ)
        logs.configure(process="agent", json=config.log_json)
        lifeline.watch()
        files.private_folder(config.folder, config.folder_mode)
        lock = identity.lock(config.folder)
    except SettingsError as exc:
        sys.stderr.write(f"millpond agent: {exc}\n")
        return 2
    except AlreadyRunning as exc:
        sys.stderr.write(f"millpond agent: {exc}\n")
        return 3
    except OSError as exc:
        sys.stderr.write(f"millpond agent: the state folder cannot be used: {exc}\n")
        return 2
    try:
        log.info("agent_starting", folder=str(config.folder), control_plane=config.control_url, node=config.node_name)
        asyncio.run(_run(config))
    except SettingsError as exc:
        sys.stderr.write(f"millpond agent: {exc}\n")
        return 2
    finally:
        os.close(lock)
    log.info("agent_stopped", engines="ended" if config.stop_engines else "left running")
    return 0
