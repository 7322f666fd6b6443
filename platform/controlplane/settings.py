"""Django settings. What an operator can change is read in ``controlplane.environment``."""

from pathlib import Path

from controlplane import accounts, environment

ENV = environment.read()
BASE_DIR = environment.ROOT
HOME: Path = ENV.home

SECRET_KEY = ENV.secret_key
KEY_PEPPER = ENV.key_pepper
DEBUG = ENV.debug
ALLOWED_HOSTS = list(ENV.allowed_hosts)
PUBLIC_URL = ENV.public_url
GATEWAY_URL = ENV.gateway_url
CSRF_TRUSTED_ORIGINS = [ENV.public_url]

# One list; everything else about apps is computed from it. Rooms without models are here too: they have
# tasks, commands, templates or checks.
FIRST_PARTY_APPS = [
    "ledger",
    "tenants",
    "telemetry",
    "catalog",
    "fleet",
    "quotas",
    "serving",
    "scheduling",
    "rollouts",
    "dispatch",
    "metering",
    "console",
    "controlplane",
]
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "django_celery_beat",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    *FIRST_PARTY_APPS,
]
MIGRATION_MODULES = {app: f"migrations.{app}" for app in FIRST_PARTY_APPS}

MIDDLEWARE = [
    "controlplane.middleware.RequestId",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "controlplane.middleware.NoNul",  # last: its page needs what the others set
]
ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "console" / "templates"],  # before allauth's own pages
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.i18n",
                "console.context.shell",
            ],
        },
    },
]

DATABASES = {"default": environment.database(ENV.database_url)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "tenants.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "console.accounts.Adapter"
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_PREVENT_ENUMERATION = True
# Failed passwords are counted by tenants.sign_in (console and REST alike); what is here paces the rest per minute.
ACCOUNT_RATE_LIMITS = {"login": "60/m/ip", "login_failed": "10/5m/key"}
MFA_ADAPTER = "console.accounts.FactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Millpond"
MFA_TOTP_TOLERANCE = 1  # one step to each side, as RFC 6238 5.2 advises: clocks differ, and people type slowly
MFA_RECOVERY_CODES_SHOW_ONCE = True
REQUIRE_SECOND_FACTOR = accounts.second_factor()
PASSWORD_RESET_TIMEOUT = 24 * 3600
OPENID_PROVIDERS = accounts.openid()

_MAIL = accounts.mail()
MAIL_ENABLED = bool(_MAIL.host)
EMAIL_HOST, EMAIL_PORT = _MAIL.host, _MAIL.port
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _MAIL.user, _MAIL.password
EMAIL_USE_TLS, EMAIL_USE_SSL = _MAIL.starttls, _MAIL.tls
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = _MAIL.sender

VALKEY_URL = ENV.valkey_url
if VALKEY_URL:
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [VALKEY_URL], "prefix": "millpond"},
        }
    }
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": VALKEY_URL}}
else:  # one process only: management commands and unit tests
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

CELERY_BROKER_URL = VALKEY_URL.replace("unix://", "redis+socket://", 1) if VALKEY_URL else "memory://"
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_TIMEOUT = 2.0
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 4 * 3600}
CELERY_TASK_TIME_LIMIT = 2 * 3600
CELERY_WORKER_HIJACK_ROOT_LOGGER = False

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.api.authentication.BearerAuthentication",
        "tenants.api.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["kernel.api.parsing.StrictJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "kernel.api.paging.CursorPages",
    "DEFAULT_METADATA_CLASS": None,  # OPTIONS describes nothing: /api/schema does
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "kernel.api.problems.handle",
    "UNAUTHENTICATED_USER": None,
    "NUM_PROXIES": 0,  # throttles count the peer, not what X-Forwarded-For claims
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Millpond",
    "DESCRIPTION": (
        "The control plane: tenants, models, deployments, nodes, usage. Inference has its own, OpenAI-shaped API."
    ),
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "MachineKind": "fleet.models.MachineKind",
        "DeviceKind": "fleet.models.DeviceKind",
        "NodeState": "fleet.states.NodeState",
        "DeviceState": "fleet.states.DeviceState",
        "IsolationRequirement": "kernel.isolation.Requirement",
        "KeyScope": "tenants.models.KeyScope",
        "Role": "tenants.roles.ROLE_CHOICES",
        "ServiceRole": "tenants.roles.SERVICE_ROLE_CHOICES",
        "Sticky": "serving.models.Sticky",
        "Priority": "serving.models.Priority",
        "RolloutState": "rollouts.states.RolloutState",
        "ExperimentState": "rollouts.states.ExperimentState",
    },
}

LANGUAGE_CODE = ENV.language
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
FORMAT_MODULE_PATH = ["console.formats"]
LOCALE_PATHS = [BASE_DIR / "console" / "locale"]
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = HOME / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = DEBUG
ARTIFACT_ROOT = HOME / "artifacts"

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_NAME = "millpond_session"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PUBLIC_URL.startswith("https://")
_WS_ORIGIN = PUBLIC_URL.replace("http", "ws", 1)
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "connect-src": ["'self'", _WS_ORIGIN, GATEWAY_URL],
        "img-src": ["'self'", "data:"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "object-src": ["'none'"],
    },
}

LOGGING_CONFIG = "controlplane.logs.configure"
LOGGING = {"level": "INFO"}

# Limits that operators may want to know of; units in the names.
UPLOAD_MAX_FILE_BYTES = 512 * 1024**3
UPLOAD_EXPIRES_HOURS = 48
UPLOAD_MAX_FILES_PER_VERSION = 1000
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024**2
NODE_REPORT_INTERVAL_SECONDS = 2.0
NODE_LEASE_SECONDS = 20.0
NODE_REPORTS_PER_SECOND = 50.0  # of all nodes together; the interval grows with the fleet
GATEWAY_REPORT_INTERVAL_SECONDS = 2.0
# What a tenant may hold until a platform admin says otherwise; -1 is unlimited.
QUOTA_DEFAULT_GPU_MILLIS = -1  # thousandths of a GPU, by slice
QUOTA_DEFAULT_HBM_BYTES = 320 * 1024**3
QUOTA_DEFAULT_REPLICAS = 32
QUOTA_DEFAULT_STORAGE_BYTES = 1024**4
# What prices, costs and budgets are counted in. Changing it converts nothing that is booked.
CURRENCY = ENV.currency
METERING_RECORD_DAYS = 90
METERING_HOUR_DAYS = 800
