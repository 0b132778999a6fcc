"""What the kernel knows of other processes: life, memory, and TCP connections to a port."""

from pathlib import Path

_ESTABLISHED = "01"  # Linux, include/net/tcp_states.h


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory")


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def established(port: int) -> int:
    """Count the established connections that were made to a port of this machine."""
    suffix = f":{port:04X}"
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]  # a server may listen on both at once
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return sum(local.endswith(suffix) and state == _ESTABLISHED for _, local, _, state, *_ in rows)


def open_files(pid: int) -> int:
    """Count the open files and sockets of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
