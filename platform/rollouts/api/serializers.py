"""Bodies of the rollouts API."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kernel.api.bodies import Body
from kernel.api.numbers import NumberField
from rollouts import experiments, selectors
from rollouts.judge.checks import Tolerance
from rollouts.models import Capacity, Experiment, Rollout, RolloutLog, Strategy
from rollouts.planning import Preview, Wish
from rollouts.strategies import MAX_HOLD_SECONDS, MAX_REQUESTS, MAX_STEPS
from serving.models import MAX_REPLICAS


class ToleranceIn(Body):
    """How much worse than the baseline the candidate may be; fractions."""

    error_points = NumberField(min_value=0, max_value=1, default=Tolerance.error_points)
    slower = NumberField(min_value=0, max_value=10, default=Tolerance.slower)
    tail_points = NumberField(min_value=0, max_value=1, default=Tolerance.tail_points)
    length_points = NumberField(min_value=0, max_value=1, default=Tolerance.length_points)


class WishIn(Body):
    """What to roll out, and how. ``version`` is a number or an alias; ``replicas`` 0: as many as the baseline has."""

    model = serializers.CharField(max_length=128)
    version = serializers.CharField(max_length=64)
    config = serializers.DictField(required=False, default=dict)
    replicas = serializers.IntegerField(min_value=0, max_value=MAX_REPLICAS, default=0)
    strategy = serializers.ChoiceField(choices=Strategy.choices, default=Strategy.CANARY)
    capacity = serializers.ChoiceField(choices=Capacity.choices, default=Capacity.SPARE)
    shares = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=100), max_length=MAX_STEPS, required=False, default=list
    )
    hold_seconds = serializers.IntegerField(min_value=0, max_value=MAX_HOLD_SECONDS, default=300)
    min_requests = serializers.IntegerField(min_value=1, max_value=MAX_REQUESTS, default=100)
    tolerance = ToleranceIn(required=False)
    auto_rollback = serializers.BooleanField(default=True)
    keep_seconds = serializers.IntegerField(min_value=0, max_value=7 * MAX_HOLD_SECONDS, default=900)
    ready_seconds = serializers.IntegerField(min_value=10, max_value=MAX_HOLD_SECONDS, default=1800)

    def wish(self) -> Wish:
        """As the services take it."""
        values = {name: self.validated_data[name] for name in _WISH}
        values["strategy"], values["capacity"] = Strategy(values["strategy"]), Capacity(values["capacity"])
        return Wish(tolerance=Tolerance(**self.validated_data.get("tolerance", {})), **values)


_WISH = (
    "model", "version", "config", "replicas", "strategy", "capacity", "shares", "hold_seconds", "min_requests",
    "auto_rollback", "keep_seconds", "ready_seconds",
)  # fmt: skip


class RolloutIn(WishIn):
    """A new rollout. ``accept`` gives back the sentence of a plan with a gap; ``start`` false only plans."""

    accept = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)
    start = serializers.BooleanField(default=True)


class StepOut(serializers.Serializer[Any]):
    """One step of a plan."""

    share = serializers.IntegerField()
    candidate_replicas = serializers.IntegerField()
    baseline_before = serializers.IntegerField()
    baseline_after = serializers.IntegerField()
    hold_seconds = serializers.IntegerField()
    min_requests = serializers.IntegerField()
    judged = serializers.BooleanField()


class RolloutPlanOut(serializers.Serializer[Any]):
    """The steps, how many more replicas than now run at the peak, and the gap that must be accepted ("": none)."""

    steps = StepOut(many=True)
    extra_replicas = serializers.IntegerField()
    gap = serializers.CharField()


class OfferOut(serializers.Serializer[Any]):
    """A way to get the room."""

    capacity = serializers.CharField()
    possible = serializers.BooleanField()
    extra_replicas = serializers.IntegerField()
    extra_bytes = serializers.IntegerField()
    accept = serializers.CharField()
    sentence = serializers.CharField()


class RolloutPreviewOut(serializers.Serializer[Any]):
    """What a rollout would do and cost."""

    baseline = serializers.UUIDField(source="baseline.id")
    plan = RolloutPlanOut()
    extra_bytes = serializers.IntegerField()
    fits = serializers.BooleanField()
    sentence = serializers.CharField()
    reason = serializers.CharField(help_text="Why no room would help: NoEngine, or what devices lack. Else empty.")
    offers = OfferOut(many=True)

    def to_representation(self, instance: Preview) -> Any:
        return super().to_representation(instance)


class VerdictOut(serializers.Serializer[Any]):
    """What the judge said last; empty before it was asked."""

    outcome = serializers.CharField(required=False)
    sentence = serializers.CharField(required=False)
    measure = serializers.CharField(required=False)
    value = serializers.FloatField(required=False, allow_null=True)
    limit = serializers.FloatField(required=False, allow_null=True)
    baseline_requests = serializers.IntegerField(required=False)
    candidate_requests = serializers.IntegerField(required=False)
    checks = serializers.ListField(child=serializers.DictField(), required=False)


class RolloutOut(serializers.ModelSerializer[Rollout]):
    """A rollout. ``step`` counts from 0."""

    endpoint = serializers.CharField(source="endpoint.name")
    plan = RolloutPlanOut()
    verdict = VerdictOut()
    can = serializers.SerializerMethodField()

    class Meta:
        model = Rollout
        fields = [
            "id", "endpoint", "baseline", "candidate", "from_label", "to_label", "strategy", "capacity", "state",
            "reason", "message", "plan", "step", "step_began_at", "verdict", "can", "keep_until", "created_at",
            "created_by", "started_at", "ended_at",
        ]  # fmt: skip

    @extend_schema_field(serializers.DictField(child=serializers.BooleanField()))
    def get_can(self, row: Rollout) -> dict[str, bool]:
        return selectors.can(row)


class LogOut(serializers.ModelSerializer[RolloutLog]):
    """One line of a rollout's log."""

    class Meta:
        model = RolloutLog
        fields = ["id", "at", "step", "kind", "sentence", "actor", "data"]


