"""What was asked for in the past, without saying by whom: the demand that placement keeps room useful for."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models


class PastRequest(models.Model):
    """A shape of requests; ``weight`` is how often it was asked for, halved as time passes (``demand_log``).

    ``devices`` devices with ``memory_bytes`` and ``millis`` (thousandths of the compute) of each, ``millicpus`` of the
    node. ``products`` are those that it was limited to, in order; none: it could run on any.
    """

    SHAPE: ClassVar = ("kind", "devices", "memory_bytes", "millis", "millicpus", "products")

    kind = models.CharField(max_length=16)
    devices = models.PositiveSmallIntegerField()
    memory_bytes = models.BigIntegerField()
    millis = models.PositiveIntegerField()
    millicpus = models.PositiveIntegerField()
    products = ArrayField(models.CharField(max_length=120), blank=True, default=list)
    weight = models.FloatField()
    updated_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "devices", "memory_bytes", "millis", "millicpus", "products"],
                name="past_request_once_per_shape_and_products",
            ),
            models.CheckConstraint(condition=models.Q(weight__gte=0), name="past_request_weight_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.devices} x {self.memory_bytes} of {self.kind}"
