"""Routes of rollouts under ``/api/v1/``."""

from django.urls import path

from rollouts.api import experiments, views

_TENANT = "tenants/<slug:tenant>/"
_ENDPOINT = _TENANT + "endpoints/<str:endpoint>"
_ROLLOUT = _TENANT + "rollouts/<uuid:rollout_id>"
_EXPERIMENT = _TENANT + "experiments/<uuid:experiment_id>"

urlpatterns = [
    path(_TENANT + "rollouts", views.RolloutsView.as_view(), name="rollouts"),
    path(_ENDPOINT + "/rollouts", views.EndpointRolloutsView.as_view(), name="endpoint-rollouts"),
    path(_ENDPOINT + "/rollouts/preview", views.RolloutPreviewView.as_view(), name="rollout-preview"),
    path(_ROLLOUT, views.RolloutView.as_view(), name="rollout"),
    path(_ROLLOUT + "/log", views.RolloutLogView.as_view(), name="rollout-log"),
    path(_ROLLOUT + "/compared", views.RolloutComparedView.as_view(), name="rollout-compared"),
    path(_ROLLOUT + "/start", views.StartRolloutView.as_view(), name="rollout-start"),
    path(_ROLLOUT + "/pause", views.PauseRolloutView.as_view(), name="rollout-pause"),
    path(_ROLLOUT + "/resume", views.ResumeRolloutView.as_view(), name="rollout-resume"),
    path(_ROLLOUT + "/promote", views.PromoteRolloutView.as_view(), name="rollout-promote"),
    path(_ROLLOUT + "/roll-back", views.RollBackRolloutView.as_view(), name="rollout-roll-back"),
    path(_ROLLOUT + "/abort", views.AbortRolloutView.as_view(), name="rollout-abort"),
    path(_TENANT + "experiments", experiments.ExperimentsView.as_view(), name="experiments"),
    path(_EXPERIMENT, experiments.ExperimentView.as_view(), name="experiment"),
    path(_EXPERIMENT + "/end", experiments.EndExperimentView.as_view(), name="experiment-end"),
]
