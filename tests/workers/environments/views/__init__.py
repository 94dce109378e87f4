"""Tests of workers/environments/views."""
