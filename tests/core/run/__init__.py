"""Tests of stages/core/run."""
