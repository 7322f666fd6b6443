from django.apps import AppConfig


class MeteringConfig(AppConfig):
    name = "metering"
    verbose_name = "Metering"

    def ready(self) -> None:
        """Follow partitions: who holds what is written with them."""
        from metering import holdings

        holdings.listen()
