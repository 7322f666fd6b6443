"""The Celery app. Rooms keep their tasks in ``tasks.py``; the schedule of the loops stands here, in one place."""

import os

from celery import Celery
from celery.schedules import schedule

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("millpond")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

# Every loop is level-triggered: a missed beat costs latency, never correctness. A beat that finds the last one still
# waiting is dropped after ``expires``.
LOOPS: dict[str, float] = {
    "controlplane.tasks.drain_outbox": 5.0,
    "controlplane.tasks.housekeeping": 300.0,
    "catalog.tasks.validate_waiting": 10.0,
    "catalog.tasks.expire_uploads": 300.0,
    "fleet.tasks.expire_leases": 2.0,
    "scheduling.tasks.reconcile": 2.0,
    "serving.tasks.reconcile": 2.0,
    "rollouts.tasks.advance_all": 2.0,
    "telemetry.tasks.prune": 120.0,
    "metering.tasks.roll_up": 30.0,
    "metering.tasks.follow_budgets": 60.0,
}
app.conf.beat_schedule = {
    name: {"task": name, "schedule": schedule(seconds), "options": {"expires": max(seconds, 2.0)}}
    for name, seconds in LOOPS.items()
}
