"""Errors of this room. Reasons of a refused file or version are PascalCase and stand in ``data["reason"]``."""

from kernel import errors


class NameTaken(errors.Conflict):
    code = "name_taken"
    title = "Name is taken"


class VersionNotReady(errors.Conflict):
    code = "version_not_ready"
    title = "Version is not ready"


class NoEngine(errors.Conflict):
    """The version is ready, and none of the engines here runs its format."""

    code = "no_engine"
    title = "No engine runs it"


class FilesMissing(errors.Conflict):
    code = "files_missing"
    title = "Files are missing"


class InUse(errors.Conflict):
    code = "in_use"
    title = "Still in use"


class FileRefused(errors.InvalidInput):
    """A declared file that will never be accepted; ``data``: reason, path."""

    code = "file_refused"
    title = "File refused"


class UploadLocked(errors.Conflict):
    status = 423
    code = "upload_locked"
    title = "Upload is locked"


class OffsetMismatch(errors.Conflict):
    code = "offset_mismatch"
    title = "Offset does not match"


class ChecksumMismatch(errors.PlatformError):
    """tus has a status of its own for bytes that do not have the checksum they were sent with."""

    status = 460
    code = "checksum_mismatch"
    title = "Checksum does not match"


class UploadGone(errors.Gone):
    code = "upload_gone"
    title = "Upload is gone"


class UnsupportedMedia(errors.PlatformError):
    status = 415
    code = "unsupported_media_type"
    title = "Wrong content type"


class StorageFull(errors.PlatformError):
    status = 507
    code = "storage_full"
    title = "Storage is full"
