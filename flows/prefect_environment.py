"""Defines the Prefect settings that must be in the environment before prefect is imported.

They put Prefect's folder into our home, or on this machine's own disk if machines share the home, and switch telemetry and prompts off.
Source: Prefect's settings reference. It was observed that DO_NOT_TRACK alone does not stop the look-up of an external host name.
"""

from __future__ import annotations

from pathlib import Path

from stages.record.store.home import own_disk


def prefect_folder(home: Path) -> Path:
    """Returns the folder of Prefect's databases and of the credentials of this machine's server. A server answers only its own machine."""
    return own_disk(home) / "prefect"


def prefect_settings(home: Path) -> dict[str, str]:
    """Returns environment variables for any process that imports prefect."""
    return {
        "PREFECT_HOME": str(prefect_folder(home)),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_CLI_PROMPT": "false",
    }
