"""Where ranks of replicas over several nodes reach those of a node."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0009_looked_at")]

    operations = [
        migrations.AddField(
            model_name="node",
            name="rank_address",
            field=models.CharField(blank=True, default="", max_length=64),
            preserve_default=False,
        ),
    ]
