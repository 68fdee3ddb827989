# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The table of transitions, examined as a whole."""

from __future__ import annotations

import itertools

import pytest

from casulo.model.errors import Code, Conflict
from casulo.model.states import ENDED, TRANSITIONS, State, allowed, require

PAIRS = list(itertools.product(State, State))


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize(("current", "wanted"), PAIRS)
def test_require_and_allowed_agree_with_the_table(current: State, wanted: State) -> None:
    legal = wanted in TRANSITIONS[current]
    assert allowed(current, wanted) is legal
    if legal:
        require("id", current, wanted)
        return
    with pytest.raises(Conflict) as failure:
        require("id", current, wanted)
    assert current.value in failure.value.message and "id" in failure.value.message
    assert failure.value.hint


def test_no_state_follows_itself_and_none_comes_back_to_the_start() -> None:
    assert not any(allowed(state, state) for state in State)
    assert not any(allowed(state, State.PENDING) for state in State)


def test_everything_can_be_deleted_and_a_deletion_is_final() -> None:
    for state in set(State) - {State.STOPPING}:
        assert allowed(state, State.STOPPING)
    assert TRANSITIONS[State.STOPPING] == frozenset()


def test_an_ended_sandbox_can_only_be_deleted() -> None:
    for state in ENDED:
        assert TRANSITIONS[state] == {State.STOPPING}


def test_every_state_is_reached_from_the_first() -> None:
    reached, waiting = {State.PENDING}, [State.PENDING]
    while waiting:
        new = TRANSITIONS[waiting.pop()] - reached
        reached |= new
        waiting.extend(new)
    assert reached == set(State)


def test_clients_get_the_codes_that_they_know() -> None:
    for current, wanted, code in (
        (State.PAUSED, State.PAUSING, Code.SANDBOX_NOT_RUNNING),
        (State.RUNNING, State.RESUMING, Code.SANDBOX_NOT_PAUSED),
        (State.STOPPING, State.RUNNING, Code.SANDBOX_STATE_CONFLICT),
    ):
        with pytest.raises(Conflict) as failure:
            require("id", current, wanted)
        assert failure.value.code == code
