"""What may be changed on the servers through the gateway: which models they hold, their settings.

Decides what may be said about that. Changes nothing itself.
"""

from pydantic import Field

from config.fields import FileName, Seconds, Section


class ModelControl(Section):
    """Loading and unloading models on the servers, which must run in explicit mode for it."""

    enabled: bool = False
    """Allow load and unload on the API listener. Off by default: they are refused with 403 there,
    and operators still have them on the ops listener. Where callers must be known (`auth.mode`),
    tenants with the scope `admin` may, and nobody else, whatever stands here."""
    concurrency: int = Field(2, ge=1, le=64)
    """Servers on which one command is carried out at a time. Two, so that a model being reloaded
    stays served; never all those at once that serve it."""
    timeout_s: Seconds = 1_800.0
    """Longest wait for a server to load or unload a model, in seconds. Half an hour, since large
    models come from slow disks; a load that takes longer goes on, but its result is unknown."""
    replay: bool = False
    """Load again, on a server that comes back, what was loaded there through the gateway by
    `models.*.placement`, with the last `config` given. Off by default: most servers know by
    themselves what to load at their start. Loads that carried files are not repeated."""
    state_file: FileName | None = None
    """File that keeps over a restart of the gateway what is to be replayed. It is written by the
    gateway, so its folder must exist and be writable. Unset, it is forgotten at a restart."""


class ServerSettings(Section):
    """The servers' trace and log settings, read and changed through the API."""

    enabled: bool = False
    """Allow changes on the API listener. Off by default: they are refused with 403, since verbose
    logs and traces slow down every server of the fleet. Reading is allowed all the same. Where
    callers must be known (`auth.mode`), tenants with the scope `admin` may do both, and nobody
    else, whatever stands here."""
    timeout_s: Seconds = 5.0
    """Longest wait for a server's answer, in seconds. Settings are answered at once by a server
    that is well."""
