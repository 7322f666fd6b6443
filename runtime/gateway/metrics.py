"""What /metrics shows. Every label is bounded: ids come from the route table and are capped, the rest are fixed words.

Nothing here raises into the path of a request, and the counts per streamed piece are gathered beside the request
(:class:`~runtime.gateway.histograms.Gaps`) and added once at its end.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from runtime.gateway.histograms import GAP, Gaps, Histograms
from runtime.wire.inference import PRIORITIES

OTHER: Final = "other"
MAX_ENDPOINTS: Final = 500
MAX_DEPLOYMENTS: Final = 1000
MAX_TENANTS: Final = 500
_PREFIX: Final = "millpond_gateway_"


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
    """One registry per process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        # What every request counts, by labels: looking a series up and its lock cost more than counting. Told to the
        # series when they are shown or dropped (:meth:`_tell`).
        self._served: dict[tuple[str, str, str, int], int] = {}
        self._used: dict[tuple[str, str], int] = {}
        self._endpoints = Bounded(MAX_ENDPOINTS)
        self._deployments = Bounded(MAX_DEPLOYMENTS)
        self._tenants = Bounded(MAX_TENANTS)
        both = ["endpoint", "deployment"]
        self._requests = self._counter(
            "requests", "Requests that were routed, by status", ["operation", *both, "status"]
        )
        self._refusals = self._counter("refusals", "Requests refused, by reason", ["reason"])
        self._alerts = self._counter("budget_alerts", "Requests over a budget that only alerts, by its holder", ["of"])
        self._tokens = self._counter("tokens", "Tokens computed, by caller", ["tenant", "kind"])
        self._duration = self._histogram("request_seconds", "From the request's head to its last byte", both)
        self._first = self._histogram("first_event_seconds", "From the head to the first streamed event", both)
        self._gaps = Histograms(_PREFIX + "inter_event_seconds", "Between streamed pieces", ["deployment"], GAP)
        self._registry.register(self._gaps)
        self._queue = self._histogram("queue_seconds", "Time for which requests were held back", ["deployment"])
        self._shed = self._counter("shed", "Held requests that had to leave, or found no room", ["priority"])
        self._retries = self._counter("retries", "Tries on another replica", ["deployment"])
        self._no_retry = self._counter("retries_refused", "Tries that the retry budget forbade", ["deployment"])
        self._ejections = self._counter("ejections", "Replicas that get nothing for now", ["deployment", "reason"])
        self._opened = self._counter("circuit_opened", "Deployments found out of reach", ["deployment"])
        self._cuts = Counter(_PREFIX + "cut_streams", "Streams that an engine did not finish", registry=self._registry)
        self._by_deployment = {
            name: Gauge(_PREFIX + name, text, ["deployment"], registry=self._registry)
            for name, text in (
                ("deployment_in_flight", "Requests at the engines of a deployment"),
                ("deployment_limit", "How many of them keep the endpoint's SLO"),
                ("deployment_held", "Requests held back before a deployment"),
            )
        }
        self._gauges = {
            name: Gauge(_PREFIX + name, text, registry=self._registry)
            for name, text in (
                ("in_flight", "Requests being served"),
                ("held", "Requests held back"),
                ("ejected_replicas", "Replicas that get nothing now"),
                ("journal_pending", "Usage records not yet booked"),
                ("journal_skipped", "Journal lines that could not be read since the start"),
                ("table_generation", "Generation of the route table served from"),
                ("table_age_seconds", "Seconds since the control plane confirmed the table"),
                ("limits_shared", "1 while limits are counted together with the other gateways"),
                ("limits_gateways", "Gateways that share the limits"),
                ("control_plane_up", "1 when the last call to the control plane succeeded"),
            )
        }

    # --- requests ---

    def served(
        self,
        *,
        operation: str,
        endpoint_id: str,
        deployment_id: str,
        status: int,
        seconds: float,
        first_seconds: float | None,
    ) -> None:
        """One request that reached the routing stage has ended; ``deployment_id`` is empty if it found none."""
        labels = (self._endpoints.of(endpoint_id), self._deployments.of(deployment_id) if deployment_id else "")
        series = (operation, *labels, status)
        self._served[series] = self._served.get(series, 0) + 1
        self._duration.observe(labels, seconds)
        if first_seconds is not None:
            self._first.observe(labels, first_seconds)

    def took(self, deployment_id: str, gaps: Gaps) -> None:
        """A stream has ended; these were the times between its pieces."""
        if gaps.counts is not None:
            self._gaps.merge((self._deployments.of(deployment_id),), gaps.counts, gaps.total)

    def used(self, tenant_id: str, *, prompt: int, cached: int, completion: int) -> None:
        """Tokens of one request."""
        tenant = self._tenants.of(tenant_id)
        for kind, count in (("prompt", prompt), ("cached", cached), ("completion", completion)):
            if count > 0:
                self._used[tenant, kind] = self._used.get((tenant, kind), 0) + count

    def refused(self, reason: str) -> None:
        """One request was refused."""
        self._refusals.labels(reason).inc()

    def budget_alert(self, word: str) -> None:
        """One request went on although a budget that only alerts is used up; ``word`` is "key" or "tenant"."""
        self._alerts.labels(word).inc()

    # --- deployments ---

    def held(self, deployment_id: str, seconds: float) -> None:
        """A request was held back for so long, whatever came of it."""
        self._queue.observe((self._deployments.of(deployment_id),), seconds)

    def shed(self, rank: int) -> None:
        """A request of the class was refused because too many are held."""
        self._shed.labels(PRIORITIES[rank]).inc()

    def retried(self, deployment_id: str) -> None:
        """One request went on to another replica."""
        self._retries.labels(self._deployments.of(deployment_id)).inc()

    def retry_refused(self, deployment_id: str) -> None:
        """One request would have gone on to another replica, but too many have."""
        self._no_retry.labels(self._deployments.of(deployment_id)).inc()

    def ejected(self, deployment_id: str, reason: str) -> None:
        """One replica gets nothing from now on."""
        self._ejections.labels(self._deployments.of(deployment_id), reason).inc()

    def opened(self, deployment_id: str) -> None:
        """A deployment's circuit breaker opened."""
        self._opened.labels(self._deployments.of(deployment_id)).inc()

    def cut(self) -> None:
        """One stream ended before its end."""
        self._cuts.inc()

    # --- upkeep and showing ---

    def forget_gone(self, endpoint_ids: frozenset[str], tenant_ids: frozenset[str]) -> None:
        """Drop series of endpoints and tenants that left the table."""
        self._tell()
        gone = self._endpoints.keep_only(endpoint_ids)
        for endpoint in gone:
            self._requests.remove_by_labels({"endpoint": endpoint})
        if gone:
            self._duration.forget(0, gone)
            self._first.forget(0, gone)
        for tenant in self._tenants.keep_only(tenant_ids):
            self._tokens.remove_by_labels({"tenant": tenant})

    def forget_deployments(self, deployment_ids: frozenset[str]) -> None:
        """Drop series of deployments that left the table."""
        gone = self._deployments.keep_only(deployment_ids)
        if not gone:
            return
        self._tell()
        counters = (self._requests, self._retries, self._no_retry, self._ejections, self._opened)
        for series in (*counters, *self._by_deployment.values()):
            for deployment in gone:
                series.remove_by_labels({"deployment": deployment})
        for histogram, at in ((self._duration, 1), (self._first, 1), (self._gaps, 0), (self._queue, 0)):
            histogram.forget(at, gone)

    def show_deployment(self, deployment_id: str, *, in_flight: int, limit: int, held: int) -> None:
        """Set the gauges of one deployment."""
        label = self._deployments.of(deployment_id)
        if label == OTHER:
            return
        for name, value in (("in_flight", in_flight), ("limit", limit), ("held", held)):
            self._by_deployment[f"deployment_{name}"].labels(label).set(value)

    def render(self, **gauges: float) -> bytes:
        """The text format, with the gauges as of now."""
        self._tell()
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return generate_latest(self._registry)

    def _tell(self) -> None:
        """Add what was counted beside the series to them."""
        for (operation, endpoint, deployment, status), count in self._served.items():
            self._requests.labels(operation, endpoint, deployment, str(status)).inc(count)
        for (tenant, kind), count in self._used.items():
            self._tokens.labels(tenant, kind).inc(count)
        self._served.clear()
        self._used.clear()

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(_PREFIX + name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, labels: list[str]) -> Histograms:
        made = Histograms(_PREFIX + name, text, labels)
        self._registry.register(made)
        return made
