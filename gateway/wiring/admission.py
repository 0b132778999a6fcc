"""What a configuration means for admission."""

from collections.abc import Mapping

from config.models import Config
from gateway.admission import Admission, AdmissionSettings
from gateway.switches import Switches
from gateway.wiring.clock import CLOCK
from routing.admission.queue import QueueSettings
from routing.pool import Pool


def admission_of(config: Config, pool: Pool, switches: Switches, workers: int) -> Admission | None:
    """Build it for one of so many workers; None where requests are not even observed."""
    section = config.admission
    if section.mode == "off":
        return None
    a_tenant = section.max_queued_per_tenant or -(-section.max_queued // 2)
    return Admission(
        pool,
        AdmissionSettings(
            enforce=section.mode == "enforce",
            queue=QueueSettings(_part(section.max_queued, workers), _part(a_tenant, workers)),
            max_bytes=_part(section.max_queued_bytes, workers),
            max_wait_s=section.max_wait_s,
        ),
        switches=switches,
        clock=CLOCK,
    )


def fixed_limits(config: Config) -> Mapping[str, int]:
    """Return the limits that are laid down, by model."""
    return {
        name: policy.concurrency
        for name, policy in config.models.items()
        if policy.concurrency is not None
    }


def _part(whole: int, workers: int) -> int:
    return -(-whole // workers)
