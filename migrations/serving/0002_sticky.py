from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('serving', '0001_initial'),
        ('tenants', '0002_limits_and_rotation'),
    ]

    operations = [
        # One name for the objective in rows, REST and on the wire.
        migrations.RunSQL(
            """
            UPDATE serving_endpoint
            SET slo = (slo - 'latency_p95_ms') || jsonb_build_object('e2e_p95_ms', slo -> 'latency_p95_ms')
            WHERE slo ? 'latency_p95_ms'
            """,
            migrations.RunSQL.noop,
        ),
        migrations.AddField(
            model_name='endpoint',
            name='sticky',
            field=models.CharField(choices=[('none', 'nothing: every request is drawn anew'), ('key', 'the key'), ('user', 'the user named in the request'), ('header', 'the header x-millpond-sticky')], default='none', max_length=8),
        ),
        migrations.AddConstraint(
            model_name='endpoint',
            constraint=models.CheckConstraint(condition=models.Q(('sticky__in', ['none', 'key', 'user', 'header'])), name='endpoint_sticky_known'),
        ),
    ]
