"""The processes of one machine: what is started, with which environment, and how each is known to be ready."""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from runtime.embedded import probes
from runtime.embedded.liveness import Liveness
from runtime.embedded.places import Places
from runtime.embedded.postgres import Postgres, clean_env
from runtime.embedded.supervisor import Program
from runtime.embedded.valkey import Valkey

AGENT_TOKEN: Final = "agent-join-token"  # noqa: S105  the name of a file
GATEWAY_TOKEN: Final = "gateway-join-token"  # noqa: S105
# What stops first: the gateway finishes its streams and hands over usage while the control plane still listens.
_GATEWAY: Final = 3
_AGENT: Final = 2
_CONTROL: Final = 1
# Only what needs the database gets its password; engines inherit the agent's environment.
_SECRETS: Final = ("MILLPOND_SECRET_KEY", "MILLPOND_KEY_PEPPER")
_CONTROL_ONLY: Final = ("DATABASE_URL", "VALKEY_URL", "MILLPOND_GATEWAY_LIMITS_URL", *_SECRETS)


@dataclass(frozen=True)
class Environments:
    """``control``: Django processes; ``data``: agent and engines; ``gateway``; ``tool``: embedded servers."""

    control: Mapping[str, str]
    data: Mapping[str, str]
    gateway: Mapping[str, str]
    tool: Mapping[str, str]


def environments(places: Places, *, database_url: str, valkey_url: str, base: Mapping[str, str]) -> Environments:
    """Return the environments of all processes, from ``base``."""
    common = {name: value for name, value in clean_env(base).items() if name not in _CONTROL_ONLY} | {
        "MILLPOND_HOME": str(places.home),
        "MILLPOND_WEB_HOST": places.web_host,
        "MILLPOND_WEB_PORT": str(places.web_port),
        "MILLPOND_GATEWAY_HOST": places.gateway_host,
        "MILLPOND_GATEWAY_PORT": str(places.gateway_port),
        "PYTHONPATH": os.pathsep.join((str(places.repository), str(places.repository / "platform"))),
        "PYTHONUNBUFFERED": "1",
        # Idle torch threads that spin make every step many times slower on a busy machine.
        "OMP_WAIT_POLICY": base.get("OMP_WAIT_POLICY", "passive"),
        "HF_HUB_OFFLINE": "1",
    }
    secrets = {name: base[name] for name in _SECRETS if base.get(name)}
    control = (
        common
        | secrets
        | {
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "DATABASE_URL": database_url,
            "VALKEY_URL": valkey_url,
            "MILLPOND_PUBLIC_URL": base.get("MILLPOND_PUBLIC_URL") or places.web_url,
            "MILLPOND_GATEWAY_URL": base.get("MILLPOND_GATEWAY_URL") or places.gateway_url,
        }
    )
    data = common | {
        "MILLPOND_CONTROL_URL": places.web_url,
        "MILLPOND_GATEWAY_DIR": str(places.gateway),
        "MILLPOND_GATEWAY_URL": base.get("MILLPOND_GATEWAY_URL") or places.gateway_url,
        "MILLPOND_GATEWAY_JOIN_TOKEN_FILE": str(places.run / GATEWAY_TOKEN),
        "MILLPOND_AGENT_DIR": str(places.agent),
        "MILLPOND_AGENT_JOIN_TOKEN_FILE": str(places.run / AGENT_TOKEN),
        # Engines end with the lifeline, not as stopped replicas: the next start loads the same ones again at once.
        "MILLPOND_AGENT_STOP_ENGINES": "0",
    }
    # The gateway's limits are counted where other gateways of this machine's Valkey would count theirs; engines, which
    # inherit the agent's environment, have no business there.
    gateway = data | {"MILLPOND_GATEWAY_LIMITS_URL": base.get("MILLPOND_GATEWAY_LIMITS_URL") or valkey_url}
    return Environments(control=control, data=data, gateway=gateway, tool=common)


def postgres(server: Postgres, places: Places, env: Environments) -> Program:
    """The embedded database: SIGINT is its fast shutdown, which rolls back what is open and loses nothing."""
    return Program(
        name="postgres",
        argv=server.command(),
        env=env.tool,
        cwd=places.home if server.identity.user is None else server.home,
        ready=probes.calls(server.ready),
        stop_signal=signal.SIGINT,
        death_signal=signal.SIGINT,
        stop_s=30.0,
        user=server.identity.user,
    )


def valkey(server: Valkey, places: Places, env: Environments) -> Program:
    """The embedded broker; on SIGTERM it writes its file out before it ends."""
    return Program(
        name="valkey",
        argv=server.command(),
        env=env.tool,
        cwd=places.home,
        ready=probes.calls(server.ready),
        death_signal=signal.SIGTERM,
    )


def web(places: Places, env: Environments) -> Program:
    """Console, REST and WebSockets. Open sockets are given five seconds at the end."""
    command = ["uvicorn", "controlplane.asgi:application", "--host", places.web_host, "--port", str(places.web_port)]
    options = ["--lifespan", "off", "--ws", "websockets", "--no-access-log", "--timeout-graceful-shutdown", "5"]
    ready = probes.answers(places.web_host, places.web_port, "/readyz")
    # Whether it answers, not whether it is ready: ending it does not bring a database back.
    alive = Liveness(probe=probes.replies(places.web_host, places.web_port, "/healthz"))
    return replace(_python("web", [*command, *options], places, env.control, ready), liveness=alive)


def worker(places: Places, env: Environments) -> Program:
    """Background work. Threads, not children: one process that ends as a whole, and half the memory."""
    options = ["--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    return _python("worker", [*_CELERY, "worker", *options], places, env.control, probes.says(r"\bready\."))


def beat(places: Places, env: Environments) -> Program:
    """The clock of the background loops; its schedule is kept in the database."""
    scheduler = ["--scheduler", "django_celery_beat.schedulers:DatabaseScheduler", "--pidfile="]
    return _python(
        "beat", [*_CELERY, "beat", *scheduler, "--loglevel", "INFO"], places, env.control, probes.says("beat")
    )


def gateway(places: Places, env: Environments) -> Program:
    """The door for applications. It is given time to finish what it streams."""
    ready = probes.answers(places.gateway_host, places.gateway_port, "/health")
    program = _python("gateway", ["runtime.gateway"], places, env.gateway, ready)
    alive = Liveness(probe=probes.replies(places.gateway_host, places.gateway_port, "/health"))
    return replace(program, stop_s=35.0, layer=_GATEWAY, liveness=alive)


def agent(places: Places, env: Environments) -> Program:
    """This machine as a node. Its engines are the supervisor's to end: see the lifeline."""
    return replace(_python("agent", ["runtime.agent"], places, env.data, probes.stays(0.5)), layer=_AGENT)


def manage(*words: str) -> list[str]:
    """Return the command line of a management command."""
    return [sys.executable, "manage.py", *words]


_CELERY: Final = ("celery", "-A", "controlplane.celery")


def _python(name: str, module: list[str], places: Places, env: Mapping[str, str], ready: probes.Probe) -> Program:
    return Program(
        name=name,
        argv=[sys.executable, "-m", *module],
        env=env,
        cwd=places.repository,
        ready=ready,
        ready_s=120.0,  # a cold disk and two cores: importing Django and its libraries can take this long
        layer=_CONTROL,
    )
