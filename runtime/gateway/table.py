"""The route table as requests read it: frozen indexes, swapped as a whole, and a copy on disk to start from."""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.gateway.files import write_private
from runtime.wire import codec, errors, version
from runtime.wire.routes import EndpointEntry, KeyEntry, ReplicaRoute, RouteTable, TenantEntry

log = logs.get(__name__)

# The time of the last confirmation is written this often, so that after a restart the age errs upwards by no more.
_CONFIRM_WRITE_SECONDS: Final = 60.0


class TableRefused(Exception):
    """A table that may not be applied: an older generation, another protocol, or one that contradicts itself."""


class Snapshot:
    """One generation, indexed. Never changed after it was built.

    ``names`` maps (caller's tenant id, name as that caller says it) to the endpoint.
    """

    def __init__(self, table: RouteTable) -> None:
        self.generation = table.generation
        self.pepper = bytes.fromhex(table.key_pepper)
        self.console_origins = frozenset(table.console_origins)
        self.tenants: dict[str, TenantEntry] = {tenant.id: tenant for tenant in table.tenants}
        self.endpoints: dict[str, EndpointEntry] = {endpoint.id: endpoint for endpoint in table.endpoints}
        self.keys: dict[str, KeyEntry] = {key.digest: key for key in table.keys if key.tenant_id in self.tenants}
        self.previous_keys: dict[str, KeyEntry] = {
            key.previous_digest: key for key in self.keys.values() if key.previous_digest
        }
        self.names: dict[tuple[str, str], EndpointEntry] = {}
        self.replicas: dict[str, ReplicaRoute] = {
            replica.replica_id: replica
            for endpoint in table.endpoints
            for variant in endpoint.variants
            for replica in variant.replicas
        }
        self.replica_ids: frozenset[str] = frozenset(self.replicas)
        for endpoint in table.endpoints:
            self._index(endpoint)

    def _index(self, endpoint: EndpointEntry) -> None:
        owner = self.tenants.get(endpoint.tenant_id)
        if owner is None:
            return
        qualified = f"{owner.slug}/{endpoint.name}"
        self.names[endpoint.tenant_id, endpoint.name] = endpoint
        self.names[endpoint.tenant_id, qualified] = endpoint
        for tenant_id in endpoint.granted_tenant_ids:
            self.names[tenant_id, qualified] = endpoint

    def callable_by(self, tenant_id: str) -> list[tuple[str, EndpointEntry]]:
        """Return (name as the tenant says it, endpoint), sorted by name; own endpoints by their short name."""
        found: list[tuple[str, EndpointEntry]] = []
        for endpoint in self.endpoints.values():
            owner = self.tenants.get(endpoint.tenant_id)
            if endpoint.tenant_id == tenant_id:
                found.append((endpoint.name, endpoint))
            elif owner is not None and tenant_id in endpoint.granted_tenant_ids:
                found.append((f"{owner.slug}/{endpoint.name}", endpoint))
        return sorted(found, key=lambda pair: pair[0])


class StoredTable(msgspec.Struct, frozen=True, kw_only=True):
    """What lies on disk. ``confirmed_at`` is the Unix time at which the control plane last stood behind it."""

    confirmed_at: float
    table: RouteTable


class TableKeeper:
    """Holds the newest table this gateway may serve from, in memory and on disk (mode 0600: it holds secrets)."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._table: RouteTable | None = None
        self._confirmed_at = 0.0
        self._written_at = 0.0
        self._dirty = False
        self.removed = False  # the control plane said that this gateway is no longer one of its own
        self.snapshot: Snapshot | None = None

    @property
    def generation(self) -> int:
        """Generation that requests are served from; 0 without a table."""
        return self.snapshot.generation if self.snapshot else 0

    def age(self) -> float:
        """Seconds since the control plane last confirmed the table; 0 without one."""
        if self._table is None:
            return 0.0
        return max(0.0, self._clock.now() - self._confirmed_at)

    def load(self) -> None:
        """Take the table that an earlier process left; one that cannot be read is reported and left alone."""
        try:
            stored = codec.decode(self._path.read_bytes(), StoredTable)
            self._apply(stored.table)
        except FileNotFoundError:
            return
        except (OSError, errors.MalformedMessage, TableRefused) as exc:
            log.warning("stored table not used", path=str(self._path), error=str(exc))
            return
        # A clock that stepped back must not make an old table look fresh for longer than "just confirmed".
        self._confirmed_at = self._written_at = min(stored.confirmed_at, self._clock.now())
        log.info("serving from the stored table", generation=self.generation, age_seconds=round(self.age()))

    def offer(self, table: RouteTable) -> bool:
        """Serve from ``table`` from now on if it is newer; return whether it was. :meth:`save` keeps it on disk.

        Raises:
            TableRefused: its generation is older than the one served, or it cannot be used at all.
        """
        if self._table is not None and table.generation < self.generation:
            raise TableRefused(f"generation {table.generation} is older than {self.generation}, which is served")
        newer = self._table is None or table.generation > self.generation
        if newer:
            self._apply(table)
            self._dirty = True
        self.confirm()
        return newer

    def confirm(self) -> None:
        """Note that the control plane stands behind the present generation now."""
        self.removed = False
        self._confirmed_at = self._clock.now()

    async def save(self) -> None:
        """Write the table to disk if it changed, or if the confirmation there is a minute old."""
        if self._table is None or not (self._dirty or self._confirmed_at - self._written_at >= _CONFIRM_WRITE_SECONDS):
            return
        stored = StoredTable(confirmed_at=self._confirmed_at, table=self._table)
        self._dirty = False
        try:
            await asyncio.to_thread(write_private, self._path, codec.encode(stored))
            self._written_at = stored.confirmed_at
        except OSError as exc:
            # Serving goes on from memory; only a restart without the control plane would be worse off.
            self._dirty = True
            log.warning("table not kept on disk", path=str(self._path), error=str(exc))

    def forget(self) -> None:
        """Drop the table, on disk too: it belongs to a control plane that this gateway has left."""
        self._table = self.snapshot = None
        self.removed = False
        self._path.unlink(missing_ok=True)

    def _apply(self, table: RouteTable) -> None:
        if not version.compatible(table.protocol):
            raise TableRefused(f"protocol {table.protocol.major}.{table.protocol.minor} is not spoken here; update")
        try:
            snapshot = Snapshot(table)
        except ValueError as exc:
            raise TableRefused(f"the table cannot be indexed: {exc}") from exc
        self._table, self.snapshot = table, snapshot
