"""Shapes of this room's REST."""

from decimal import Decimal
from typing import Any, Final

from rest_framework import serializers

from kernel.api.bodies import Body
from metering.periods import GroupBy, HeldBy
from tenants.api.limits import LimitsOut


class UsageQuery(serializers.Serializer[Any]):
    group_by = serializers.ChoiceField(choices=[group.value for group in GroupBy], default=GroupBy.DAY.value)

    def get_fields(self) -> dict[str, Any]:
        """``from`` is a word of Python, so the two times are added by name."""
        return {
            "from": serializers.DateTimeField(
                required=False, help_text="Beginning (rounded down to the hour); default: seven days before the end."
            ),
            "to": serializers.DateTimeField(
                required=False, help_text="End, not included (rounded up to the hour); default: now."
            ),
            **super().get_fields(),
        }


class HeldQuery(UsageQuery):
    group_by = serializers.ChoiceField(
        choices=[group.value for group in HeldBy if group is not HeldBy.TENANT], default=HeldBy.DAY.value
    )


class AllHeldQuery(UsageQuery):
    group_by = serializers.ChoiceField(
        choices=[HeldBy.TENANT, HeldBy.DEVICE, HeldBy.HOUR, HeldBy.DAY, HeldBy.MONTH], default=HeldBy.TENANT.value
    )


class SumsOut(serializers.Serializer[Any]):
    requests = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # the field hides a property by design of DRF
    aborted = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField(help_text="Charged; contains the cached ones.")
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    cost = serializers.DecimalField(max_digits=30, decimal_places=6, help_text="At the prices when it was booked.")
    unbilled_prompt_tokens = serializers.IntegerField(
        help_text="Computed for requests that the platform lost (a replica or gateway died); not charged."
    )
    unbilled_completion_tokens = serializers.IntegerField()


class UsageRowOut(SumsOut):
    id = serializers.CharField(
        help_text="Id of the key, endpoint, model, revision or calling tenant; the time for hour and day."
    )
    label = serializers.CharField(  # type: ignore[assignment]  # as above
        help_text="What people call it."
    )


class DeviceUsageSumsOut(serializers.Serializer[Any]):
    """Hours of whole devices: a share counts as the part of the device that nobody else can use."""

    gpu_hours = serializers.FloatField(help_text="Held: from placement until freed, by slice.")
    idle_gpu_hours = serializers.FloatField(help_text="Held while no request was in flight.")
    cpu_hours = serializers.FloatField(help_text="The same of CPU devices, by share of their memory.")
    idle_cpu_hours = serializers.FloatField()
    cost = serializers.DecimalField(max_digits=30, decimal_places=6, help_text="At the prices of each hour.")


class DeviceUsageRowOut(DeviceUsageSumsOut):
    id = serializers.CharField(help_text="Id of what is grouped by; the product of a device; the time.")
    label = serializers.CharField(help_text="What people call it.")  # type: ignore[assignment]  # as above


class DeviceUsageOut(serializers.Serializer[Any]):
    group_by = serializers.CharField()
    currency = serializers.CharField()
    rows = DeviceUsageRowOut(many=True)
    totals = DeviceUsageSumsOut()

    def get_fields(self) -> dict[str, Any]:
        """See :class:`UsageQuery`."""
        return {"from": serializers.DateTimeField(), "to": serializers.DateTimeField(), **super().get_fields()}


class UsageOut(serializers.Serializer[Any]):
    group_by = serializers.CharField()
    currency = serializers.CharField()
    rows = UsageRowOut(many=True)
    totals = SumsOut()

    def get_fields(self) -> dict[str, Any]:
        """See :class:`UsageQuery`."""
        return {"from": serializers.DateTimeField(), "to": serializers.DateTimeField(), **super().get_fields()}


_PER_MILLION: Final[dict[str, Any]] = {"max_digits": 12, "decimal_places": 6, "min_value": Decimal(0)}


