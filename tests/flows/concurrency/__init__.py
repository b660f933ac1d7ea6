"""Tests of flows/concurrency/."""
