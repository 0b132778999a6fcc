"""Decides whether a request is within its limits, and counts what was decided.

A decision is made without the store where that is certain (`prepaid`), else there, in one round
trip for all limits of the request; while the store does not answer, each limit says what decides
instead. A caller that leaves never ends a question half-way. Called by `gateway.limits.gate`;
outlasts the configuration, as what is held and counted here must.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from gateway.limits.held import Held, LeaseTimes
from gateway.limits.prepaid import Prepaid
from gateway.limits.verdict import Verdict, Wanted, refusal
from gateway.ports import Clock, QuotaStore, StoreDown
from gateway.tasks import spawn
from routing.limits import SECOND_US, OnFailure, Source
from routing.quota import Answer, Ask, Charge, Counted, Place, Quotas


class Limiter:
    """`me` names this process, like no other; `down` says why the store cannot be asked."""

    def __init__(
        self,
        store: QuotaStore,
        *,
        me: str,
        down: Callable[[], str | None],
        clock: Clock,
        times: LeaseTimes | None = None,
    ) -> None:
        self.decisions: dict[tuple[str, str], int] = {}
        """How often each rule has `allowed`, `denied` or `observed`."""
        self.sources: dict[str, int] = dict.fromkeys((source.value for source in Source), 0)
        """How many requests were decided on by what."""
        self._store = store
        self._me = me
        self._clock = clock
        self._times = times or LeaseTimes()
        self._down = down
        self._prepaid = Prepaid()
        self._held = Held(
            store, me=me, sweep=self._prepaid.sweep, down=down, times=self._times, clock=clock
        )
        self._local = Quotas()
        self._holders = 0
        self._paying: dict[tuple[str, ...], asyncio.Task[Verdict]] = {}
        """The questions that charge quotas ahead, by these: others wait for them."""

    @property
    def gateways(self) -> int:
        """How many gateways share the limits, as far as is known."""
        return self._held.gateways

    @property
    def places(self) -> int:
        """How many places of concurrent requests this process holds."""
        return len(self._held.places)

    def down_reason(self) -> str | None:
        """Return why the store cannot be asked at the moment, None if it can."""
        return self._down()

    async def close(self) -> None:
        """Give back everything that is held in the store, as far as it can be reached."""
        await self._held.close()

    async def decide(self, wanted: Sequence[Wanted]) -> Verdict:
        """Decide on one request. The places of the verdict have to be freed."""
        self._held.start()
        now_s = self._clock()
        self._prepaid.measure(wanted, now_s)
        at_once = self._prepaid.decide(wanted, now_s)
        if at_once is None and self._paying:
            at_once = await self._paid_by_another(wanted)
        if at_once is not None:
            return self._counted(at_once)
        return await self._asked(wanted)

    async def _paid_by_another(self, wanted: Sequence[Wanted]) -> Verdict | None:
        """Wait if what is wanted is being charged ahead; None if the store has to be asked."""
        paying = self._paying.get(tuple([each.key for each in wanted]))
        if paying is None:
            return None
        await asyncio.wait((paying,))
        if paying.cancelled() or paying.result().source is Source.SHARED:
            return self._prepaid.decide(wanted, self._clock())
        return self._without_store(wanted, self._new_holder())  # nobody waits for it twice

    async def _asked(self, wanted: Sequence[Wanted]) -> Verdict:
        ahead_us = self._prepaid.ahead_us(wanted)
        deciding = spawn(self._ask(wanted, ahead_us), name="decision on a request")
        if ahead_us:
            keys = tuple([each.key for each in wanted])
            self._paying[keys] = deciding
            deciding.add_done_callback(lambda _: self._paying.pop(keys, None))
        try:
            return await asyncio.shield(deciding)
        except asyncio.CancelledError:
            deciding.add_done_callback(self._unclaimed)
            raise

    def free(self, verdict: Verdict) -> None:
        """Give the places of a verdict back."""
        for place in verdict.places:
            self._held.free(place)
            if verdict.source is not Source.SHARED:
                self._local.free(*place)

    def refund(self, verdict: Verdict) -> None:
        """Take back what a request was charged that was not sent to any server."""
        if verdict.source is Source.SHARED:
            for key, amount_us in verdict.charged.items():
                self._prepaid.given_back(key, amount_us)
            if verdict.charged:
                spawn(self._give_back(verdict), name="refund of a limit")
            return
        for key, amount_us in verdict.charged.items():
            self._local.give_back(key, amount_us, self._now_us())

    async def peek(self, wanted: Sequence[Wanted]) -> list[Counted]:
        """Return what is used of quotas, without using anything. Raises StoreDown."""
        rates = [each for each in wanted if not each.rule.counts_places]
        places = [each for each in wanted if each.rule.counts_places]
        answer = await self._store.decide(
            Ask(
                tuple(Charge(each.key, 0, each.rule.burst_us) for each in rates),
                tuple(Place(each.key, 0, self._me, enforce=False) for each in places),
            )
        )
        found = dict(zip([*rates, *places], [*answer.charges, *answer.places], strict=True))
        return [found[each] for each in wanted]

    async def reset(self, keys: Sequence[str]) -> None:
        """Make quotas as if they had never been used. Raises StoreDown."""
        self._prepaid.forget(keys)
        for key in keys:
            self._local.forget(key)
        if keys:
            await self._store.forget(keys)
        self._prepaid.forget(keys)  # what was learnt meanwhile

    async def _give_back(self, verdict: Verdict) -> None:
        with contextlib.suppress(StoreDown):  # then it is worked off by time
            await self._store.give_back(verdict.charged)

    def _unclaimed(self, deciding: "asyncio.Task[Verdict]") -> None:
        if not deciding.cancelled() and deciding.exception() is None:
            self.free(deciding.result())

    async def _ask(self, wanted: Sequence[Wanted], ahead_us: Mapping[str, int]) -> Verdict:
        rates = [each for each in wanted if not each.rule.counts_places]
        places = [each for each in wanted if each.rule.counts_places]
        holder = self._new_holder()
        ask = Ask(
            tuple(
                Charge(
                    each.key,
                    each.cost_us,
                    each.rule.burst_us,
                    ahead_us.get(each.key, 0),
                    each.rule.enforce,
                )
                for each in rates
            ),
            tuple(Place(e.key, e.rule.most, holder, e.rule.enforce) for e in places),
            round(self._times.lease_s * 1000),
        )
        asked_s = self._clock()
        try:
            answer = await self._store.decide(ask)
        except StoreDown:
            for place in ask.places:  # it may have been given all the same
                self._held.free((place.key, holder), at_once=False)
            return self._counted(self._without_store(wanted, self._new_holder()))
        finally:
            self._prepaid.paid(ahead_us)
        for each, said in zip(rates, answer.charges, strict=True):
            self._prepaid.learn(
                each.key, said.used, said.extra_us, asked_s=asked_s, now_s=self._clock()
            )
        return self._counted(self._verdict(rates, places, answer, holder, Source.SHARED))

    def _without_store(self, wanted: Sequence[Wanted], holder: str) -> Verdict:
        for each in wanted:
            if each.rule.on_failure is OnFailure.CLOSED and each.rule.enforce:
                state = each.state(each.rule.most, over=True)
                return Verdict(Source.CLOSED, True, (state,), SECOND_US, each.rule)
        mine = [each for each in wanted if each.rule.on_failure is OnFailure.LOCAL]
        rates = [each for each in mine if not each.rule.counts_places]
        places = [each for each in mine if each.rule.counts_places]
        answer = self._local.decide(self._share(rates, places, holder), self._now_us())
        source = Source.LOCAL if mine else Source.OPEN
        return self._verdict(rates, places, answer, holder, source)

    def _share(self, rates: Sequence[Wanted], places: Sequence[Wanted], holder: str) -> Ask:
        """Return what is asked of this process's own part of the quotas, one at the least."""
        parts = self._held.gateways
        charges = []
        for each in rates:
            cost_us = each.cost_us * parts
            burst_us = max(each.rule.burst_us, cost_us)
            charges.append(Charge(each.key, cost_us, burst_us, enforce=each.rule.enforce))
        own = (
            Place(each.key, max(1, each.rule.most // parts), holder, each.rule.enforce)
            for each in places
        )
        # Nothing renews them here, and nothing outlasts the process.
        return Ask(tuple(charges), tuple(own), ttl_ms=86_400_000)

    def _verdict(
        self,
        rates: Sequence[Wanted],
        places: Sequence[Wanted],
        answer: Answer,
        holder: str,
        source: Source,
    ) -> Verdict:
        said = list(zip([*rates, *places], [*answer.charges, *answer.places], strict=True))
        states = tuple(each.state(counted.used, over=counted.over) for each, counted in said)
        parts = 1 if source is Source.SHARED else self._held.gateways
        if answer.refused:
            over = [
                (each, counted.used) for each, counted in said if counted.over and each.rule.enforce
            ]
            return refusal(source, over, parts=parts, states=states)
        kept = [each for each, counted in said if not counted.over]
        held = tuple((each.key, holder) for each in kept if each.rule.counts_places)
        for place in held:
            self._held.take(place)
        return Verdict(
            source,
            False,
            states,
            charged={e.key: e.cost_us * parts for e in kept if not e.rule.counts_places},
            places=held,
        )

    def _counted(self, verdict: Verdict) -> Verdict:
        self.sources[verdict.source.value] += 1
        for state in verdict.states:
            if state.over:
                outcome = "denied" if state.rule.enforce else "observed"
            elif verdict.refused:
                continue
            else:
                outcome = "allowed"
            key = (state.rule.name, outcome)
            self.decisions[key] = self.decisions.get(key, 0) + 1
        return verdict

    def _new_holder(self) -> str:
        self._holders += 1
        return f"{self._me}:{self._holders}"

    def _now_us(self) -> int:
        return int(self._clock() * SECOND_US)
