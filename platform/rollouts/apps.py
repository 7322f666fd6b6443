from django.apps import AppConfig


class RolloutsConfig(AppConfig):
    name = "rollouts"
    verbose_name = "Rollouts"

    def ready(self) -> None:
        """Register what this room does with outbox messages."""
        from rollouts import handlers  # noqa: F401
