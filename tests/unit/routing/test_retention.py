"""What a source leaves out stays for a while, and for as long as it answers if it is too much."""

from routing.retention import GONE_AFTER_S, Retention, RetentionSettings

GRACE_S = 30.0
FOUR = ("a", "b", "c", "d")


class Source:
    """A retention with its members, at a time that only the test moves."""

    def __init__(self, *members: str, max_removed_share: float = 0.5) -> None:
        self.retention = Retention(RetentionSettings(GRACE_S, max_removed_share))
        self.members = set(members)
        self.named = set(members)
        self.silent: set[str] = set()
        self.now_s = 1000.0

    def names(self, *names: str) -> set[str]:
        """Let the source answer; return who is there then."""
        self.named = set(names)
        return self.after(0.0)

    def after(self, passed_s: float) -> set[str]:
        """Let time pass; return who is there then."""
        self.now_s += passed_s
        kept = self.retention.review(
            self.members,
            self.named,
            answers=lambda name: name not in self.silent,
            now_s=self.now_s,
        )
        self.members = self.named | kept
        return self.members


def test_what_is_named_is_there() -> None:
    source = Source(*FOUR)
    assert source.names(*FOUR, "e") == {*FOUR, "e"}
    assert not source.retention.distrusted


def test_a_server_that_is_left_out_stays_for_its_grace_and_no_longer() -> None:
    source = Source(*FOUR)
    assert source.names("a", "b", "c") == set(FOUR)
    assert source.after(GRACE_S - 0.1) == set(FOUR)
    assert source.after(0.1) == {"a", "b", "c"}


def test_the_grace_begins_anew_when_a_server_was_named_between() -> None:
    source = Source(*FOUR)
    source.names("a", "b", "c")
    source.after(GRACE_S - 1)
    source.names(*FOUR)
    source.names("a", "b", "c")
    assert source.after(GRACE_S - 1) == set(FOUR)


def test_a_server_that_is_left_out_and_silent_goes_at_once() -> None:
    source = Source(*FOUR)
    source.silent = {"d"}
    assert source.names("a", "b", "c") == set(FOUR)
    assert source.after(GONE_AFTER_S) == {"a", "b", "c"}


def test_a_short_silence_of_a_server_that_is_kept_is_forgiven() -> None:
    source = Source(*FOUR)
    source.names("a", "b", "c")
    source.silent = {"d"}
    source.after(1.0)
    source.silent = set()
    source.after(1.0)
    source.silent = {"d"}
    source.after(1.0)
    assert source.after(GONE_AFTER_S - 1) == set(FOUR)


def test_an_empty_answer_removes_nobody_who_answers() -> None:
    source = Source(*FOUR)
    assert source.names() == set(FOUR)
    assert source.after(1_000_000) == set(FOUR)
    assert source.retention.distrusted == set(FOUR)


def test_the_last_server_stays_while_it_answers() -> None:
    source = Source("a")
    assert source.names() == {"a"}
    assert source.after(GRACE_S) == {"a"}


def test_half_may_go_but_no_more() -> None:
    half, more = Source(*FOUR), Source(*FOUR)
    half.names("a", "b")
    more.names("a")
    assert half.after(GRACE_S) == {"a", "b"}
    assert more.after(GRACE_S) == set(FOUR)


def test_answers_that_are_wrong_one_after_the_other_count_together() -> None:
    source = Source(*FOUR)
    source.names("a", "b")
    source.after(1.0)
    source.names("a")
    assert source.after(GRACE_S) == set(FOUR)


def test_too_many_stay_until_they_are_silent_although_the_others_have_gone() -> None:
    source = Source(*FOUR)
    source.names("a")
    source.silent = {"b", "c"}
    source.after(0.0)
    assert source.after(GONE_AFTER_S) == {"a", "d"}
    assert source.after(GRACE_S) == {"a", "d"}
    assert source.retention.distrusted == {"d"}


def test_too_many_that_are_named_again_are_trusted_again() -> None:
    source = Source(*FOUR)
    source.names()
    source.names(*FOUR)
    assert not source.retention.distrusted
    source.names("a", "b", "c")
    assert source.after(GRACE_S) == {"a", "b", "c"}


def test_the_rule_against_too_many_can_be_switched_off() -> None:
    source = Source(*FOUR, max_removed_share=1.0)
    source.names()
    assert source.after(GRACE_S - 1) == set(FOUR)
    assert source.after(1) == set()
