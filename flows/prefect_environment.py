"""Settings that must stand in the environment before prefect is imported: its home below ours, no look-ups of outside names.

Source: Prefect's settings reference; DO_NOT_TRACK alone was seen not to stop the look-up of an outside name.
"""

from __future__ import annotations

from pathlib import Path


def prefect_settings(home: Path) -> dict[str, str]:
    """Environment variables for any process that imports prefect."""
    return {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_CLI_PROMPT": "false",
    }
