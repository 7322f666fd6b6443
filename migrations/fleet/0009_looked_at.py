"""When a node's report was last looked at whole."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0008_settled")]

    operations = [
        migrations.AddField(model_name="node", name="looked_at", field=models.DateTimeField(null=True)),
    ]