class PriceIn(Body):
    """Amounts of the currency for one million tokens."""

    prompt = serializers.DecimalField(**_PER_MILLION)
    cached = serializers.DecimalField(
        **_PER_MILLION,
        required=False,
        allow_null=True,
        default=None,
        help_text="Prompt tokens that came from the prefix cache; default: as prompt.",
    )
    completion = serializers.DecimalField(**_PER_MILLION)
    valid_from = serializers.DateTimeField(
        required=False, allow_null=True, default=None, help_text="When it begins to count; default: now."
    )


class PriceOut(serializers.Serializer[Any]):
    prompt = serializers.DecimalField(max_digits=18, decimal_places=6)
    cached = serializers.DecimalField(max_digits=18, decimal_places=6)
    completion = serializers.DecimalField(max_digits=18, decimal_places=6)


class EndpointPriceOut(PriceOut):
    endpoint = serializers.CharField(help_text="The name to call.")
    own = serializers.BooleanField(help_text="False: the price for all endpoints.")


class TenantPricesOut(serializers.Serializer[Any]):
    currency = serializers.CharField()
    endpoints = EndpointPriceOut(many=True)


class PricedEndpointOut(PriceOut):
    tenant = serializers.CharField()
    endpoint = serializers.CharField()


class PriceToComeOut(PriceOut):
    id = serializers.IntegerField()
    tenant = serializers.CharField(allow_null=True)
    endpoint = serializers.CharField(allow_null=True, help_text="null: for all without a price of their own.")
    valid_from = serializers.DateTimeField()


class PriceListOut(serializers.Serializer[Any]):
    currency = serializers.CharField()
    default = PriceOut()
    endpoints = PricedEndpointOut(many=True)
    to_come = PriceToComeOut(many=True)


_PER_HOUR: Final[dict[str, Any]] = {"max_digits": 18, "decimal_places": 6}


class DevicePriceIn(Body):
    """Amount of the currency for one whole device and one hour."""

    product = serializers.CharField(
        max_length=120, allow_blank=True, default="", help_text="As nodes report it; empty: all without a price."
    )
    per_hour = serializers.DecimalField(
        max_digits=12, decimal_places=6, min_value=Decimal(0), allow_null=True, help_text="null: what all cost."
    )
    valid_from = serializers.DateTimeField(
        required=False, allow_null=True, default=None, help_text="A whole hour (UTC) to come; default: the next."
    )


class DevicePriceStart(serializers.Serializer[Any]):
    product = serializers.CharField(max_length=120, allow_blank=True, default="")
    valid_from = serializers.DateTimeField()


class DevicePriceOut(serializers.Serializer[Any]):
    product = serializers.CharField()
    own = serializers.BooleanField(help_text="False: what all cost.")
    per_hour = serializers.DecimalField(**_PER_HOUR)


class DevicePriceToComeOut(serializers.Serializer[Any]):
    product = serializers.CharField()
    per_hour = serializers.DecimalField(**_PER_HOUR, allow_null=True)
    valid_from = serializers.DateTimeField()


class DevicePriceListOut(serializers.Serializer[Any]):
    currency = serializers.CharField()
    default = serializers.DecimalField(**_PER_HOUR)
    devices = DevicePriceOut(many=True)
    to_come = DevicePriceToComeOut(many=True)


class UseOut(serializers.Serializer[Any]):
    requests_last_minute = serializers.IntegerField(help_text="Requests that ended and were booked.")
    tokens_last_minute = serializers.IntegerField()
    budget_used = serializers.FloatField(allow_null=True, help_text="In the budget's unit; null: there is no budget.")
    budget_period_start = serializers.DateTimeField(allow_null=True)
    budget_period_end = serializers.DateTimeField(allow_null=True)


class KeyUseOut(LimitsOut):
    id = serializers.UUIDField()
    name = serializers.CharField()
    use = UseOut()


class TenantUseOut(LimitsOut):
    currency = serializers.CharField()
    weight = serializers.FloatField()
    use = UseOut()
    keys = KeyUseOut(many=True, help_text="Keys with a limit or a budget of their own.")
