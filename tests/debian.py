"""Programs from Debian packages, unpacked without being installed: no rights are needed."""

import shutil
import subprocess
import tempfile
from pathlib import Path

DOWNLOAD_TIMEOUT_S = 120


def unpack(folder: Path, *packages: str) -> bool:
    """Put the contents of packages into `folder`; False where they cannot be had."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        try:
            _in(work, "apt-get", "download", "--quiet", *packages)
            for package in Path(work).glob("*.deb"):
                _in(work, "dpkg", "-x", package.name, "unpacked")
        except (subprocess.SubprocessError, OSError):
            return False
        shutil.rmtree(folder, ignore_errors=True)
        (Path(work) / "unpacked").rename(folder)
    return True


def _in(folder: str, *command: str) -> None:
    subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=DOWNLOAD_TIMEOUT_S,
    )
