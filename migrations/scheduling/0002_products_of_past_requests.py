"""Past requests say which products they were limited to; those from before were not limited, as far as is known."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0001_past_requests")]

    operations = [
        migrations.AddField(
            model_name="pastrequest",
            name="products",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=120), blank=True, default=list, size=None
            ),
        ),
        migrations.RemoveConstraint(model_name="pastrequest", name="past_request_once_per_shape"),
        migrations.AddConstraint(
            model_name="pastrequest",
            constraint=models.UniqueConstraint(
                fields=("kind", "devices", "memory_bytes", "millis", "millicpus", "products"),
                name="past_request_once_per_shape_and_products",
            ),
        ),
    ]
