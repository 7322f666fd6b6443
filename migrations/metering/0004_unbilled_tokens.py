from django.db import migrations, models

# What was booked before has its sums, too, as far as its records are kept.
_COUNT = """
    UPDATE metering_usagehour AS hour
    SET unbilled_prompt_tokens = lost.prompt, unbilled_completion_tokens = lost.completion
    FROM (
        SELECT tenant_id, date_trunc('hour', started_at, 'UTC') AS hour, owner_tenant_id, key_id, endpoint_id,
            revision_id, sum(prompt_tokens) AS prompt, sum(completion_tokens) AS completion
        FROM metering_usagerecord WHERE NOT billable GROUP BY 1, 2, 3, 4, 5, 6
    ) AS lost
    WHERE hour.tenant_id = lost.tenant_id AND hour.hour = lost.hour AND hour.owner_tenant_id = lost.owner_tenant_id
        AND hour.key_id = lost.key_id AND hour.endpoint_id = lost.endpoint_id
        AND hour.revision_id = lost.revision_id
"""


class Migration(migrations.Migration):
    dependencies = [("metering", "0003_device_hours")]

    operations = [
        migrations.AddField("usagehour", "unbilled_prompt_tokens", models.BigIntegerField(default=0)),
        migrations.AddField("usagehour", "unbilled_completion_tokens", models.BigIntegerField(default=0)),
        migrations.RunSQL(_COUNT, migrations.RunSQL.noop),
    ]
