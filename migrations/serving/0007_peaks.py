"""What engines measured, by version, serving config and product."""

import django.db.models.deletion
from django.db import migrations, models

import kernel.ids


class Migration(migrations.Migration):
    dependencies = [("catalog", "0006_isolation"), ("serving", "0006_members"), ("tenants", "0002_limits_and_rotation")]

    operations = [
        migrations.CreateModel(
            name="Peak",
            fields=[
                (
                    "id",
                    models.UUIDField(default=kernel.ids.new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("kind", models.CharField(max_length=16)),
                ("product", models.CharField(max_length=120)),
                ("weights_bytes", models.BigIntegerField()),
                ("workspace_bytes", models.BigIntegerField()),
                ("context_bytes", models.BigIntegerField()),
                ("measured_at", models.DateTimeField()),
                (
                    "serving_config",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="catalog.servingconfig"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="catalog.modelversion"
                    ),
                ),
            ],
            options={"ordering": ["id"]},
        ),
        migrations.AddConstraint(
            model_name="peak",
            constraint=models.UniqueConstraint(
                fields=("version", "serving_config", "kind", "product"), name="peak_once_per_profile"
            ),
        ),
    ]
