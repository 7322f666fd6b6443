"""Devices keep what drifts: use of memory bandwidth, clocks, PCIe, processes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0006_fault_domain")]

    operations = [migrations.AddField(model_name="device", name="readings", field=models.JSONField(default=dict))]
