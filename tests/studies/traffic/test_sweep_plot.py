from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.operations.attention.problem import Problem
from harness.options.sweep import Sweep, Value
from harness.studies.traffic.sweep_plot import CLAIMED_NOTE, draw_bytes, draw_roofline, series_of
from harness.studies.traffic.sweep_point import SweepPoint
from harness.support.errors import UsageError
from harness.support.gpu_data_sheets import GPUS
from harness.text.drawing import require_drawable

pytestmark = pytest.mark.compiles(False)

pytest.importorskip("matplotlib")
MIB = 2**20
SWEEP = Sweep("q_len", (64, 128, 256))


def point(
    variant: str, value: Value, total: int | None, source: str | None = "counted", **problem: int | str
) -> SweepPoint:
    name, _, backend = variant.rpartition("-")
    made = Problem(**({"q_len": value} | problem))  # type: ignore[arg-type]
    return SweepPoint(variant, name, backend, value, made, source, total, None if total is None else 0)


def line(
    variant: str, scale: int, sources: tuple[str, ...] = ("counted",) * 3, problem: dict[str, str] | None = None
) -> list[SweepPoint]:
    return [point(variant, n, scale * int(n) * MIB, s, **(problem or {})) for n, s in zip(SWEEP.values, sources)]


def words(svg: bytes) -> str:
    """The texts of an SVG: Matplotlib writes each as a comment beside its outlines."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", svg.decode()))


def test_variants_with_the_same_bytes_are_one_line():
    points = [*line("fa2-cupy", 1), *line("fa2-numba", 1), *line("fa1-cupy", 3), *line("mine-cupy", 3)]
    found = series_of(points)
    assert [series.label for series in found] == ["fa2 (cupy, numba)", "fa1-cupy, mine-cupy"]
    assert len({series.colour for series in found}) == len({series.marker for series in found}) == 2
    assert [p.value for p in found[0].points] == [64, 128, 256]


def test_what_has_no_bytes_is_left_out():
    points = [*line("fa2-cupy", 1), point("no-cupy", 64, None, None), point("idle-cupy", 64, 0)]
    assert [series.label for series in series_of(points)] == ["fa2-cupy"]


def test_the_io_bound_is_drawn_where_it_applies():
    long = Sweep("seq_len", (1024, 4096, 16384))
    points = [point("fa2-cupy", n, int(n) * MIB, q_len=n, kv_len=n, head_dim=64, dtype="float16") for n in long.values]
    assert "order of the I/O bound" in words(draw_bytes(long, points, GPUS["h200"], "", ".svg"))
    # With 1,024 keys, K and V of a head fit on chip: (65,536 registers of 4 bytes + 227 KiB) / 2 > 1,024 * 64.
    assert "order" not in words(draw_bytes(Sweep("seq_len", (1024,)), points[:1], GPUS["h200"], "", ".svg"))


def test_the_plot_names_lines_axes_units_and_the_problem():
    points = [*line("fa2-cupy", 1), *line("fa1-cupy", 30)]
    found = words(draw_bytes(SWEEP, points, GPUS["h200"], "batch 1, head_dim 64", ".svg"))
    for text in ("fa2-cupy", "fa1-cupy", "compulsory", "q_len (rows)", "batch 1, head_dim 64", "128"):
        assert text in found, text
    assert "MiB read and written (sectors level, before any cache)" in found
    assert "hollow" not in found


def test_claimed_points_are_hollow_and_it_says_so():
    points = line("fa2-cupy", 1, ("counted", "claimed", "claimed"))
    assert CLAIMED_NOTE in words(draw_bytes(SWEEP, points, GPUS["h200"], "", ".svg")).replace("&#39;", "'")
    filled = draw_bytes(SWEEP, line("fa2-cupy", 1), GPUS["h200"], "", ".svg")
    assert draw_bytes(SWEEP, points, GPUS["h200"], "", ".svg") != filled
    assert draw_bytes(SWEEP, line("fa2-cupy", 1), GPUS["h200"], "", ".svg") == filled


def test_words_lie_on_an_axis_too():
    sweep = Sweep("dtype", ("float32", "float16"))
    points = [SweepPoint("fa2-cupy", "fa2", "cupy", t, Problem(dtype=t), "counted", MIB, 0) for t in sweep.values]
    assert "float16" in words(draw_bytes(sweep, points, GPUS["h200"], "", ".svg"))


def test_png_is_png():
    assert draw_bytes(SWEEP, line("fa2-cupy", 1), GPUS["h200"], "", ".PNG").startswith(b"\x89PNG")


def test_the_roofline_names_the_gpu_its_peaks_and_the_intensities():
    points = [*line("fa2-cupy", 1), *line("fa1-cupy", 30)]
    found = words(draw_roofline(points, SWEEP, GPUS["t4"], "batch 1", ".svg"))
    for text in ("Roofline of T4, q_len 256", "float32, CUDA cores: 8.1 TFLOP/s", "memory: 0.32 TB/s", "batch 1"):
        assert text in found, text
    assert "tensor cores" not in found
    # 4 x 2 heads x 256 x 256 x 64 over 256 MiB, and over the compulsory 0.5 MiB.
    assert f"fa2-cupy: {2**25 / (256 * MIB):.3g}" in found
    assert "compulsory: 64" in found
    assert GPUS["t4"].source in found


def test_a_variant_that_ends_early_says_where():
    points = [*line("fa2-cupy", 1), *line("fa1-cupy", 30)[:2]]
    assert "(at 128)" in words(draw_roofline(points, SWEEP, GPUS["h200"], "", ".svg"))


@pytest.mark.parametrize("draw", ["bytes", "roofline"])
def test_nothing_to_draw_is_no_crash(draw: str):
    nothing = [point("no-cupy", value, None, None) for value in SWEEP.values]
    found = (
        draw_bytes(SWEEP, nothing, GPUS["h200"], "", ".svg")
        if draw == "bytes"
        else draw_roofline(nothing, SWEEP, GPUS["h200"], "", ".svg")
    )
    assert "compulsory" in words(found)


def test_the_name_says_which_kind_of_picture(tmp_path: Path):
    require_drawable(tmp_path / "a.svg")
    for name in ("a.pdf", "a", "png"):
        with pytest.raises(UsageError, match=r"has to end in \.png or \.svg"):
            require_drawable(tmp_path / name)


def test_a_variant_on_tensor_cores_stands_under_their_roof():
    points = [replace(each, uses_tensor_cores=True) for each in line("fa2-mma-cupy", 1, problem={"dtype": "float16"})]
    series = series_of([*points, *line("fa2-cupy", 1)])
    gpu = GPUS["h200"]
    assert {each.label: each.peak_flops(gpu) for each in series} == {
        "fa2-mma-cupy": gpu.tensor_flops["float16"],
        "fa2-cupy": gpu.float32_flops,
    }
    assert "float16, tensor cores: 989" in words(draw_roofline(points, SWEEP, gpu, "", ".svg"))
