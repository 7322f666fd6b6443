"""Serving configs say over how many ranks the experts of a mixture are spread."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0007_parallel")]

    operations = [
        migrations.AddField(
            model_name="servingconfig", name="expert_parallel", field=models.PositiveSmallIntegerField(default=0)
        ),
    ]
