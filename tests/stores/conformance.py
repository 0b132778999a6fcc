"""What every shared store has to do; the tests beside it run this on each kind."""

import asyncio
import time

from gateway.ports import SharedStore
from tests.stores.conftest import PATIENT_S, until_gone

LONG_S = 60.0


class StoreConformance:
    """Tests of `gateway.ports.SharedStore`."""

    async def test_the_first_claim_counts(self, store: SharedStore) -> None:
        assert await store.claim("k", "one", ttl_s=LONG_S) == "one"
        assert await store.claim("k", "two", ttl_s=LONG_S) == "one"
        assert await store.renew("k", ttl_s=LONG_S) == "one"

    async def test_a_claim_may_replace_what_it_names_and_nothing_else(
        self, store: SharedStore
    ) -> None:
        await store.claim("k", "one", ttl_s=LONG_S)
        assert await store.claim("k", "two", ttl_s=LONG_S, instead_of="other") == "one"
        assert await store.claim("k", "two", ttl_s=LONG_S, instead_of="one") == "two"
        assert await store.claim("k", "three", ttl_s=LONG_S, instead_of="one") == "two"
        assert await store.claim("new", "three", ttl_s=LONG_S, instead_of="one") == "three"

    async def test_nothing_is_where_nothing_was_put(self, store: SharedStore) -> None:
        assert await store.renew("k", ttl_s=LONG_S) is None
        await store.forget("k", "one")
        assert await store.renew("k", ttl_s=LONG_S) is None

    async def test_only_the_value_that_is_meant_is_forgotten(self, store: SharedStore) -> None:
        await store.claim("k", "one", ttl_s=LONG_S)
        await store.forget("k", "two")
        assert await store.renew("k", ttl_s=LONG_S) == "one"
        await store.forget("k", "one")
        assert await store.renew("k", ttl_s=LONG_S) is None

    async def test_what_is_not_renewed_goes_by_itself(self, store: SharedStore) -> None:
        began_s = time.monotonic()
        assert await store.claim("k", "one", ttl_s=0.2) == "one"
        await until_gone(store, "k")
        assert time.monotonic() - began_s >= 0.19

    async def test_a_renewal_sets_the_time_anew(self, store: SharedStore) -> None:
        await store.claim("long", "one", ttl_s=0.05)
        await store.renew("long", ttl_s=LONG_S)
        await store.claim("short", "one", ttl_s=LONG_S)
        await store.renew("short", ttl_s=0.05)
        await until_gone(store, "short")
        await asyncio.sleep(0.06)
        assert await store.renew("long", ttl_s=LONG_S) == "one"

    async def test_a_replacement_has_its_own_time(self, store: SharedStore) -> None:
        await store.claim("k", "one", ttl_s=LONG_S)
        await store.claim("k", "two", ttl_s=0.05, instead_of="one")
        await until_gone(store, "k")

    async def test_any_text_is_a_key_and_a_value(self, store: SharedStore) -> None:
        for text in ("ä\n{x} \0", "x" * 5000, "7", "None", "nil"):
            assert await store.claim(f"k{text}", text, ttl_s=LONG_S) == text
            assert await store.renew(f"k{text}", ttl_s=LONG_S) == text
            assert await store.claim(f"k{text}", "new", ttl_s=LONG_S, instead_of=text) == "new"

    async def test_of_many_claims_at_once_one_counts_for_all(self, store: SharedStore) -> None:
        claims = (store.claim("k", str(n), ttl_s=LONG_S) for n in range(50))
        assert len(set(await asyncio.gather(*claims))) == 1

    async def test_a_look_tells_what_is_there_and_for_how_long_and_renews_nothing(
        self, store: SharedStore
    ) -> None:
        await store.claim("k", "one", ttl_s=LONG_S)
        await store.claim("short", "two", ttl_s=0.5)
        nothing, one, two = await store.look(["none", "k", "short"])
        assert nothing is None
        assert one is not None
        assert (one.value, two and two.value) == ("one", "two")
        assert LONG_S - 10 < one.left_s <= LONG_S
        async with asyncio.timeout(PATIENT_S):
            while (await store.look(["short"])) != [None]:
                await asyncio.sleep(0.05)
