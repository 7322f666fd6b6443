"""Serving configs say how keys and values are held, and how many layers wait in host memory."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0004_sleep_after")]

    operations = [
        migrations.AddField(
            model_name="servingconfig", name="kv_dtype", field=models.CharField(default="same", max_length=16)
        ),
        migrations.AddField(
            model_name="servingconfig", name="offload_layers", field=models.PositiveIntegerField(default=0)
        ),
    ]
