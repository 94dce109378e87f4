"""Runs under faults: workers killed, stopped and cut off, disks and memory filled; then the books are balanced."""
