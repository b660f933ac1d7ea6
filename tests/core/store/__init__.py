"""Tests of stages/core/store."""
