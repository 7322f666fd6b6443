from django.apps import AppConfig


class ServingConfig(AppConfig):
    name = "serving"
    verbose_name = "Serving"

    def ready(self) -> None:
        """Say who holds partitions, what counts against quotas, and what to do when something changes."""
        from fleet import holders
        from quotas import usage
        from quotas.amount import Kind
        from serving import handlers, selectors  # noqa: F401  (importing handlers registers them)
        from serving.reconcile import cycle

        holders.described_by(selectors.describe_holders)
        holders.evicted_by(cycle.evict)
        usage.counted_by(Kind.REPLICAS, selectors.wanted_by)
        for kind in (Kind.GPU_MILLIS, Kind.HBM_BYTES):
            usage.counted_by(kind, usage.Part(selectors.devices_held, kind))
        usage.broken_down_by(selectors.holdings)
