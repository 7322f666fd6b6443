"""Users, tenants, members and their secrets (digests only)."""

import secrets
from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _

from kernel import clock, ids
from kernel.scope import ScopedManager
from tenants.roles import SERVICE_ROLES, Role

SLUG_PATTERN = r"^[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\Z"
SLUG = RegexValidator(
    SLUG_PATTERN,
    _("Use 1 to 40 lower-case letters, digits and hyphens; begin and end with a letter or digit."),
)


class UserManager(BaseUserManager["User"]):
    """Creates users by e-mail address."""

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        user = self.model(email=self.normalize_email(email).lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> "User":
        """A platform admin (Django's name for this method is fixed). Who runs the platform vouches for the address."""
        fields.setdefault("email_verified_at", clock.now())
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)


class User(AbstractBaseUser, PermissionsMixin):
    """A person. ``is_staff`` makes a platform admin, above tenants.

    ``email_verified_at`` is set once it is known that the person reads the address: by a link that came by mail, by
    the company's sign-in, or because who runs the platform says so.
    """

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    email = models.EmailField(_("e-mail address"), unique=True)
    name = models.CharField(_("name"), max_length=120, blank=True)
    is_staff = models.BooleanField(default=False)
    is_active = models.BooleanField(default=True)
    date_joined = models.DateTimeField(auto_now_add=True)
    email_verified_at = models.DateTimeField(null=True, blank=True)
    language = models.CharField(max_length=12, blank=True)
    theme = models.CharField(max_length=8, blank=True)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_ci")]

    def __str__(self) -> str:
        return self.email

    @property
    def label(self) -> str:
        """What people read."""
        return self.name or self.email


def new_salt() -> str:
    """128 random bits in hex."""
    return secrets.token_hex(16)


class BudgetUnit(models.TextChoices):
    """What a budget counts."""

    TOKENS = "tokens", _("tokens")
    COST = "cost", _("cost")


class BudgetPeriod(models.TextChoices):
    """When a budget begins anew: calendar periods in UTC; ``none`` never does."""

    HOUR = "hour", _("per hour")
    DAY = "day", _("per day")
    WEEK = "week", _("per week")
    MONTH = "month", _("per month")
    NONE = "none", _("in all")


class Criticality(models.TextChoices):
    """Priority classes above the usual one, which a key has to be allowed to ask for."""

    CRITICAL = "critical", _("critical")


class Limited(models.Model):
    """What gateways allow: ``None`` is unlimited. ``budget_limit`` is in tokens, or in millionths of the currency."""

    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True)
    max_parallel_requests = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    budget_limit = models.BigIntegerField(null=True, blank=True)
    budget_unit = models.CharField(max_length=8, choices=BudgetUnit, default=BudgetUnit.TOKENS)
    budget_duration = models.CharField(max_length=8, choices=BudgetPeriod, default=BudgetPeriod.MONTH)
    budget_blocks = models.BooleanField(default=True)

    class Meta:
        abstract = True
        constraints = [
            models.CheckConstraint(
                condition=models.Q(budget_limit=None) | models.Q(budget_limit__gt=0), name="%(class)s_budget_positive"
            ),
            models.CheckConstraint(
                condition=models.Q(budget_unit__in=BudgetUnit.values, budget_duration__in=BudgetPeriod.values),
                name="%(class)s_budget_known",
            ),
        ]


class Tenant(Limited):
    """The unit of ownership and isolation. ``prefix_salt`` keeps its prefix cache apart from everybody's.

    ``weight`` is its share of an engine's work while others wait, beside the usual 1.
    """

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    slug = models.CharField(max_length=40, unique=True, validators=[SLUG])
    name = models.CharField(max_length=120)
    prefix_salt = models.CharField(max_length=32, default=new_salt, editable=False)
    suspended_at = models.DateTimeField(null=True, blank=True)
    weight = models.FloatField(default=1.0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta(Limited.Meta):
        abstract = False
        ordering = ["slug"]
        constraints = [
            *Limited.Meta.constraints,
            models.CheckConstraint(condition=models.Q(weight__gt=0), name="tenant_weight_positive"),
        ]

    def __str__(self) -> str:
        return self.slug


class Member(models.Model):
    """A user's role in a tenant."""

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="members")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=[(role.value, role.value) for role in Role])
    created_at = models.DateTimeField(auto_now_add=True)

    objects = ScopedManager["Member"]()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "user"], name="member_once_per_tenant"),
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in Role]), name="member_role_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} {self.role}"


