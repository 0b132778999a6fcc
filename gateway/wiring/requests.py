"""What a configuration means for requests: the pipeline of inference, and the other routes."""

import random
from collections.abc import Mapping

from config.models import Config
from config.policies import Hedging
from gateway import __version__
from gateway.codec.generate import GenerateDecoder
from gateway.codec.infer_request import InferDecoder
from gateway.edge.metadata import MetadataRoutes
from gateway.fanout import FleetStatistics
from gateway.hedging import HedgePolicy
from gateway.lifecycle import Readiness
from gateway.pipeline import Deadlines, Pipeline, Retries
from gateway.ports import CoreView, Descriptions, Fleet, Transport
from gateway.streams import Streams
from gateway.upstream.control import StatisticsReader
from gateway.upstream.transport import Upstream
from gateway.wiring.clock import CLOCK
from gateway.wiring.gates import Gates
from routing.aliases import Alias, Aliases, Arm, StickTo
from routing.budget import RetryBudget
from routing.retry import RetryPolicy


def metadata_routes(
    config: Config,
    fleet: Fleet,
    aliases: Aliases,
    upstreams: Mapping[str, Upstream],
    *,
    descriptions: Descriptions,
    readiness: Readiness,
) -> MetadataRoutes:
    """Build the handlers of every route but infer."""
    statistics = FleetStatistics(
        fleet,
        StatisticsReader(upstreams),
        timeout_s=config.fleet.statistics_timeout_s,
        clock=CLOCK,
    )
    return MetadataRoutes(
        fleet=fleet,
        aliases=aliases,
        descriptions=descriptions,
        statistics=statistics,
        server_id=config.api.server_id,
        version=__version__,
        not_ready_reason=readiness.not_ready_reason,
        clock=CLOCK,
    )


def pipeline_of(config: Config, view: CoreView, transport: Transport, gates: Gates) -> Pipeline:
    """Build the pipeline of inference requests."""
    return Pipeline(
        fleet=view.fleet,
        aliases=view.aliases,
        pool=view.pool,
        transport=transport,
        decoder=InferDecoder(
            strict_integers=config.request.strict_integers,
            max_tensors=config.request.max_tensors,
            max_batch_rows=config.request.max_batch_rows,
            max_tensor_bytes=config.api.max_unpacked_bytes,
        ),
        deadlines=_deadlines(config),
        retries=_retries(config),
        sequences=gates.sequences,
        ranking=gates.ranking,
        limits=gates.limits,
        admission=gates.admission,
        max_unpacked_bytes=config.api.max_unpacked_bytes,
        clock=CLOCK,
    )


def streams_of(config: Config, pipeline: Pipeline, transport: Transport) -> Streams:
    """Build what is special about generate requests."""
    decoder = GenerateDecoder(strict_integers=config.request.strict_integers)
    return Streams(pipeline, transport, decoder)


def aliases_of(config: Config) -> Aliases:
    """Build the aliases."""
    return Aliases(
        {
            name: Alias(
                name,
                tuple(Arm(arm.model, arm.version, arm.weight) for arm in alias.arms),
                StickTo(alias.sticky),
                alias.header or "",
                alias.salt,
            )
            for name, alias in config.aliases.items()
        },
        random.random,
    )


def _deadlines(config: Config) -> Deadlines:
    return Deadlines(
        default_s=config.deadlines.default_s,
        max_s=config.deadlines.max_s,
        by_model={
            name: policy.deadline_s
            for name, policy in config.models.items()
            if policy.deadline_s is not None
        },
        stream_idle_s=config.deadlines.stream_idle_s,
        stream_max_s=config.deadlines.stream_max_s,
    )


def _retries(config: Config) -> Retries:
    settings = config.retries
    return Retries(
        RetryPolicy(settings.max_attempts),
        new_budget=lambda: RetryBudget(ratio=settings.budget, min_per_s=settings.min_per_s),
        not_idempotent=[name for name, m in config.models.items() if m.idempotent is False],
        hedges={
            name: _hedge(policy.hedging)
            for name, policy in config.models.items()
            if policy.hedging is not None and policy.idempotent is not False
        },
    )


def _hedge(hedging: Hedging) -> HedgePolicy:
    return HedgePolicy(hedging.after_s, RetryBudget(ratio=hedging.max_share, min_per_s=0))
