from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
    verbose_name = "Tenants"

    def ready(self) -> None:
        from tenants.api import schema  # noqa: F401  (importing registers with drf-spectacular)
