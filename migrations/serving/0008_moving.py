"""Replicas that leave their places for others once their successors serve."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("serving", "0007_peaks")]

    operations = [
        migrations.AddField(model_name="replica", name="moving_at", field=models.DateTimeField(null=True)),
        migrations.AddField(model_name="replica", name="moving", field=models.JSONField(default=dict)),
    ]
