"""A Slurm cluster of two nodes on loopback: its own munged, one slurmctld, two slurmd. All files are in one folder; all is stopped by pid.

Needs Debian's packages slurmctld, slurmd, slurm-client and munge, and root, because slurmd starts jobs as their user.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stages.record.processes import free_port
from tests.conftest import until

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
CONFIG = """ClusterName=loamtest
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=600
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
JobRequeue=1
RequeueExit=75
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=2 State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """The servers of one folder."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        (self.folder / "state").mkdir(parents=True)
        for node in ("node1", "node2"):
            (self.folder / f"spool.{node}").mkdir()
        munge = self.folder / "munge"
        munge.mkdir(mode=0o755)
        (munge / "key").write_bytes(secrets.token_bytes(1024))
        (munge / "key").chmod(0o400)
        ports = {name: free_port() for name in ("port", "one", "two")}
        (self.folder / "slurm.conf").write_text(CONFIG.format(host=socket.gethostname(), folder=self.folder, **ports))
        files = [f"--{name}={munge / name}" for name in ("socket", "pid-file", "log-file", "seed-file", "key-file")]
        self.run("munged", "--force", "--num-threads=2", *(word.replace("/key-file", "/key") for word in files))
        self.controller()
        for node in ("node1", "node2"):
            self.node(node)
        until(lambda: self.states() == {"idle"}, 60)

    def run(self, *words: str) -> str:
        done = subprocess.run(words, env=os.environ | self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def controller(self) -> None:
        self.run("slurmctld", "-f", str(self.folder / "slurm.conf"))

    def node(self, name: str) -> None:
        self.run("slurmd", "-f", str(self.folder / "slurm.conf"), "-N", name)

    def states(self) -> set[str]:
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=os.environ | self.environment, capture_output=True, text=True, check=False)
        return set(done.stdout.split())

    def stop(self, name: str, number: int = signal.SIGKILL) -> None:
        """Ends a server by the pid in its file, and waits until it is gone."""
        path = self.folder / name
        if path.is_file():
            pid = int(path.read_text())
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8"), 30)

    def stop_all(self) -> None:
        for name in ("slurmd.node1.pid", "slurmd.node2.pid", "slurmctld.pid", "munge/pid-file"):
            self.stop(name)


def missing() -> str:
    """Why no cluster can be started here; empty if one can. Installs the packages where that is possible."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        lacks = [name for name in PROGRAMS if not shutil.which(name)]
        return f"it needs root and Debian's packages {', '.join(PACKAGES)}" if lacks or os.geteuid() != 0 else ""
    if not all(shutil.which(name) for name in PROGRAMS):
        command = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        return "" if done.returncode == 0 else f"`{' '.join(command)}` failed: {done.stderr.strip().splitlines()[-1:]}"
    return ""
