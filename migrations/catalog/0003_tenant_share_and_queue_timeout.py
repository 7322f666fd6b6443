"""Serving configs say how much of the KV pool one tenant may hold, and how long a request may wait for a slot."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0002_immutability")]

    operations = [
        migrations.AddField(
            model_name="servingconfig",
            name="tenant_kv_share",
            field=models.FloatField(default=1.0),
        ),
        migrations.AddField(
            model_name="servingconfig",
            name="queue_timeout_seconds",
            field=models.FloatField(default=0.0),
        ),
        migrations.AddConstraint(
            model_name="servingconfig",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("tenant_kv_share__gt", 0), ("tenant_kv_share__lte", 1), ("queue_timeout_seconds__gte", 0)
                ),
                name="serving_config_shares",
            ),
        ),
    ]
