"""Replicas that run on several devices, perhaps of several nodes."""

import django.db.models.deletion
from django.db import migrations, models

import kernel.ids


class Migration(migrations.Migration):
    dependencies = [("fleet", "0004_mig"), ("serving", "0005_priority")]

    operations = [
        migrations.AddField(model_name="replica", name="parallel", field=models.JSONField(default=dict)),
        migrations.CreateModel(
            name="Member",
            fields=[
                (
                    "id",
                    models.UUIDField(default=kernel.ids.new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("node_generation", models.BigIntegerField(default=0)),
                ("phase", models.CharField(blank=True, max_length=16)),
                ("reason", models.CharField(blank=True, max_length=64)),
                ("message", models.TextField(blank=True)),
                ("gone", models.BooleanField(default=False)),
                (
                    "node",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="fleet.node"),
                ),
                (
                    "replica",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="members", to="serving.replica"
                    ),
                ),
            ],
            options={"ordering": ["id"]},
        ),
        migrations.AddConstraint(
            model_name="member",
            constraint=models.UniqueConstraint(fields=("replica", "node"), name="member_once_per_node"),
        ),
    ]
