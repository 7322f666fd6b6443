"""Rollouts with their log, and experiments."""

from typing import ClassVar

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from kernel import ids
from kernel.scope import ScopedManager
from rollouts.states import ACTIVE, ExperimentState, RolloutState
from serving.models import Deployment, Endpoint
from tenants.models import Tenant


class Strategy(models.TextChoices):
    """How traffic moves."""

    CANARY = "canary", _("Canary")
    ROLLING = "rolling", _("Rolling")
    BLUE_GREEN = "blue_green", _("Blue-green")


class Capacity(models.TextChoices):
    """Where the candidate's first replica comes from.

    ``spare``: free devices. ``squeeze``: one replica of the baseline ends first, the rest serves on. ``in_place``: the
    baseline ends before the candidate starts, and nothing answers in between.
    """

    SPARE = "spare", _("Spare devices")
    SQUEEZE = "squeeze", _("Squeeze")
    IN_PLACE = "in_place", _("In place")


class Rollout(models.Model):
    """A planned move of an endpoint's traffic from ``baseline`` to ``candidate``.

    ``plan`` holds the steps (``rollouts.strategies.Step``) and what they cost. ``step`` counts from 0;
    ``step_entered_at`` is when it was entered, ``step_began_at`` when its share was set: ``None`` while its replicas
    are not ready yet. ``verdict`` is what the judge said last. ``baseline_replicas`` is what the baseline had, to
    go back to; ``keep_until`` is how long a replaced baseline is kept warm. ``from_label`` and ``to_label`` outlive
    deployments.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="rollouts")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="rollouts")
    baseline = models.ForeignKey(Deployment, null=True, on_delete=models.SET_NULL, related_name="+")
    candidate = models.ForeignKey(Deployment, null=True, on_delete=models.SET_NULL, related_name="+")
    from_label = models.CharField(max_length=120)
    to_label = models.CharField(max_length=120)
    strategy = models.CharField(max_length=16, choices=Strategy)
    capacity = models.CharField(max_length=16, choices=Capacity, default=Capacity.SPARE)
    plan = models.JSONField()
    settings = models.JSONField(default=dict)
    state = models.CharField(max_length=16, choices=RolloutState, default=RolloutState.PLANNED)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    state_changed_at = models.DateTimeField()
    step = models.PositiveSmallIntegerField(default=0)
    step_entered_at = models.DateTimeField(null=True)
    step_began_at = models.DateTimeField(null=True)
    judged_at = models.DateTimeField(null=True)
    verdict = models.JSONField(default=dict)
    baseline_replicas = models.PositiveSmallIntegerField()
    candidate_replicas = models.PositiveSmallIntegerField()
    keep_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=254)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    objects = ScopedManager["Rollout"]()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["endpoint"],
                condition=Q(state__in=sorted(state.value for state in ACTIVE)),
                name="rollout_one_active_per_endpoint",
            ),
            models.CheckConstraint(condition=Q(state__in=RolloutState.values), name="rollout_state_known"),
            models.CheckConstraint(
                condition=Q(baseline=None) | Q(candidate=None) | ~Q(baseline=F("candidate")),
                name="rollout_two_sides",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.from_label} to {self.to_label}"


class LogKind(models.TextChoices):
    """What a line of a rollout's log tells."""

    WEIGHT = "weight", _("Weight")
    VERDICT = "verdict", _("Verdict")
    STATE = "state", _("State")
    STEP = "step", _("Step")


class RolloutLog(models.Model):
    """A line of a rollout's log. ``data`` of a verdict is ``judge.verdict.Verdict.as_dict``; of a weight, the share."""

    TENANT_FIELD: ClassVar[str] = "rollout__tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="log")
    at = models.DateTimeField()
    step = models.PositiveSmallIntegerField()
    kind = models.CharField(max_length=8, choices=LogKind)
    sentence = models.TextField()
    actor = models.CharField(max_length=254, blank=True)
    data = models.JSONField(default=dict)

    objects = ScopedManager["RolloutLog"]()

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.sentence


class Experiment(models.Model):
    """A fixed split between two deployments with interval estimates per metric; it moves nothing by itself.

    ``share`` is the candidate's share in per mille. ``before`` keeps the weights to go back to at the end; ``results``
    is what was estimated when it ended.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="experiments")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="experiments")
    name = models.CharField(max_length=120)
    baseline = models.ForeignKey(Deployment, null=True, on_delete=models.SET_NULL, related_name="+")
    candidate = models.ForeignKey(Deployment, null=True, on_delete=models.SET_NULL, related_name="+")
    from_label = models.CharField(max_length=120)
    to_label = models.CharField(max_length=120)
    share = models.PositiveSmallIntegerField(validators=[MaxValueValidator(999)])
    state = models.CharField(max_length=16, choices=ExperimentState, default=ExperimentState.RUNNING)
    reason = models.CharField(max_length=64, blank=True)
    message = models.TextField(blank=True)
    state_changed_at = models.DateTimeField()
    before = models.JSONField(default=dict)
    results = models.JSONField(default=dict)
    ends_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=254)

    objects = ScopedManager["Experiment"]()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["endpoint"], condition=Q(state="running"), name="experiment_one_per_endpoint"
            ),
            models.CheckConstraint(condition=Q(state__in=ExperimentState.values), name="experiment_state_known"),
            models.CheckConstraint(condition=Q(share__gte=1, share__lte=999), name="experiment_share_bounded"),
        ]

    def __str__(self) -> str:
        return self.name
