from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    name = "controlplane"

    def ready(self) -> None:
        """Register checks and wire what rooms may not know of each other."""
        from controlplane import checks, wiring  # noqa: F401  (importing registers)
