"""Devices that are not healthy are few, and asked for by every placement of a tenant with a limit."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0010_rank_address")]

    operations = [
        migrations.AddIndex(
            model_name="device",
            index=models.Index(
                fields=["state"], condition=models.Q(("state", "healthy"), _negated=True), name="device_not_healthy"
            ),
        ),
    ]
