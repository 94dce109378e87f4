"""Tests of workers/tools."""
