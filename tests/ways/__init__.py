"""Whole ways of users, from a clean clone to what they came for: lines typed into a real terminal, pages in a real
browser, machines in network namespaces. Each test reads like the session that it is."""
