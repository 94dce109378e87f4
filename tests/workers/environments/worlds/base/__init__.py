"""Tests of workers/environments/worlds/base."""
