"""Inside an actor: policies that act, and the segments they write."""
