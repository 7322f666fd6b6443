from django.apps import AppConfig


class QuotasConfig(AppConfig):
    name = "quotas"
    verbose_name = "Quotas"

    def ready(self) -> None:
        """Let uploads ask before they take bytes, and count the bytes they took."""
        from catalog import storage
        from quotas import services, usage
        from quotas.amount import Kind

        storage.register_quota(services.check_storage)
        usage.counted_by(Kind.STORAGE_BYTES, storage.used_bytes_by)
