"""Every error of ours ends a worker with a code of its own."""

from __future__ import annotations

from protocol import errors


def test_exit_codes_are_distinct_and_not_zero() -> None:
    classes = [getattr(errors, name) for name in errors.__all__ if name != "disk_fault"]
    codes = [cls.exit_code for cls in classes]
    assert 0 not in codes
    assert len(set(codes)) == len(codes)
    assert all(issubclass(cls, errors.RookeryError) for cls in classes)
