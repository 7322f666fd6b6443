"""What /metrics shows. Every label is bounded: ids come from the route table and are capped."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

OTHER: Final = "other"
MAX_ENDPOINTS: Final = 500
MAX_TENANTS: Final = 500

_LATENCY: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Bounded:
    """Lets through the first ``most`` distinct values still in use; the rest share one label."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()

    def of(self, value: str) -> str:
        """The label for ``value``."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._most:
            return OTHER
        self._seen.add(value)
        return value

    def keep_only(self, values: frozenset[str]) -> set[str]:
        """Forget values that are not in ``values``; return those."""
        gone = self._seen - values
        self._seen -= gone
        return gone


class Metrics:
    """One registry per process. Methods never raise into the path of a request."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._endpoints = Bounded(MAX_ENDPOINTS)
        self._tenants = Bounded(MAX_TENANTS)
        registry = self._registry
        self._requests = Counter(
            "millpond_gateway_requests",
            "Requests that were routed, by status",
            ["operation", "endpoint", "status"],
            registry=registry,
        )
        self._refusals = Counter(
            "millpond_gateway_refusals", "Requests refused, by reason", ["reason"], registry=registry
        )
        self._tokens = Counter(
            "millpond_gateway_tokens", "Tokens computed, by caller", ["tenant", "kind"], registry=registry
        )
        self._duration = Histogram(
            "millpond_gateway_request_seconds",
            "From the request's head to its last byte",
            ["endpoint"],
            buckets=_LATENCY,
            registry=registry,
        )
        self._first = Histogram(
            "millpond_gateway_first_event_seconds",
            "From the request's head to the first streamed event",
            ["endpoint"],
            buckets=_LATENCY,
            registry=registry,
        )
        self._retries = Counter("millpond_gateway_retries", "Tries on another replica", registry=registry)
        self._cuts = Counter("millpond_gateway_cut_streams", "Streams that an engine did not finish", registry=registry)
        self._gauges = {
            name: Gauge(f"millpond_gateway_{name}", text, registry=registry)
            for name, text in (
                ("in_flight", "Requests being served"),
                ("journal_pending", "Usage records not yet booked"),
                ("journal_skipped", "Journal lines that could not be read since the start"),
                ("table_generation", "Generation of the route table served from"),
                ("table_age_seconds", "Seconds since the control plane confirmed the table"),
                ("control_plane_up", "1 when the last call to the control plane succeeded"),
            )
        }

    def served(
        self, *, operation: str, endpoint_id: str, status: int, seconds: float, first_seconds: float | None
    ) -> None:
        """One request that reached the routing stage has ended."""
        endpoint = self._endpoints.of(endpoint_id)
        self._requests.labels(operation, endpoint, str(status)).inc()
        self._duration.labels(endpoint).observe(max(0.0, seconds))
        if first_seconds is not None:
            self._first.labels(endpoint).observe(max(0.0, first_seconds))

    def used(self, tenant_id: str, *, prompt: int, cached: int, completion: int) -> None:
        """Tokens of one request."""
        tenant = self._tenants.of(tenant_id)
        for kind, count in (("prompt", prompt), ("cached", cached), ("completion", completion)):
            if count > 0:
                self._tokens.labels(tenant, kind).inc(count)

    def refused(self, reason: str) -> None:
        """One request was refused."""
        self._refusals.labels(reason).inc()

    def retried(self) -> None:
        """One request went on to another replica."""
        self._retries.inc()

    def cut(self) -> None:
        """One stream ended before its end."""
        self._cuts.inc()

    def forget_gone(self, endpoint_ids: frozenset[str], tenant_ids: frozenset[str]) -> None:
        """Drop series of endpoints and tenants that left the table."""
        for endpoint in self._endpoints.keep_only(endpoint_ids):
            self._requests.remove_by_labels({"endpoint": endpoint})
            self._duration.remove_by_labels({"endpoint": endpoint})
            self._first.remove_by_labels({"endpoint": endpoint})
        for tenant in self._tenants.keep_only(tenant_ids):
            self._tokens.remove_by_labels({"tenant": tenant})

    def render(self, **gauges: float) -> bytes:
        """The text format, with the gauges as of now."""
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return generate_latest(self._registry)
