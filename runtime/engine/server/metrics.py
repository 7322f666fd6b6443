"""Prometheus text of one engine. Names follow what dashboards for such engines expect."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from runtime.engine.causal.stats import BUCKETS, Latencies
from runtime.engine.lifecycle import Lifecycle, Loaded
from runtime.wire.memory import MemoryLedger
from runtime.wire.reports import EngineStats, Phase

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "millpond_engine_"
_GAUGES: Final = {
    "num_requests_running": "Sequences that hold a slot",
    "num_requests_waiting": "Sequences that wait for a slot",
    "admission_open": "1 while new sequences are admitted",
    "tokens_per_second": "Generated tokens per second over the last ten seconds",
}
_COUNTERS: Final = {
    "requests_total": "Requests taken",
    "requests_failed_total": "Requests that ended with an error",
    "requests_aborted_total": "Requests cancelled by their caller",
    "prompt_tokens_total": "Prompt tokens, as far as they were read",
    "cached_tokens_total": "Prompt tokens spared by the prefix cache",
    "completion_tokens_total": "Generated tokens",
    "preemptions_total": "Sequences that gave their blocks back and computed them again",
    "steps_total": "Steps computed",
    "sleeps_total": "Times the engine gave its device back",
    "wakes_total": "Times a request took it again",
}


class EngineCollector:
    """Reads the engine when it is scraped."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def collect(self) -> Iterable[Metric]:
        """All families, from one look at the state."""
        state = self._lifecycle.state()
        ready = GaugeMetricFamily(_PREFIX + "ready", "1 when the engine has answered and takes requests")
        ready.add_metric([], 1.0 if state.phase in (Phase.READY, Phase.ASLEEP) else 0.0)
        yield ready
        asleep = 1.0 if state.phase is Phase.ASLEEP else 0.0
        yield GaugeMetricFamily(_PREFIX + "asleep", "1 while its device is given back", value=asleep)
        loaded = self._lifecycle.loaded
        if loaded is None:
            return
        yield from _stats(state.stats)
        if state.ledger is not None:
            yield from _ledger(state.ledger)
        yield from _scheduling(loaded)
        yield from _latencies(loaded)


def _stats(stats: EngineStats) -> Iterable[Metric]:
    for name, text in _GAUGES.items():
        yield GaugeMetricFamily(_PREFIX + name, text, value=float(getattr(stats, name)))
    if stats.last_wake_ms is not None:
        wake = "Duration of the latest waking"
        yield GaugeMetricFamily(_PREFIX + "last_wake_seconds", wake, value=stats.last_wake_ms / 1000.0)
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(_PREFIX + name, text, value=float(getattr(stats, name)))


def _ledger(ledger: MemoryLedger) -> Iterable[Metric]:
    held = GaugeMetricFamily(_PREFIX + "memory_bytes", "Bytes of the device by holder", labels=["holder"])
    for holder in (
        "total",
        "other",
        "context",
        "weights",
        "workspace",
        "kv_total",
        "kv_used",
        "kv_cached",
        "device_free",
    ):
        held.add_metric([holder], float(getattr(ledger, holder + "_bytes")))
    yield held
    share = ledger.kv_blocks_used / ledger.kv_blocks_total if ledger.kv_blocks_total else 0.0
    yield GaugeMetricFamily(_PREFIX + "kv_cache_usage_perc", "Share of KV blocks in use, 0..1", value=share)
    yield GaugeMetricFamily(_PREFIX + "memory_level", "Level against the total, 0..1", value=ledger.level)


def _scheduling(loaded: Loaded) -> Iterable[Metric]:
    """What fairness, watermarks and faults did. Labelled by nothing: tenants are too many for a label."""
    engine, load = loaded.engine, loaded.engine.load()
    counters = engine.figures.counters
    for name, text, value in (
        ("tenants_waiting", "Tenants that have something waiting", load.tenants_waiting),
        ("oldest_waiting_seconds", "Age of the request that waits longest", load.oldest_waiting_ms / 1000.0),
        ("kv_blocks_withdrawn", "KV blocks the pool has shrunk by for now", load.kv_withdrawn),
    ):
        yield GaugeMetricFamily(_PREFIX + name, text, value=float(value))
    for name, text, value in (
        ("kv_pool_shrinks_total", "Times the KV pool gave memory back", engine.watch.shrinks_total),
        ("queue_timeouts_total", "Requests ended because no slot became free in time", counters.queue_timeouts),
        ("requests_displaced_total", "Waiting requests that left a full queue to others", counters.displaced),
        ("steps_out_of_memory_total", "Steps given up because an allocation failed", counters.out_of_memory),
        ("steps_failed_total", "Steps that failed with their requests", counters.failed_steps),
    ):
        yield CounterMetricFamily(_PREFIX + name, text, value=float(value))


def _latencies(loaded: Loaded) -> Iterable[Metric]:
    figures = loaded.engine.figures
    yield _histogram("time_to_first_token_seconds", "From submission to the first token", figures.ttft)
    yield _histogram("inter_token_latency_seconds", "Between two tokens of one sequence", figures.itl)
    yield _histogram("request_queue_time_seconds", "From submission to a slot", figures.queue)


def _histogram(name: str, text: str, observed: Latencies) -> HistogramMetricFamily:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*map(str, BUCKETS), "+Inf"], list(observed.counts), strict=True):
        total += count
        buckets.append((bound, float(total)))
    return HistogramMetricFamily(_PREFIX + name, text, buckets=buckets, sum_value=observed.total)


def render(lifecycle: Lifecycle) -> bytes:
    """The text of a scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(lifecycle))
    return generate_latest(registry)