class ServiceAccount(models.Model):
    """A member that is no person: it has a role and keys, and never signs in.

    Deleted ones keep their row, so that keys and history stay explained; their names are free again.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="service_accounts")
    name = models.CharField(max_length=80)
    role = models.CharField(max_length=16, choices=[(role.value, role.value) for role in SERVICE_ROLES])
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()
    disabled_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = ScopedManager["ServiceAccount"]()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                "tenant", Lower("name"), condition=models.Q(deleted_at=None), name="service_account_name"
            ),
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in SERVICE_ROLES]), name="service_account_role_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Invitation(models.Model):
    """An offer of a role to an address. Only the keyed hash of the link's token is stored; it is good for one use.

    ``by_mail`` says that the newest link went out by mail alone, so that who uses it reads the address.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField()
    role = models.CharField(max_length=16, choices=[(role.value, role.value) for role in Role])
    digest = models.CharField(max_length=64, unique=True)
    by_mail = models.BooleanField(default=False)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()
    sent_at = models.DateTimeField()
    sends = models.PositiveSmallIntegerField(default=1)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    accepted_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects = ScopedManager["Invitation"]()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                "tenant",
                Lower("email"),
                condition=models.Q(accepted_at=None, revoked_at=None),
                name="invitation_one_open_per_address",
            ),
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in Role]), name="invitation_role_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.email} {self.role}"


class ExternalIdentity(models.Model):
    """The person behind a subject of the company's sign-in (OpenID Connect)."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="identities")
    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="external_identity_once")]

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"


class KeyScope(models.TextChoices):
    """What a key is good for."""

    INFERENCE = "inference", _("Inference")
    MANAGE = "manage", _("Manage")


class KeyKind(models.TextChoices):
    """``playground`` keys are short-lived, minted for a signed-in user, and not listed."""

    KEY = "key", _("Key")
    PLAYGROUND = "playground", _("Playground")


class ApiKey(Limited):
    """A tenant's key. Only the keyed hash is stored; the text is shown once.

    After a rotation the text before is accepted until ``previous_expires_at``. ``revoked_generation`` is the route
    table's generation from which on the key is in no table.
    """

    TENANT_FIELD: ClassVar[str] = "tenant_id"

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=16, choices=KeyKind, default=KeyKind.KEY)
    service_account = models.ForeignKey(ServiceAccount, null=True, on_delete=models.CASCADE, related_name="keys")
    public_id = models.CharField(max_length=12, unique=True)
    digest = models.CharField(max_length=64, unique=True)
    last4 = models.CharField(max_length=4)
    scopes = ArrayField(models.CharField(max_length=16, choices=KeyScope), default=list)
    # Names as the tenant calls them: "chat", or "owner/chat" for a granted endpoint. Empty: all.
    allowed_endpoints = ArrayField(models.CharField(max_length=128), default=list, blank=True)
    # Networks in CIDR form. Empty: any.
    allowed_addresses = ArrayField(models.CharField(max_length=43), default=list, blank=True)
    criticalities = ArrayField(models.CharField(max_length=16, choices=Criticality), default=list, blank=True)
    previous_digest = models.CharField(max_length=64, unique=True, null=True, blank=True)
    previous_expires_at = models.DateTimeField(null=True, blank=True)
    rotated_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_generation = models.BigIntegerField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = ScopedManager["ApiKey"]()

    class Meta(Limited.Meta):
        abstract = False
        ordering = ["-id"]
        constraints = [
            *Limited.Meta.constraints,
            models.CheckConstraint(condition=~models.Q(scopes=[]), name="api_key_has_a_scope"),
            models.CheckConstraint(
                condition=models.Q(kind=KeyKind.KEY) | models.Q(expires_at__isnull=False),
                name="api_key_playground_expires",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.masked}"

    @property
    def masked(self) -> str:
        """What lists show instead of the key."""
        return f"mp_{self.public_id}_…{self.last4}"


class UserToken(models.Model):
    """A person's token for REST and command line: acts as the user, in every tenant the user is a member of."""

    id = models.UUIDField(primary_key=True, default=ids.new_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=120)
    public_id = models.CharField(max_length=12, unique=True)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} mpu_{self.public_id}"
