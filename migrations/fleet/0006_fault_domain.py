"""Nodes say what they fail together with."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0005_isolation")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="fault_domain",
            field=models.CharField(blank=True, default="", max_length=80),
            preserve_default=False,
        ),
    ]
