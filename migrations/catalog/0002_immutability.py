"""Triggers that keep what may not change from changing, whoever writes."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION catalog_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% rows never change', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE FUNCTION catalog_guard_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.tenant_id <> NEW.tenant_id OR OLD.model_id <> NEW.model_id OR OLD.number <> NEW.number THEN
        RAISE EXCEPTION 'a model version keeps its model and number' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF OLD.state IN ('ready', 'archived') AND (
        OLD.format, OLD.architecture, OLD.parameters, OLD.size_bytes, OLD.max_model_len, OLD.has_chat_template,
        OLD.metadata, OLD.estimate, OLD.description, OLD.created_at
    ) IS DISTINCT FROM (
        NEW.format, NEW.architecture, NEW.parameters, NEW.size_bytes, NEW.max_model_len, NEW.has_chat_template,
        NEW.metadata, NEW.estimate, NEW.description, NEW.created_at
    ) THEN
        RAISE EXCEPTION 'a ready model version never changes' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF OLD.state <> NEW.state AND NOT (
        (OLD.state = 'uploading' AND NEW.state IN ('validating', 'rejected'))
        OR (OLD.state = 'validating' AND NEW.state IN ('ready', 'rejected'))
        OR (OLD.state = 'ready' AND NEW.state = 'archived')
    ) THEN
        RAISE EXCEPTION 'a model version does not move from % to %', OLD.state, NEW.state
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION catalog_guard_file() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    owner uuid;
    state text;
BEGIN
    IF TG_OP = 'UPDATE' AND (OLD.version_id, OLD.path, OLD.size, OLD.sha256)
        IS DISTINCT FROM (NEW.version_id, NEW.path, NEW.size, NEW.sha256) THEN
        RAISE EXCEPTION 'a declared file never changes' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    owner := CASE WHEN TG_OP = 'INSERT' THEN NEW.version_id ELSE OLD.version_id END;
    SELECT v.state INTO state FROM catalog_modelversion v WHERE v.id = owner;
    IF state = 'ready' OR (state = 'archived' AND TG_OP <> 'DELETE') THEN
        RAISE EXCEPTION 'the files of a ready model version never change'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;

CREATE TRIGGER version_is_immutable BEFORE UPDATE ON catalog_modelversion
    FOR EACH ROW EXECUTE FUNCTION catalog_guard_version();
CREATE TRIGGER file_is_immutable BEFORE INSERT OR UPDATE OR DELETE ON catalog_versionfile
    FOR EACH ROW EXECUTE FUNCTION catalog_guard_file();
CREATE TRIGGER serving_config_is_immutable BEFORE UPDATE ON catalog_servingconfig
    FOR EACH ROW EXECUTE FUNCTION catalog_refuse_change();
CREATE TRIGGER runtime_is_immutable BEFORE UPDATE ON catalog_runtime
    FOR EACH ROW EXECUTE FUNCTION catalog_refuse_change();
CREATE TRIGGER revision_is_immutable BEFORE UPDATE ON catalog_revision
    FOR EACH ROW EXECUTE FUNCTION catalog_refuse_change();
"""

BACKWARD = """
DROP TRIGGER revision_is_immutable ON catalog_revision;
DROP TRIGGER runtime_is_immutable ON catalog_runtime;
DROP TRIGGER serving_config_is_immutable ON catalog_servingconfig;
DROP TRIGGER file_is_immutable ON catalog_versionfile;
DROP TRIGGER version_is_immutable ON catalog_modelversion;
DROP FUNCTION catalog_guard_file();
DROP FUNCTION catalog_guard_version();
DROP FUNCTION catalog_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
