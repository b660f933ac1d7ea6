"""Defines the Prefect settings that must be in the environment before prefect is imported.

They put Prefect's folder into our home and switch telemetry and prompts off.
Source: Prefect's settings reference. It was observed that DO_NOT_TRACK alone does not stop the look-up of an external host name.
"""

from __future__ import annotations

from pathlib import Path


def prefect_settings(home: Path) -> dict[str, str]:
    """Returns environment variables for any process that imports prefect."""
    return {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_CLI_PROMPT": "false",
    }
