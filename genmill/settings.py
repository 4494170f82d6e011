"""Settings: read once from the environment (`GENMILL_*`), frozen, passed down. A bad value stops the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from genmill import strict_json
from genmill.errors import FieldFault, SettingsInvalid
from genmill.keys import CALLBACKS, JobClass
from genmill.limits import check_limit
from genmill.registry import BUILTIN_MODELS, field_faults, summary

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - read, not bound
"""Hosts to listen at, which no other machine can call."""


class Durability(StrEnum):
    """What a 202 promises: `everysec` may lose the last second on a power cut, `always` nothing."""

    EVERYSEC = "everysec"
    ALWAYS = "always"


AS_JSON = {
    "class_delay_s": '{"p0": 1, "p1": 10, "p2": 120, "p3": 3600}',
    "limits": '{"host:*": 8}',
    "functions": '["worker.tasks.ping"]',
    "callback_delays_s": "[0, 5, 300]",
}
"""Settings of several values, each with an example. They are decoded here: pydantic-settings would stop at the
first that is no JSON and tell nothing of the others."""


class Settings(BaseSettings):
    """All settings of all processes. Times end in `_s`, sizes in `_bytes`; see docs/operating.md."""

    model_config = SettingsConfigDict(env_prefix="GENMILL_", frozen=True, extra="ignore")

    redis_url: str = "redis://127.0.0.1:6379/0"
    storage_url: str = "file://./genmill-data/outputs"
    storage_endpoint_url: str | None = None
    models: Path = BUILTIN_MODELS
    secret_key: SecretStr | None = None
    durability: Durability = Durability.EVERYSEC

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=1, le=65535)
    public_url: str | None = None
    auth: bool = True
    max_body_bytes: int = Field(default=12_000_000, ge=1_000)
    max_image_bytes: int = Field(default=8_000_000, ge=1_000)
    max_image_pixels: int = Field(default=4096 * 4096, ge=64)
    max_files: int = Field(default=1_000, ge=1)
    url_ttl_s: int = Field(default=24 * 3600, ge=60)
    allow_private_urls: bool = False
    allow_http_webhooks: bool = False

    class_delay_s: Annotated[Mapping[str, float], NoDecode] = Field(
        default_factory=lambda: {"p0": 1.0, "p1": 10.0, "p2": 120.0, "p3": 3600.0}
    )
    limits: Annotated[Mapping[str, Annotated[float, Field(ge=0)]], NoDecode] = Field(
        default_factory=lambda: {"host:*": 8}
    )
    lease_s: float = Field(default=30.0, gt=0)
    renew_s: float = Field(default=10.0, gt=0)
    max_crashes: int = Field(default=3, ge=1)
    grace_s: float = Field(default=20.0, ge=0)
    result_ttl_s: int = Field(default=7 * 24 * 3600, ge=60)
    failure_ttl_s: int = Field(default=7 * 24 * 3600, ge=60)
    idempotency_ttl_s: int = Field(default=24 * 3600, ge=1)

    batch_window: int = Field(default=2_000, ge=1)
    batch_max_lines: int = Field(default=10_000_000, ge=1)
    batch_max_line_bytes: int = Field(default=1_000_000, ge=100)
    batch_max_bytes: int = Field(default=20_000_000_000, ge=100)
    batch_max_active: int = Field(default=100, ge=1)
    batch_ttl_s: int = Field(default=7 * 24 * 3600, ge=60)

    device: str | None = None
    max_resident: int = Field(default=4, ge=1)
    memory_gib: float | None = Field(default=None, gt=0)
    host_memory_gib: float | None = Field(default=None, ge=0)
    workers_per_host: int | None = Field(default=None, ge=1)
    min_switch_interval_s: float = Field(default=0.0002, ge=0)
    functions: Annotated[tuple[str, ...], NoDecode] = ("worker.tasks.ping",)
    callback_delays_s: Annotated[tuple[float, ...], NoDecode] = Field(
        default=(0, 5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
    )
    callback_timeout_s: float = Field(default=20.0, gt=0)
    callback_slots: int = Field(default=64, ge=1)
    upload_threads: int = Field(default=4, ge=1)

    @field_validator(*AS_JSON, mode="before")
    @classmethod
    def _from_json(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        try:
            return strict_json.loads(value)
        except ValueError:
            raise ValueError(f"must be JSON such as {AS_JSON[str(info.field_name)]}") from None

    @field_validator("class_delay_s")
    @classmethod
    def _every_class(cls, delays: Mapping[str, float]) -> Mapping[str, float]:
        if set(delays) != {c.value for c in JobClass}:
            raise ValueError(f"needs exactly the classes {', '.join(JobClass)}")
        return dict(delays)

    @field_validator("limits")
    @classmethod
    def _known_scopes(cls, limits: Mapping[str, float]) -> Mapping[str, float]:
        for scope, value in limits.items():
            check_limit(scope, value)
        return dict(limits)

    @model_validator(mode="after")
    def _coherent(self) -> Settings:
        faults = []
        if not self.auth and self.host not in LOOPBACK:
            faults.append(f"GENMILL_AUTH may be off only on a loopback host, GENMILL_HOST is {self.host}")
        if self.renew_s * 2 > self.lease_s:
            lease = f"GENMILL_LEASE_S ({self.lease_s})"
            faults.append(f"{lease} must be at least twice GENMILL_RENEW_S ({self.renew_s})")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def base_url(self) -> str:
        """What links begin with."""
        return (self.public_url or f"http://{in_url(self.host)}:{self.port}").rstrip("/")

    @property
    def is_linked_nowhere(self) -> bool:
        """Whether links begin with what no client can call."""
        return self.public_url is None and self.host in EVERY_ADDRESS

    @property
    def class_delay_ms(self) -> dict[str, int]:
        return {name: int(delay * 1000) for name, delay in self.class_delay_s.items()} | {CALLBACKS: 0}

    def signing_key(self) -> bytes:
        """The key behind output URLs and webhook secrets. Raises SettingsInvalid when there is none."""
        if self.secret_key is None or len(self.secret_key.get_secret_value()) < 16:
            raise SettingsInvalid("GENMILL_SECRET_KEY must be set to at least 16 random characters")
        return self.secret_key.get_secret_value().encode()


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def load_settings(**overrides: Any) -> Settings:
    """Read the environment. Raises SettingsInvalid naming every fault at once; whether settings fit together is told
    once each is valid by itself."""
    try:
        return Settings(**overrides)
    except ValidationError as err:
        faults = tuple(_by_variable(fault) for fault in field_faults(err, "GENMILL_"))
        raise SettingsInvalid(summary(faults), faults=faults) from None


def _by_variable(fault: FieldFault) -> FieldFault:
    """Named by its variable; a fault of several settings together names them in its own words."""
    setting, slash, part = fault.pointer.replace("_/", "_").partition("/")
    variable = f"{setting.upper()}{slash}{part}"
    if variable == "GENMILL_":
        return replace(fault, pointer="GENMILL")
    name, _, detail = fault.detail.partition(": ")
    return replace(fault, pointer=variable, detail=f"{variable}: {detail}" if name else fault.detail)
