"""Other libraries' environments as Rookery's."""
