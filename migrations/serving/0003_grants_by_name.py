from django.db import migrations, models
import django.db.models.deletion


class Migration(migrations.Migration):

    dependencies = [
        ('serving', '0002_sticky'),
        ('tenants', '0002_limits_and_rotation'),
    ]

    operations = [
        migrations.AddField(
            model_name='grant',
            name='tenant_slug',
            field=models.CharField(max_length=40, null=True),
        ),
        migrations.RunSQL(
            """
            UPDATE serving_grant SET tenant_slug = tenants_tenant.slug
            FROM tenants_tenant WHERE tenants_tenant.id = serving_grant.tenant_id
            """,
            migrations.RunSQL.noop,
        ),
        migrations.AlterField(
            model_name='grant',
            name='tenant_slug',
            field=models.CharField(max_length=40),
        ),
        migrations.AlterField(
            model_name='grant',
            name='tenant',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='grants_received', to='tenants.tenant'),
        ),
        migrations.RemoveConstraint(
            model_name='grant',
            name='grant_once',
        ),
        migrations.AddConstraint(
            model_name='grant',
            constraint=models.UniqueConstraint(fields=('endpoint', 'tenant_slug'), name='grant_once_per_name'),
        ),
    ]
