"""Isolation policies, MPS shares with a limit on multiprocessors, what hosts offer; no mix of shares on a device."""

import django.contrib.postgres.constraints
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0004_mig"),
        ("tenants", "0003_accounts"),
    ]

    operations = [
        migrations.CreateModel(
            name="IsolationPolicy",
            fields=[
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="tenants.tenant",
                    ),
                ),
                (
                    "least",
                    models.CharField(
                        choices=[
                            ("any", "any: a cap that the engine keeps by itself is enough"),
                            ("mps", "mps: limits that the driver keeps, or stricter"),
                            ("hardware", "hardware: a MIG instance or a whole device"),
                            ("exclusive", "exclusive: a whole device"),
                        ],
                        default="any",
                        max_length=16,
                    ),
                ),
                ("set_at", models.DateTimeField(null=True)),
                ("set_by", models.CharField(max_length=254)),
            ],
            options={
                "verbose_name_plural": "isolation policies",
            },
        ),
        migrations.RemoveConstraint(
            model_name="partition",
            name="partition_exclusive_or_shared",
        ),
        migrations.AddField(
            model_name="device",
            name="held_percent",
            field=models.PositiveSmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="node",
            name="facts",
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name="node",
            name="walls",
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name="partition",
            name="thread_percentage",
            field=models.PositiveSmallIntegerField(default=0),
        ),
        migrations.AddConstraint(
            model_name="device",
            constraint=models.CheckConstraint(
                condition=models.Q(("held_percent__lte", 100)), name="device_compute_not_over_committed"
            ),
        ),
        migrations.AddConstraint(
            model_name="partition",
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(
                expressions=[
                    ("device", "="),
                    (
                        models.Case(
                            models.When(isolation="exclusive", then=models.Value(1)),
                            models.When(isolation="mps", then=models.Value(2)),
                            default=models.Value(0),
                            output_field=models.IntegerField(),
                        ),
                        "<>",
                    ),
                ],
                name="partition_exclusive_or_shared",
            ),
        ),
        migrations.AddConstraint(
            model_name="partition",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("thread_percentage", 0),
                    models.Q(("isolation", "mps"), ("thread_percentage__lte", 100)),
                    _connector="OR",
                ),
                name="partition_threads_by_mps",
            ),
        ),
        migrations.AddConstraint(
            model_name="isolationpolicy",
            constraint=models.CheckConstraint(
                condition=models.Q(("least__in", ["any", "mps", "hardware", "exclusive"])),
                name="isolation_policy_known",
            ),
        ),
    ]
