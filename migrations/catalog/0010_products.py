"""Serving configs name the devices that are accepted."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0009_graphs")]

    operations = [
        migrations.AddField(
            model_name="servingconfig",
            name="products",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=80), blank=True, default=list, size=None
            ),
        ),
    ]
