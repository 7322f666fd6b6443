"""A ready version of a graph (ONNX) has no context length."""

from django.db import migrations, models

_DESCRIBED = "version_ready_is_described"


class Migration(migrations.Migration):
    dependencies = [("catalog", "0008_expert_parallel")]

    operations = [
        migrations.RemoveConstraint(model_name="modelversion", name=_DESCRIBED),
        migrations.AddConstraint(
            model_name="modelversion",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state__in", ["ready", "archived"]), _negated=True),
                    models.Q(
                        models.Q(("format", ""), _negated=True),
                        models.Q(("architecture", ""), _negated=True),
                        models.Q(("max_model_len__gte", 1), ("format", "onnx"), _connector="OR"),
                    ),
                    _connector="OR",
                ),
                name=_DESCRIBED,
            ),
        ),
    ]
