"""The `rookery` command."""
