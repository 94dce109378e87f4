"""Layouts: every byte of a slot has its place, and the hash says which."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config.run import PolicyConfig, parse_run
from protocol.errors import WireError
from protocol.experience.layout import ALIGNMENT, Field, Layout, segment_layout
from protocol.spaces import Agent, Box, Discrete, World
from tests.faults import raises

FOUR = (Field("observation", "<f4", (75,)), Field("action", "<i8"), Field("reward", "<f4"), Field("done", "<f4"))


def test_the_hash_tells_every_difference() -> None:
    base = Layout(FOUR, length=64, before=3)
    others = [
        dataclasses.replace(base, length=63),
        dataclasses.replace(base, before=2),
        dataclasses.replace(base, fields=FOUR[::-1]),
        dataclasses.replace(base, fields=FOUR[:3]),
        *(
            dataclasses.replace(base, fields=(dataclasses.replace(FOUR[0], **change), *FOUR[1:]))
            for change in ({"name": "o"}, {"dtype": "<f8"}, {"shape": (5, 15)}, {"per": "slot"})
        ),
    ]
    assert len({layout.hash for layout in [base, *others]}) == 1 + len(others)


FIELDS = st.lists(
    st.builds(
        Field,
        st.uuids().map(str),
        st.sampled_from(["|u1", "|b1", "<i2", "<i4", "<i8", "<f4", "<f8", "<u8"]),
        st.lists(st.integers(1, 5), max_size=2).map(tuple),
        st.sampled_from(["row", "slot"]),
    ),
    min_size=1,
    max_size=6,
)


@given(FIELDS, st.integers(1, 9), st.integers(0, 3), st.integers(1, 7))
def test_columns_are_aligned_and_share_no_byte(fields: list[Field], length: int, before: int, slots: int) -> None:
    layout = Layout(tuple(fields), length, before)
    buffer = bytearray(layout.offsets(slots)[1])
    columns = layout.columns(memoryview(buffer), slots)
    for number, column in enumerate(columns.values(), 1):
        flat = column.reshape(-1).view(np.uint8)
        assert not flat.any()  # nobody else wrote here
        flat.fill(number)
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets(slots)[0])
    payload = sum(int(np.count_nonzero(np.frombuffer(buffer, np.uint8) == n + 1)) for n in range(len(fields)))
    assert payload == layout.segment_bytes * slots


@pytest.mark.parametrize("dtype", ["|O", "O", ">f4", ">f2", "<c8", "|S4", "<U2", "f4", ""])
def test_a_dtype_that_another_language_could_not_read_is_refused(dtype: str) -> None:
    with raises(WireError, "layout_dtype_not_allowed", field="x", value=dtype):
        Field("x", dtype)


def test_a_policys_layout_follows_from_its_world_and_algorithm() -> None:
    agent = Agent(name="a", observation=Box(shape=(5, 5), dtype="uint8"), action=Discrete(n=4))
    world = World(id="w", agents=(agent,), episode_steps=30)
    run = parse_run({"policies": {"q": {"algorithm": {"name": "iqn", "frames": 4}}}})
    ppo, iqn = (segment_layout(world, world.places[0], run.policy_config(name)) for name in ("a", "q"))
    shapes = {field.name: (field.dtype, ppo.shape(field, 2)) for field in ppo.fields}
    assert shapes["observation"] == ("|u1", (2, 65, 5, 5))
    assert shapes["final_observation"] == ("|u1", (2, 3, 5, 5))  # 64 rows hold at most 3 ends of 30 steps
    assert shapes["final_row"] == ("<i4", (2, 3))
    assert {"log_probability", "value"} <= shapes.keys()
    assert (iqn.before, iqn.rows) == (3, 68)
    assert ppo.hash != iqn.hash


@pytest.mark.parametrize(
    ("side", "steps", "few", "ends"),
    [(84, None, True, 8), (84, None, False, 64), (4, None, True, 64), (84, 27_000, True, 1)],
)
def test_last_observations_have_room_for_each_row_only_where_that_is_little(
    side: int, steps: int | None, few: bool, ends: int
) -> None:
    agent = Agent(name="a", observation=Box(shape=(side, side), dtype="uint8"), action=Discrete(n=4))
    world = World(id="w", agents=(agent,), episode_steps=steps)
    layout = segment_layout(world, world.places[0], PolicyConfig(segment_length=64), few_ends=few)
    assert {field.name: layout.shape(field, 1)[1] for field in layout.fields}["final_row"] == ends
