"""Replicas may be asleep: they serve, and give their device back between requests."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("serving", "0003_grants_by_name")]

    operations = [
        migrations.RemoveConstraint(model_name="replica", name="replica_state_known"),
        migrations.AlterField(
            model_name="replica",
            name="state",
            field=models.CharField(
                choices=[
                    ("pending", "Pending"),
                    ("assigned", "Assigned"),
                    ("fetching", "Fetching"),
                    ("loading", "Loading"),
                    ("warming", "Warming"),
                    ("ready", "Ready"),
                    ("degraded", "Degraded"),
                    ("asleep", "Asleep"),
                    ("draining", "Draining"),
                    ("stopped", "Stopped"),
                    ("failed", "Failed"),
                    ("unreachable", "Unreachable"),
                ],
                default="pending",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="replica",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "state__in",
                        [
                            "pending",
                            "assigned",
                            "fetching",
                            "loading",
                            "warming",
                            "ready",
                            "degraded",
                            "asleep",
                            "draining",
                            "stopped",
                            "failed",
                            "unreachable",
                        ],
                    )
                ),
                name="replica_state_known",
            ),
        ),
    ]
