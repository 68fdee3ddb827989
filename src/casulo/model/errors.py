# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Every error that a caller can see, as one tree shared by the server and the client.

    CasuloError
    ├── InvalidRequest     the request is wrong; sending it again unchanged cannot help
    │   └── Unsupported    well formed, but this host or runtime cannot do it
    ├── Unauthenticated    no key, or a wrong one
    ├── Forbidden          the key is right, but may not do this, or not this much
    ├── NotFound           no such object (deleted and expired ones included)
    ├── Conflict           the object is in a state that forbids the operation
    ├── Unavailable        not now; the same request may succeed later
    ├── RuntimeFailure     a runtime could not do what it was told
    └── TimedOut           an operation passed its limit

`code` is stable and names the fault, never the runtime. `hint` says what the caller can do.
The mapping to HTTP status codes lives at the edge, in `casulo.api.errors`.
"""

from __future__ import annotations


class Code:
    """The stable error codes of the wire, one per meaning."""

    SANDBOX_NOT_FOUND = "SANDBOX::NOT_FOUND"
    SANDBOX_NOT_RUNNING = "SANDBOX::NOT_RUNNING"
    SANDBOX_NOT_PAUSED = "SANDBOX::NOT_PAUSED"
    SANDBOX_STATE_CONFLICT = "SANDBOX::STATE_CONFLICT"
    SANDBOX_DELETED_DURING_CREATE = "SANDBOX::DELETED_DURING_CREATE"
    SANDBOX_START_FAILED = "SANDBOX::START_FAILED"
    SANDBOX_START_TIMEOUT = "SANDBOX::START_TIMEOUT"
    SANDBOX_PAUSE_FAILED = "SANDBOX::PAUSE_FAILED"
    SANDBOX_RESUME_FAILED = "SANDBOX::RESUME_FAILED"
    SANDBOX_DELETE_FAILED = "SANDBOX::DELETE_FAILED"
    INVALID_PARAMETER = "SANDBOX::INVALID_PARAMETER"
    INVALID_ENTRYPOINT = "SANDBOX::INVALID_ENTRYPOINT"
    INVALID_EXPIRATION = "SANDBOX::INVALID_EXPIRATION"
    INVALID_PORT = "SANDBOX::INVALID_PORT"
    INVALID_CREATE_LABEL = "SANDBOX::INVALID_METADATA_LABEL"
    INVALID_METADATA_LABEL = "INVALID_METADATA_LABEL"
    INVALID_METADATA_FORMAT = "INVALID_METADATA_FORMAT"
    API_NOT_SUPPORTED = "SANDBOX::API_NOT_SUPPORTED"
    NOT_SUPPORTED = "SANDBOX::NOT_SUPPORTED"
    ISOLATION_UNAVAILABLE = "SANDBOX::ISOLATION_UNAVAILABLE"
    IDEMPOTENCY_CONFLICT = "SANDBOX::IDEMPOTENCY_CONFLICT"
    CAPACITY_EXHAUSTED = "SANDBOX::CAPACITY_EXHAUSTED"
    IMAGE_NOT_FOUND = "IMAGE::NOT_FOUND"
    IMAGE_UNSUPPORTED = "IMAGE::UNSUPPORTED"
    IMAGE_INVALID = "IMAGE::INVALID"
    IMAGE_ACCESS_DENIED = "IMAGE::ACCESS_DENIED"
    IMAGE_PULL_FAILED = "IMAGE::PULL_FAILED"
    IMAGE_PULL_TIMEOUT = "IMAGE::PULL_TIMEOUT"
    IMAGE_IN_USE = "IMAGE::IN_USE"
    VOLUME_UNSUPPORTED = "VOLUME::UNSUPPORTED_BACKEND"
    SNAPSHOT_NOT_FOUND = "SNAPSHOT::NOT_FOUND"
    SNAPSHOT_NOT_READY = "SNAPSHOT::NOT_READY"
    SNAPSHOT_INVALID_RESTORE_CONFIG = "SNAPSHOT::INVALID_RESTORE_CONFIG"
    SNAPSHOT_INVALID_STATE = "SNAPSHOT::INVALID_STATE"
    SNAPSHOT_INVALID_SOURCE_STATE = "SNAPSHOT::INVALID_SOURCE_STATE"
    SNAPSHOT_UNSUPPORTED_RUNTIME = "SNAPSHOT::UNSUPPORTED_RUNTIME"
    SNAPSHOT_CREATE_FAILED = "SNAPSHOT::RUNTIME_CREATE_FAILED"
    SNAPSHOT_DELETE_FAILED = "SNAPSHOT::RUNTIME_DELETE_FAILED"
    VOLUME_INVALID_NAME = "VOLUME::INVALID_NAME"
    VOLUME_DUPLICATE_NAME = "VOLUME::DUPLICATE_NAME"
    VOLUME_INVALID_BACKEND = "VOLUME::INVALID_BACKEND"
    VOLUME_INVALID_MOUNT_PATH = "VOLUME::INVALID_MOUNT_PATH"
    VOLUME_INVALID_SUB_PATH = "VOLUME::INVALID_SUB_PATH"
    VOLUME_INVALID_HOST_PATH = "VOLUME::INVALID_HOST_PATH"
    VOLUME_HOST_PATH_NOT_ALLOWED = "VOLUME::HOST_PATH_NOT_ALLOWED"
    VOLUME_HOST_PATH_CREATE_FAILED = "VOLUME::HOST_PATH_CREATE_FAILED"
    VOLUME_INVALID_CLAIM_NAME = "VOLUME::INVALID_PVC_NAME"
    VOLUME_INVALID_BUCKET = "VOLUME::INVALID_OSSFS_BUCKET"
    VOLUME_INVALID_BUCKET_ENDPOINT = "VOLUME::INVALID_OSSFS_ENDPOINT"
    VOLUME_INVALID_BUCKET_OPTION = "VOLUME::INVALID_OSSFS_OPTION"
    VOLUME_INVALID_BUCKET_KEY = "VOLUME::INVALID_OSSFS_CREDENTIALS"
    VOLUME_BUCKET_MOUNT_FAILED = "VOLUME::OSSFS_MOUNT_FAILED"
    VOLUME_BUCKET_UNMOUNT_FAILED = "VOLUME::OSSFS_UNMOUNT_FAILED"
    VOLUME_CLAIM_NOT_FOUND = "VOLUME::PVC_NOT_FOUND"
    VOLUME_CLAIM_INSPECT_FAILED = "VOLUME::PVC_INSPECT_FAILED"
    VOLUME_SUB_PATH_DRIVER = "VOLUME::PVC_SUBPATH_UNSUPPORTED_DRIVER"
    SNAPSHOT_NOT_IMPLEMENTED = "SNAPSHOT::NOT_IMPLEMENTED"
    TEMPLATE_NOT_SUPPORTED = "TEMPLATE::NOT_SUPPORTED"
    TEMPLATE_NOT_FOUND = "TEMPLATE::NOT_FOUND"
    TEMPLATE_NOT_READY = "TEMPLATE::NOT_READY"
    TEMPLATE_IN_USE = "TEMPLATE::IN_USE"
    POOL_NOT_SUPPORTED = "POOL::NOT_SUPPORTED"
    POOL_NOT_FOUND = "POOL::NOT_FOUND"
    POOL_EXISTS = "POOL::EXISTS"
    POOL_FIXED = "POOL::FIXED"
    POOL_CAPACITY_EXHAUSTED = "POOL::CAPACITY_EXHAUSTED"
    ENDPOINT_NOT_READY = "KUBERNETES::POD_IP_NOT_AVAILABLE"  # clients retry on exactly this text
    MISSING_API_KEY = "MISSING_API_KEY"
    INVALID_API_KEY = "INVALID_API_KEY"
    SCOPE_MISSING = "KEY::SCOPE_MISSING"
    KEY_NOT_FOUND = "KEY::NOT_FOUND"
    KEY_EXISTS = "KEY::EXISTS"
    QUOTA_EXCEEDED = "SANDBOX::QUOTA_EXCEEDED"
    RUNTIME_UNAVAILABLE = "RUNTIME::UNAVAILABLE"
    HOST_UNSUPPORTED = "HOST::UNSUPPORTED"
    SERVER_ALREADY_RUNNING = "SERVER::ALREADY_RUNNING"
    SERVER_ELSEWHERE = "SERVER::ELSEWHERE"
    SERVER_AWAY = "SERVER::AWAY"
    STORE_LEFT_BEHIND = "SERVER::STORE_LEFT_BEHIND"
    NETWORK_POLICY_INVALID = "NETWORK_POLICY::INVALID"
    NETWORK_POLICY_TOO_LARGE = "NETWORK_POLICY::TOO_LARGE"
    NETWORK_POLICY_FAILED = "NETWORK_POLICY::FAILED"
    NETWORK_POLICY_NOT_SUPPORTED = "NETWORK_POLICY::NOT_SUPPORTED"
    VAULT_INVALID = "VAULT::INVALID"
    VAULT_TOO_LARGE = "VAULT::TOO_LARGE"
    VAULT_NOT_FOUND = "VAULT::NOT_FOUND"
    VAULT_EXISTS = "VAULT::EXISTS"
    VAULT_REVISION = "VAULT::REVISION"
    VAULT_NOT_ENABLED = "VAULT::NOT_ENABLED"
    VAULT_UNPROTECTED = "VAULT::UNPROTECTED"
    VAULT_INTERNAL = "VAULT::INTERNAL"
    VAULT_FAILED = "VAULT::FAILED"
    VAULT_KEY = "VAULT::KEY"
    VAULT_SOURCE = "VAULT::SOURCE"
    DIAGNOSTICS_SCOPE_UNSUPPORTED = "DIAGNOSTICS_SCOPE_UNSUPPORTED"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    BACKEND_CONNECTION_FAILED = "BACKEND_CONNECTION_FAILED"
    BACKEND_RESPONSE_FAILED = "BACKEND_RESPONSE_FAILED"
    BACKEND_TIMEOUT = "BACKEND_TIMEOUT"
    BACKEND_BUSY = "BACKEND_BUSY"
    INVALID_REQUEST = "GENERAL::INVALID_REQUEST"
    NO_SUCH_ROUTE = "GENERAL::NO_SUCH_ROUTE"
    METHOD_NOT_ALLOWED = "GENERAL::METHOD_NOT_ALLOWED"
    UNKNOWN = "GENERAL::UNKNOWN_ERROR"


class CasuloError(Exception):
    """Base of all errors that callers see."""

    def __init__(self, message: str, *, code: str = Code.UNKNOWN, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidRequest(CasuloError):
    """The request is wrong and will stay wrong."""


class Unsupported(InvalidRequest):
    """The request is well formed but this host, runtime or version cannot serve it."""


class Unauthenticated(CasuloError):
    """The API key is missing or wrong."""


class Forbidden(CasuloError):
    """The key is known, but it may not do this, or not this much."""


class NotFound(CasuloError):
    """No such object, or not any more."""


class Conflict(CasuloError):
    """The object is in a state that forbids the operation."""


class Unavailable(CasuloError):
    """Not possible now; `retry_after` is the number of seconds after which to ask again."""

    def __init__(
        self, message: str, *, code: str = Code.UNKNOWN, hint: str = "", retry_after: float = 1.0
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after = retry_after


class RuntimeFailure(CasuloError):
    """A runtime could not do what it was told."""


class TimedOut(CasuloError):
    """An operation passed its time limit."""


def sandbox_not_found(sandbox_id: str) -> NotFound:
    """The one answer for unknown, deleted and expired sandboxes."""
    return NotFound(
        f"no sandbox with id {sandbox_id!r}",
        code=Code.SANDBOX_NOT_FOUND,
        hint="it may have expired or been deleted; list the running ones with `osb sandbox list`",
    )
