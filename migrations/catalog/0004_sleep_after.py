"""Serving configs say after how long a silence an engine gives its device back."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0003_tenant_share_and_queue_timeout")]

    operations = [
        migrations.AddField(
            model_name="servingconfig",
            name="sleep_after_seconds",
            field=models.FloatField(default=0.0),
        ),
        migrations.AddConstraint(
            model_name="servingconfig",
            constraint=models.CheckConstraint(
                condition=models.Q(("sleep_after_seconds__gte", 0)), name="serving_config_sleep"
            ),
        ),
    ]
