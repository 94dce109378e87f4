"""Tests of workers/environments/worlds/scripted."""
