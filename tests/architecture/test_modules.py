"""The shape of the project: modules stand alone, names are ours, the wheel holds what it must."""

import importlib.util
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "routing", "config")


def _modules() -> list[str]:
    return sorted(
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages([str(ROOT / package)], prefix=f"{package}.")
        if module.name != "gateway.__main__"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_generic_import_name_resolves_to_this_project(package: str) -> None:
    """Another distribution with the same import name would shadow ours."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin) == ROOT / package / "__init__.py"


_IMPORT_EACH_ALONE = """
import gc, importlib, json, os, sys

gc.disable()
ours = ("gateway", "routing", "config")

def in_a_fork(work):
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.write(writer, json.dumps(work()).encode())
            code = 0
        except BaseException as error:
            sys.stderr.write(f"{error!r}\\n")
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    return json.loads(text) if os.waitpid(child, 0)[1] == 0 else None

def others():
    for name in sys.argv[1:]:
        importlib.import_module(name)
    return [name for name in sys.modules if name.split(".")[0] not in ours]

# What is not ours is imported once: that is nearly all of the time.
for name in in_a_fork(others) or ():
    try:
        importlib.import_module(name)
    except ImportError:
        pass
assert not [name for name in sys.modules if name.split(".")[0] in ours]
failed = [m for m in sys.argv[1:] if in_a_fork(lambda: bool(importlib.import_module(m))) is None]
sys.exit(f"do not import alone: {failed}" if failed else 0)
"""


def test_every_module_imports_alone() -> None:
    """Each module works as the first of ours that an interpreter imports, warnings being errors."""
    parts = os.cpu_count() or 1
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _IMPORT_EACH_ALONE, *_modules()[part::parts]],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "0"},
        )
        for part in range(parts)
    ]
    said = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * parts, said


def test_importing_starts_nothing() -> None:
    """Import neither starts a thread nor opens a socket, whatever is imported."""
    script = (
        "import importlib, os, sys, threading\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "links = [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')"
        " if os.path.exists(f'/proc/self/fd/{fd}')]\n"
        "assert not [link for link in links if link.startswith('socket:')], links\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *_modules()],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr


def test_what_few_need_is_not_loaded_for_all() -> None:
    """Redis, tokens and discovery are switched on; each worker would carry their libraries."""
    script = (
        "import sys, gateway.cli\n"
        "rare = {'redis', 'jwt', 'cryptography', 'dns', 'kubernetes_asyncio', 'pytriton'}\n"
        "loaded = rare & {name.split('.')[0] for name in sys.modules}\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_routing_uses_the_standard_library_only() -> None:
    """A decision must not depend on what is installed."""
    script = (
        "import sys, pkgutil, importlib\n"
        "before = set(sys.modules)\n"
        "import routing\n"
        "for m in pkgutil.walk_packages(routing.__path__, 'routing.'):"
        " importlib.import_module(m.name)\n"
        "new = {n.split('.')[0] for n in set(sys.modules) - before} - {'routing'}\n"
        "assert new <= set(sys.stdlib_module_names), new - set(sys.stdlib_module_names)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
