"""The merged metrics page of real servers that are restarted and reloaded meanwhile."""

import asyncio
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.clients import infer
from tests.conftest import Launch
from tests.debian import unpack
from tests.gateways import configuration
from tests.serving import Serving, serving_config

MODEL = "identity_fp32"
PROMTOOL_FOLDER = Path(sys.prefix) / "share" / "triton-gateway-tests" / "prometheus"


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' own checker, from Debian's package."""
    found = PROMTOOL_FOLDER / "usr" / "bin" / "promtool"
    if not found.exists() and not unpack(PROMTOOL_FOLDER, "prometheus"):
        pytest.skip("promtool is not to be had: no Debian packages here")
    return found


def check(promtool: Path, page: str) -> None:
    """Fail on a page that Prometheus cannot parse. (Exit code 3 is about style: Triton's names.)"""
    command = [promtool, "check", "metrics"]
    done = subprocess.run(
        command, input=page, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode in (0, 3), done.stderr
    assert "error while linting" not in done.stderr


async def page_of(gateway: Serving) -> str:
    reply = await gateway.ops("/metrics/fleet")
    assert reply.status == 200
    return reply.body.decode()


async def test_scrapes_see_no_series_twice_while_servers_come_and_go(
    launch_triton: Launch, promtool: Path
) -> None:
    a = launch_triton("a", (MODEL,), "--model-control-mode=explicit")
    b = launch_triton("b", (MODEL,), "--model-control-mode=explicit")
    config = configuration({})
    config["servers"] = [
        {
            "name": server.server_id,
            "grpc": server.grpc_address,
            "metrics": server.metrics_url.removeprefix("http://").removesuffix("/metrics"),
        }
        for server in (a, b)
    ]
    pages: list[str] = []
    async with serving_config(config) as gateway:
        for _ in range(8):  # both get some
            await gateway.ask(infer(MODEL, None))

        async def scrape() -> None:
            while True:
                pages.append(await page_of(gateway))
                await asyncio.sleep(0.05)

        scraping = asyncio.ensure_future(scrape())
        await asyncio.to_thread(_reload, a.http_address)
        b.kill()
        await asyncio.sleep(0.3)
        await asyncio.to_thread(b.start)
        await asyncio.to_thread(b.wait_ready)
        await asyncio.sleep(0.3)
        scraping.cancel()
        pages.append(await page_of(gateway))
    for page in pages:
        series = Counter(
            line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")
        )
        assert max(series.values()) == 1
        families = [family.name for family in text_string_to_metric_families(page)]
        assert len(set(families)) == len(families)
    assert any('scrape_up{server="b"} 0' in page for page in pages)
    for page in (pages[0], pages[-1]):
        assert f'nv_inference_request_success{{server="a",model="{MODEL}",version="1"}}' in page
        assert "# TYPE nv_inference_request_success counter\n" in page
        check(promtool, page)


def _reload(http_address: str) -> None:
    for action in ("unload", "load"):
        url = f"http://{http_address}/v2/repository/models/{MODEL}/{action}"
        with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=30):
            pass


def test_odd_pages_merge_into_one_that_prometheus_takes(promtool: Path) -> None:
    from gateway.ops.exposition import merge, read_page

    odd = (
        "# HELP m_a C:\\dir\n# TYPE m_a gauge\n"
        'm_a {k="1"} 1 1000\n'
        'm_b{k="a\\\\b\\"c\\nd},=",} Nan\n'
        'm_a{k="2",} 1e400\r\n# TYPE m_c counter\n'
        '# TYPE h histogram\nh_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\nh_sum -Inf\nh_count 2\n'
        "m_d 1\nm_d 1\n<html>\nm_e 12"
    )
    other = (
        "# TYPE m_a counter\nm_a 2\n# TYPE m_b gauge\nm_b 1\n"
        '# TYPE h histogram\nh_bucket{le="5"} 1\nh_bucket{le="+Inf"} 1\nh_sum 1\nh_count 1\n'
    )
    check(promtool, merge([read_page("a", odd), read_page("b", other)]))
