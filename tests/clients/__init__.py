"""Clients written from protocol/README.md alone, and what a run makes of them."""