class EstimateOut(serializers.Serializer[Any]):
    """A measure of one side with its 95 % interval."""

    value = serializers.FloatField(allow_null=True)
    low = serializers.FloatField(allow_null=True)
    high = serializers.FloatField(allow_null=True)
    requests = serializers.IntegerField()


class MeasureOut(serializers.Serializer[Any]):
    """A measure of both sides. ``apart``: the intervals do not touch."""

    measure = serializers.CharField()
    unit = serializers.CharField()
    baseline = EstimateOut()
    candidate = EstimateOut()
    apart = serializers.BooleanField()


class ComparedOut(serializers.Serializer[Any]):
    """Both sides of the current step."""

    measures = MeasureOut(many=True)


class ResultsOut(serializers.Serializer[Any]):
    """What an experiment shows."""

    baseline_requests = serializers.IntegerField()
    candidate_requests = serializers.IntegerField()
    measures = MeasureOut(many=True)


class ExperimentIn(Body):
    """A new experiment. ``share`` is the candidate's part in per mille; with ``seconds`` it ends by itself."""

    endpoint = serializers.CharField(max_length=80)
    name = serializers.CharField(max_length=120)
    candidate = serializers.UUIDField()
    share = serializers.IntegerField(min_value=1, max_value=999)
    seconds = serializers.IntegerField(
        min_value=60, max_value=experiments.MAX_SECONDS, required=False, allow_null=True, default=None
    )


class ExperimentOut(serializers.ModelSerializer[Experiment]):
    """An experiment."""

    endpoint = serializers.CharField(source="endpoint.name")

    class Meta:
        model = Experiment
        fields = [
            "id", "endpoint", "name", "baseline", "candidate", "from_label", "to_label", "share", "state", "reason",
            "message", "ends_at", "created_at", "created_by", "state_changed_at",
        ]  # fmt: skip


class ExperimentDetailOut(ExperimentOut):
    """An experiment with what it shows."""

    results = serializers.SerializerMethodField()

    class Meta(ExperimentOut.Meta):
        fields = [*ExperimentOut.Meta.fields, "results"]

    @extend_schema_field(ResultsOut)
    def get_results(self, row: Experiment) -> Any:
        return experiments.compare(row)
