"""Checking finalized versions: read the headers, say what the model is, or why it is refused.

The files are read outside any transaction; the verdict is written in one. A fault of the platform (disk, database) is
raised so that it is tried again; a fault in the model is a verdict.
"""

import dataclasses
import logging
import uuid
from typing import Any, Final

from django.db import transaction

from catalog import configs, formats, holding, releases, storage
from catalog.estimate import Estimate, estimate_graph, estimate_shape
from catalog.holding import Shape
from catalog.models import ModelVersion, VersionFile
from catalog.states import VERSION, VersionState
from kernel import actors, machine, scope, texts
from kernel.actors import Actor
from ledger import hints
from ledger.record import record_move

logger = logging.getLogger(__name__)

_ACTOR: Final[Actor] = actors.system("validator")
_BATCH: Final = 20


def validate_waiting() -> int:
    """Check every version that waits for it; return how many got a verdict."""
    with scope.all_tenants():
        rows = ModelVersion.objects.filter(state=VersionState.VALIDATING).order_by("state_changed_at")
        waiting = list(rows.values_list("id", flat=True)[:_BATCH])
    return sum(_validate_or_wait(version_id) for version_id in waiting)


def _validate_or_wait(version_id: uuid.UUID) -> bool:
    """One version that cannot be checked now must not keep the others waiting; it is tried again next time."""
    try:
        return validate(version_id)
    except Exception:  # boundary: what fails here has been logged, the next one may succeed
        logger.exception("a version cannot be checked", extra={"version": str(version_id)})
        return False


def validate(version_id: uuid.UUID) -> bool:
    """Check one version; True when this call gave the verdict (it may be checked elsewhere at the same time)."""
    with scope.all_tenants():
        files = list(VersionFile.objects.filter(version_id=version_id, version__state=VersionState.VALIDATING))
    if not files:
        return False
    try:
        facts = formats.inspect([_source(file) for file in files])
    except formats.Rejected as refusal:
        return _settle(version_id, refusal)
    except (OSError, MemoryError):
        raise
    except Exception:  # boundary: a checker that stumbles over a file refuses it rather than trying for ever
        logger.exception("check failed", extra={"version": str(version_id)})
        return _settle(
            version_id,
            formats.Rejected(
                formats.Reason.CHECK_FAILED,
                "The check could not read this model; its files may be damaged. Export them again, "
                "or tell a platform admin.",
            ),
        )
    return _settle(version_id, facts)


def _source(file: VersionFile) -> formats.Source:
    return formats.Source(file.path, file.size, storage.path_of(file.sha256))


def _settle(version_id: uuid.UUID, verdict: "formats.Facts | formats.GraphFacts | formats.Rejected") -> bool:
    with transaction.atomic(), scope.all_tenants():
        rows = ModelVersion.objects.select_for_update(of=("self",), no_key=True).select_related("model")
        version = rows.filter(id=version_id, state=VersionState.VALIDATING).first()
        if version is None:
            return False
        if isinstance(verdict, formats.Rejected):
            moved = machine.move(
                version,
                VERSION,
                VersionState.REJECTED,
                reason=verdict.reason.value,
                message=texts.storable(verdict.message),
            )
            releases.release_versions([version])
            releases.unlink_files(version)
        else:
            moved = machine.move(version, VERSION, VersionState.READY, **texts.storable(_columns(verdict)))
        record_move(
            moved, actor=_ACTOR, tenant_id=version.tenant_id, subject_label=f"{version.model.name} {version.number}"
        )
        hints.push_on_commit(hints.tenant_topic(version.tenant_id), {"what": "models"})
    return True


def _columns(facts: formats.Facts | formats.GraphFacts) -> dict[str, Any]:
    metadata = facts.metadata()
    return {
        "format": facts.format,
        "architecture": facts.architecture,
        "parameters": facts.parameters,
        "max_model_len": facts.max_model_len,
        "has_chat_template": facts.has_chat_template,
        "metadata": metadata,
        "estimate": _needed(facts, metadata).as_dict(),
    }


def _needed(facts: formats.Facts | formats.GraphFacts, metadata: dict[str, Any]) -> Estimate:
    """What a replica needs on a CPU under the standard serving config."""
    if isinstance(facts, formats.GraphFacts):
        return estimate_graph(metadata, configs.DEFAULTS)
    known = dataclasses.asdict(facts) | {"int4_group": holding.int4_group(facts.weight_types)}
    shape = Shape(**{field.name: known[field.name] for field in dataclasses.fields(Shape) if field.name in known})
    return estimate_shape(shape, configs.DEFAULTS, max_positions=facts.max_model_len)
