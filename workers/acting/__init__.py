"""Acting: policies that run, and the rows they write."""
