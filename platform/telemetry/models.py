"""One table of points; nothing refers to it and nothing breaks when it is emptied."""

from django.db import models


class Sample(models.Model):
    """What one replica reported for one interval of ten seconds. Counters are since the engine's start.

    Bytes and milliseconds; ``level`` is the fraction of the device memory that cannot be taken back.
    """

    replica_id = models.UUIDField()
    at = models.DateTimeField()
    requests_running = models.PositiveIntegerField(default=0)
    requests_waiting = models.PositiveIntegerField(default=0)
    requests_total = models.BigIntegerField(default=0)
    requests_failed_total = models.BigIntegerField(default=0)
    prompt_tokens_total = models.BigIntegerField(default=0)
    completion_tokens_total = models.BigIntegerField(default=0)
    tokens_per_second = models.FloatField(default=0)
    ttft_p50_ms = models.FloatField(null=True)
    ttft_p95_ms = models.FloatField(null=True)
    itl_p50_ms = models.FloatField(null=True)
    itl_p95_ms = models.FloatField(null=True)
    queue_p95_ms = models.FloatField(null=True)
    level = models.FloatField(null=True)
    kv_used_bytes = models.BigIntegerField(default=0)
    kv_total_bytes = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["replica_id", "at"], name="sample_once_per_interval")]
        indexes = [models.Index(fields=["at"], name="sample_at")]

    def __str__(self) -> str:
        return f"{self.replica_id} {self.at:%H:%M:%S}"


class OutcomeCount(models.Model):
    """How requests of one deployment that began within five seconds ended, as one delivery of usage told it.

    ``ttft``, ``itl``, ``e2e`` (milliseconds) and ``tokens`` are sparse histograms (``telemetry.histograms``).
    """

    deployment_id = models.UUIDField()
    at = models.DateTimeField()
    requests = models.PositiveIntegerField()
    errors = models.PositiveIntegerField()
    ttft = models.JSONField(default=dict)
    itl = models.JSONField(default=dict)
    e2e = models.JSONField(default=dict)
    tokens = models.JSONField(default=dict)

    class Meta:
        indexes = [
            models.Index(fields=["deployment_id", "at"], name="outcome_of_deployment"),
            models.Index(fields=["at"], name="outcome_at"),
        ]

    def __str__(self) -> str:
        return f"{self.deployment_id} {self.at:%H:%M:%S}: {self.requests}"
