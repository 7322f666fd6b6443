"""The digest of a node's last report that left nothing to do."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0007_readings")]

    operations = [
        migrations.AddField(
            model_name="node", name="settled", field=models.CharField(blank=True, default="", max_length=32),
            preserve_default=False,
        ),
    ]  # fmt: skip
