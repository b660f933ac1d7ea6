"""Test data of the project's own making: every test runs on it in a bare clone; real data only widens the same tests (real.py)."""
