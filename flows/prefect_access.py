"""Who may use a Prefect server of Loam: whoever can read the home's profiles file. `loam run`'s own server has a secret of its own.

The file <home>/prefect/client/profiles.toml holds the server's address and its authentication string (user:password, what the UI's
login takes); Prefect's commands read it where PREFECT_PROFILES_PATH names it. It is not <home>/prefect/profiles.toml, which Prefect
reads unasked in every run of the home, also in one on a server of the user's own.
Guarantee: the file is made with mode 0600 in folders of mode 0700. One that others could read or write is not used again: its secret is
replaced, and that is said. The secret stands in no command line and no output, and goes to the server beside it in the file alone.
Source: https://docs.prefect.io/v3/advanced/security-settings (basic authentication) and Prefect's settings profiles.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from stages.core.store.files import write_durably

AUTH = "PREFECT_API_AUTH_STRING"
PROFILE = "loam"


def new_auth() -> str:
    """A fresh authentication string."""
    return f"{PROFILE}:{secrets.token_urlsafe(32)}"


def profiles_path(home: Path) -> Path:
    """The profiles file of a home."""
    return home / "prefect" / "client" / "profiles.toml"


def home_auth(home: Path, url: str) -> str:
    """The home's authentication string, the same at every call; writes the profiles file for a server at `url`."""
    path = profiles_path(home)
    auth = _kept_auth(path) or new_auth()
    for folder in (path.parent.parent, path.parent):
        private_folder(folder)
    text = (
        "# Written by `loam serve`. PREFECT_API_AUTH_STRING is what the login of Prefect's UI asks for. To have a new one, remove this file.\n"
        f'active = "{PROFILE}"\n\n[profiles.{PROFILE}]\nPREFECT_API_URL = "{url}"\n{AUTH} = "{auth}"\n'
    )
    previous = os.umask(0o077)  # the file has its mode when it is made, not afterwards
    try:
        write_durably(path, text)
    finally:
        os.umask(previous)
    return auth


def private_folder(folder: Path) -> None:
    """Makes a folder that only its owner may enter, or makes one so."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        folder.chmod(0o700)


def foreign_to(url: str, variables: Mapping[str, str]) -> bool:
    """Whether PREFECT_PROFILES_PATH names a file of ours that was written for another server than `url`."""
    _, profile = _read(Path(variables.get("PREFECT_PROFILES_PATH", "")))
    return AUTH in profile and profile.get("PREFECT_API_URL", "").rstrip("/") != url.rstrip("/")


def _kept_auth(path: Path) -> str:
    """The secret of a profiles file that only we could have read or written; else nothing."""
    found, profile = _read(path)
    auth = profile.get(AUTH, "")
    if found is None or not auth:
        return ""
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        sys.stderr.write(f"loam: {path} could be read by others, so its secret was replaced. Log in to Prefect's UI again.\n")
        return ""
    return auth


def _read(path: Path) -> tuple[os.stat_result | None, dict[str, str]]:
    """A file's own stat (of a link, not of what it names) and the profile of ours in it; nothing where there is none."""
    try:
        found = path.lstat()
        profile = tomllib.loads(path.read_text(encoding="utf-8"))["profiles"][PROFILE]
    except (OSError, ValueError, KeyError, TypeError):
        return None, {}
    return found, {str(key): str(value) for key, value in profile.items()} if isinstance(profile, dict) else {}
