"""What operators take out is out, nothing else is, and each has its reason."""

from hypothesis import given
from hypothesis import strategies as st

from routing.errors import NoReadyEndpoint
from routing.steering import Block, Steering
from tests.unit.routing.building import NOW_S, pool_of, route

SERVERS = ("a", "b", "c")
SOME = st.sampled_from(SERVERS)
VERSIONS = st.sampled_from([1, 2])
MODELS = st.sampled_from(["m", "n"])
BLOCK = st.builds(Block, MODELS, st.none() | VERSIONS, st.none() | SOME)


@given(st.frozensets(SOME), st.frozensets(BLOCK, max_size=4), MODELS, VERSIONS)
def test_requests_go_to_what_operators_left_in(
    cordoned: frozenset[str], blocks: frozenset[Block], model: str, version: int
) -> None:
    pool = pool_of(SERVERS)
    pool.steer(Steering(cordoned, blocks))
    where = route(*SERVERS, model=model, version=version)
    blocked = {
        server
        for server in SERVERS
        for block in blocks
        if block.model == model and block.version in (None, version)
        if block.server in (None, server)
    }
    choices = pool.choices(where, NOW_S)
    assert {candidate.name for candidate in choices.everyone()} == {*SERVERS} - cordoned - blocked
    assert choices.excluded == {
        **dict.fromkeys(blocked, "blocked by an operator"),
        **dict.fromkeys(cordoned, "cordoned by an operator"),
    }
    try:
        assert pool.pick(where, now_s=NOW_S).server not in cordoned | blocked
    except NoReadyEndpoint:
        assert cordoned | blocked == {*SERVERS}


@given(st.lists(SOME), st.lists(BLOCK), st.lists(SOME), st.lists(BLOCK))
def test_only_the_last_word_counts(
    cordoned: list[str], blocks: list[Block], uncordoned: list[str], unblocked: list[Block]
) -> None:
    steering = Steering()
    for server in cordoned:
        steering = steering.cordon(server)
    for block in blocks:
        steering = steering.block(block)
    for server in uncordoned:
        steering = steering.uncordon(server)
    for block in unblocked:
        steering = steering.unblock(block)
    assert steering.cordoned == {*cordoned} - {*uncordoned}
    assert steering.blocks == {*blocks} - {*unblocked}
