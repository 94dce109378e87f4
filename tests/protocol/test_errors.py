"""Every error of ours ends a worker with a code of its own."""

from __future__ import annotations

from protocol import errors


def test_exit_codes_are_distinct_and_not_zero() -> None:
    named = [getattr(errors, name) for name in errors.__all__]
    every = [one for one in named if isinstance(one, type)]
    classes = [one for one in every if issubclass(one, errors.RookeryError)]
    assert every == classes
    assert len(classes) > 5
    codes = [cls.exit_code for cls in classes]
    assert 0 not in codes
    assert len(set(codes)) == len(codes)
