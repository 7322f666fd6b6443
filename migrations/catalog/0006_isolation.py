"""What part of a device a version and a serving config ask for."""

from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0005_kv_dtype_and_offload"),
        ("tenants", "0003_accounts"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="modelversion",
            name="isolation",
            field=models.CharField(
                choices=[
                    ("any", "any: a cap that the engine keeps by itself is enough"),
                    ("mps", "mps: limits that the driver keeps, or stricter"),
                    ("hardware", "hardware: a MIG instance or a whole device"),
                    ("exclusive", "exclusive: a whole device"),
                ],
                default="any",
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="servingconfig",
            name="isolation",
            field=models.CharField(
                choices=[
                    ("any", "any: a cap that the engine keeps by itself is enough"),
                    ("mps", "mps: limits that the driver keeps, or stricter"),
                    ("hardware", "hardware: a MIG instance or a whole device"),
                    ("exclusive", "exclusive: a whole device"),
                ],
                default="any",
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="servingconfig",
            name="memory_limit_bytes",
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="servingconfig",
            name="mig_profile",
            field=models.CharField(blank=True, default="", max_length=24),
        ),
        migrations.AddField(
            model_name="servingconfig",
            name="thread_percentage",
            field=models.PositiveSmallIntegerField(default=0),
        ),
        migrations.AddConstraint(
            model_name="modelversion",
            constraint=models.CheckConstraint(
                condition=models.Q(("isolation__in", ["any", "mps", "hardware", "exclusive"])),
                name="version_isolation_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="servingconfig",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("isolation__in", ["any", "mps", "hardware", "exclusive"]),
                    ("memory_limit_bytes__gte", 0),
                    ("thread_percentage__lte", 100),
                ),
                name="serving_config_part",
            ),
        ),
    ]
