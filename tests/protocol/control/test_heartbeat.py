"""What a worker tells of its episodes until it is heard."""

from __future__ import annotations

from protocol.control import heartbeat
from protocol.control.heartbeat import UnackedEpisodes, introduction

ONE, TWO, THREE = (("gem", steps, 1, 0.5, 5) for steps in (10, 20, 30))


def test_what_was_not_sent_is_not_taken_for_heard_when_an_older_answer_comes() -> None:
    unheard = UnackedEpisodes()
    assert unheard.with_new([ONE]) == [ONE]
    unheard.told(sent=False)
    unheard.answered(known=True)
    assert unheard.with_new([]) == [ONE]


def test_an_answer_is_for_what_was_told_before_it() -> None:
    unheard = UnackedEpisodes()
    unheard.with_new([ONE, TWO])
    unheard.told(sent=True)
    unheard.with_new([THREE])
    unheard.answered(known=True)
    assert unheard.with_new([]) == [THREE]
    unheard.answered(known=True)
    assert unheard.with_new([]) == [THREE]


def test_a_coordinator_that_does_not_know_the_worker_has_heard_nothing() -> None:
    unheard = UnackedEpisodes()
    unheard.with_new([ONE])
    unheard.told(sent=True)
    unheard.answered(known=False)
    assert unheard.with_new([TWO]) == [ONE, TWO]


def test_the_oldest_are_forgotten_while_nobody_listens_and_a_heartbeat_tells_a_bounded_number() -> None:
    unheard = UnackedEpisodes()
    many = [("gem", steps, 1, 0.5, 5) for steps in range(heartbeat._KEPT + 5)]
    told = list[tuple[str, int, int, float, int]]()
    new = many
    while beat := unheard.with_new(new):
        assert len(beat) <= heartbeat.EPISODES
        unheard.told(sent=True)
        unheard.answered(known=True)
        told, new = [*told, *beat], []
    assert told == many[5:]


def test_two_requests_to_join_never_have_the_same_token() -> None:
    assert len({introduction("actor", "", "here").token for _ in range(8)}) == 8
