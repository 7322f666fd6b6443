from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"
    verbose_name = "Scheduling"

    def ready(self) -> None:
        """Wake up when something waits or room appears."""
        from scheduling import handlers  # noqa: F401  (importing registers)
