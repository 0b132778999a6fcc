"""Merging the servers' metrics pages: each family once, every believable sample, nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.ops.exposition import fleet_page, merge, read_page
from gateway.ports import MetricsPage

INTERLEAVED = """m_a {k="1"} 1 1000
m_b{k="1"} 1
m_a{k="2",} 2
# TYPE m_b gauge
m_b{k="2"} NaN
"""


def merged(**pages: str) -> str:
    return merge(read_page(server, page) for server, page in pages.items())


def test_interleaved_families_come_out_one_after_the_other() -> None:
    assert merged(a=INTERLEAVED) == (
        'm_a{server="a",k="1"} 1\n'
        'm_a{server="a",k="2"} 2\n'
        "# TYPE m_b gauge\n"
        'm_b{server="a",k="1"} 1\n'
        'm_b{server="a",k="2"} NaN\n'
    )


def test_a_family_of_two_servers_has_one_help_and_one_type() -> None:
    page = '# HELP nv_x Text\n# TYPE nv_x counter\nnv_x{model="m",version="1"} 3\n'
    other = '# HELP nv_x Other\n# TYPE nv_x counter\nnv_x{gpu_uuid="g",model="m",version="1"} 4\n'
    assert merged(a=page, b=other) == (
        "# HELP nv_x Text\n# TYPE nv_x counter\n"
        'nv_x{server="a",model="m",version="1"} 3\n'
        'nv_x{server="b",gpu_uuid="g",model="m",version="1"} 4\n'
    )


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("m 1", 'm{server="a"} 1'),
        ("m{} 1", 'm{server="a"} 1'),
        ("m 1e400", 'm{server="a"} +Inf'),
        ("m -1e400", 'm{server="a"} -Inf'),
        ("m Nan", 'm{server="a"} NaN'),
        ("m +Inf", 'm{server="a"} +Inf'),
        ("m Infinity", 'm{server="a"} +Inf'),
        ("m 1.5e-3", 'm{server="a"} 1.5e-3'),
        ('m{k="a\\\\b"} 1', 'm{server="a",k="a\\\\b"} 1'),
        ('m{k="say \\"x\\""} 1', 'm{server="a",k="say \\"x\\""} 1'),
        ('m{k="two\\nlines"} 1', 'm{server="a",k="two\\nlines"} 1'),
        ('m{k="}"} 1', 'm{server="a",k="}"} 1'),
        ('m{k=",",l="="} 1', 'm{server="a",k=",",l="="} 1'),
        ('m{k="\\q"} 1', 'm{server="a",k="\\\\q"} 1'),
        ('m{server="x"} 1', 'm{server="a",exported_server="x"} 1'),
    ],
)
def test_a_sample_keeps_its_labels_and_value(line: str, sample: str) -> None:
    assert merged(a=line) == sample + "\n"


@pytest.mark.parametrize(
    "line",
    [
        "<html><body>It works!</body></html>",
        "m",
        "m one",
        "m 1_000",
        "m 0x10",
        "m 1 2 3",
        'm{k="1"',
        "m{k=1} 1",
        'm{k="1",k="2"} 1',
        'm{k="1" l="2"} 1',
        'm{9="1"} 1',
        "9m 1",
        "",
    ],
)
def test_what_is_no_sample_is_left_out(line: str) -> None:
    assert merged(a=line) == ""


def test_of_a_series_that_is_there_twice_one_stays() -> None:
    assert merged(a="m 1\nm 1\nm 2\n") == 'm{server="a"} 2\n'


def test_line_ends_of_windows_and_a_missing_last_one_are_read() -> None:
    assert merged(a='# TYPE m gauge\r\nm 1\r\nm{k="2"} 2') == (
        '# TYPE m gauge\nm{server="a"} 1\nm{server="a",k="2"} 2\n'
    )


def test_a_family_without_samples_keeps_its_type() -> None:
    assert merged(a="# HELP m Text\n# TYPE m counter\n") == "# HELP m Text\n# TYPE m counter\n"


def test_the_parts_of_a_histogram_stay_together() -> None:
    page = "# TYPE h histogram\n" + 'h_bucket{le="+Inf"} 1\nh_sum 2\nh_count 1\n'
    assert merged(a=page, b=page).splitlines() == [
        "# TYPE h histogram",
        'h_bucket{server="a",le="+Inf"} 1',
        'h_sum{server="a"} 2',
        'h_count{server="a"} 1',
        'h_bucket{server="b",le="+Inf"} 1',
        'h_sum{server="b"} 2',
        'h_count{server="b"} 1',
    ]


def test_types_that_differ_leave_a_family_untyped_and_whole() -> None:
    gauge, histogram = "# TYPE m gauge\nm 1\n", "# TYPE m histogram\nm_sum 2\nm_count 1\n"
    assert merged(a=gauge, b=histogram) == (
        'm{server="a"} 1\nm_count{server="b"} 1\nm_sum{server="b"} 2\n'
    )


def test_help_with_stray_backslashes_is_made_readable() -> None:
    assert merged(a="# HELP m C:\\dir\n# TYPE m gauge\nm 1\n").startswith("# HELP m C:\\\\dir\n")


def test_the_page_says_what_came_of_each_server() -> None:
    page = fleet_page(
        [
            MetricsPage("a", "m 1\n", None, 0.25),
            MetricsPage("b", None, "refused", 0.5),
            MetricsPage("c", "<html>", None, 0.5),
        ]
    )
    for line in (
        'triton_gateway_fleet_scrape_up{server="a"} 1',
        'triton_gateway_fleet_scrape_up{server="b"} 0',
        'triton_gateway_fleet_scrape_up{server="c"} 0',
        'triton_gateway_fleet_scrape_duration_seconds{server="a"} 0.250000',
        'triton_gateway_fleet_scrape_samples{server="a"} 1',
        'm{server="a"} 1',
    ):
        assert line in page.splitlines()


_LINES = st.one_of(
    st.text(max_size=40),
    st.builds(
        "{} {}{} {}".format,
        st.sampled_from(["# TYPE", "# HELP", ""]),
        st.sampled_from(["m", "m_sum", "m_bucket", "n"]),
        st.sampled_from(["", '{le="1"}', '{quantile="0.5"}', '{k="v"}', '{k="', "{"]),
        st.sampled_from(["1", "NaN", "1e400", "gauge", "counter", "histogram", "summary", "x"]),
    ),
)


@given(st.lists(st.lists(_LINES, max_size=12).map("\n".join), max_size=4))
def test_any_pages_make_one_that_a_reader_takes(pages: list[str]) -> None:
    """No series twice, no family twice, whatever the servers write."""
    text = merge(read_page(f"s{i}", page) for i, page in enumerate(pages))
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(set(series)) == len(series)
    types = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(set(types)) == len(types)
    list(text_string_to_metric_families(text))
