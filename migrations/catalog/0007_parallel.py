"""Serving configs say over how many devices a replica is spread."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0006_isolation")]

    operations = [
        migrations.AddField(
            model_name="servingconfig", name="tensor_parallel", field=models.PositiveSmallIntegerField(default=0)
        ),
        migrations.AddField(
            model_name="servingconfig", name="pipeline_parallel", field=models.PositiveSmallIntegerField(default=0)
        ),
        migrations.AddField(model_name="servingconfig", name="tp_over_pcie", field=models.BooleanField(default=False)),
    ]
