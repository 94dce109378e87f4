"""Several environments as one: each copy plays an episode of one member, then an episode of another."""

from workers.environments.collections.collection import Collection

__all__ = ["Collection"]
