"""The messages of the wire, and their encoding."""
