from django.apps import AppConfig


class CatalogConfig(AppConfig):
    name = "catalog"
    verbose_name = "Catalog"

    def ready(self) -> None:
        """Register the handlers of this room's outbox topics."""
        from catalog import handlers  # noqa: F401  (importing registers)
