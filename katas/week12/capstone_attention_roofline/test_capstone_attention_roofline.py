"""Work, times and verdicts computed again, artifacts opened, and tampering that must not pass."""

import csv
import io
import json
import math
import re
from dataclasses import asdict, astuple, fields, replace

import pytest

DERIVED = ("flops", "bytes", "stored_bytes", "intensity", "flops_per_s", "fraction")


@pytest.fixture
def machine(kata):
    """Half an H200 with a round ridge of 200 FLOP/byte."""
    return lambda: kata.Machine(name="half", peak=500e12, bandwidth=2.5e12, l2_bytes=50_000_000)


@pytest.fixture
def shape(kata):
    """A shape of half-precision heads of 128, unless told otherwise."""

    def make(n, **more):
        given = {"batch": 2, "heads": 16, "d": 128, "itemsize": 2, "causal": False}
        return kata.Shape(n=n, **{**given, **more})

    return make


@pytest.fixture
def shapes(shape):
    """Memory- and compute-bound ones, causal and not."""
    return lambda: [shape(512), shape(64, causal=True), shape(2048), shape(2048, causal=True)]


@pytest.fixture
def rows(kata, oracle, machine, shapes):
    """The rows that the virtual bench gives an honest clock."""

    def make():
        gpu = machine()
        return [
            oracle.row(kata, impl, one, gpu, samples(oracle, impl, one, gpu))
            for one in shapes()
            for impl in kata.IMPLS
        ]

    return make


@pytest.fixture
def folder(kata, machine, rows, tmp_path):
    """A folder with the artifacts of honest rows."""

    def make():
        save(kata.artifacts(rows(), machine()), tmp_path)
        return tmp_path

    return make


def samples(oracle, impl, shape, machine, launches=20):
    seconds = oracle.true_seconds(impl, shape, machine)
    return [seconds * oracle.jitter(i) for i in range(launches)]


def save(artifacts, folder):
    for name, text in artifacts.items():
        (folder / name).write_text(text, encoding="utf-8")


def table_of(rows):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(rows[0])])
    writer.writerows(astuple(row) for row in rows)
    return text.getvalue()


def assert_same(found, expected):
    """All columns of two lists of rows."""
    assert [row.impl for row in found] == [row.impl for row in expected]
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        for name, value in asdict(other).items():
            close = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
            assert getattr(one, name) == close, (
                f"row {number}, {other.impl} at n = {other.n}: {name}: "
                f"expected {value}, found {getattr(one, name)}"
            )


# ---- work ----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("impl", ["naive", "sdpa", "flash"])
def test_work_follows_from_the_shape(kata, oracle, shape, impl, causal):
    for one in (
        shape(1, causal=causal, d=1, batch=1, heads=1),
        shape(7, causal=causal, itemsize=4, batch=3, heads=5, d=16),
        shape(2**54 + 1, causal=causal),  # as a float it is 2**54
    ):
        assert astuple(kata.work(impl, one)) == oracle.work(impl, one)


def test_work_that_cannot_be_is_refused(kata, shape):
    with pytest.raises(ValueError, match="^impl: "):
        kata.work("cudnn", shape(8))
    for name in ("batch", "heads", "n", "d", "itemsize"):
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.work("flash", replace(shape(8), **{name: 0}))


# ---- measuring -----------------------------------------------------------------------------


def test_rows_are_what_an_honest_clock_says(kata, oracle, machine, shapes, rows):
    bench = oracle.VirtualBench(kata, machine())
    assert_same(kata.measure(bench.attentions(), shapes(), machine(), bench), rows())


def test_percentiles_are_of_all_samples_that_came_back(kata, oracle, machine, shape):
    one, gpu = shape(512), machine()
    bench = oracle.VirtualBench(kata, gpu, timed=200)
    expected = [
        oracle.row(kata, impl, one, gpu, samples(oracle, impl, one, gpu, launches=200))
        for impl in kata.IMPLS
    ]
    assert_same(kata.measure(bench.attentions(), [one], gpu, bench), expected)


def test_each_implementation_is_timed_once_a_shape(kata, oracle, machine, shapes, cost):
    bench = oracle.VirtualBench(kata, machine())
    kata.measure(bench.attentions(), shapes(), machine(), bench)
    assert set(bench.asked) == {(kata.REPETITIONS, 2 * machine().l2_bytes)}
    cost.check("timings", len(bench.timed) / len(shapes()))


def test_all_are_timed_on_the_same_inputs(kata, oracle, machine, shapes):
    bench = oracle.VirtualBench(kata, machine())
    kata.measure(bench.attentions(), iter(shapes()), machine(), bench)
    assert bench.shapes == shapes()


@pytest.mark.parametrize("wrong", ["sdpa", "flash"])
def test_what_is_wrong_is_not_timed(kata, oracle, machine, shape, wrong):
    # right at n = 512, wrong beyond
    bench = oracle.VirtualBench(kata, machine(), wrong=wrong)
    with pytest.raises(ValueError, match=f"^{wrong}: "):
        kata.measure(bench.attentions(), [shape(512), shape(1024)], machine(), bench)
    late = [(impl, one.n) for impl, one in bench.timed if one.n > 512]
    assert not late, f"{wrong} disagrees at n = 1024: expected nothing timed there, found {late}"


@pytest.mark.parametrize("missing", ["naive", "sdpa", "flash"])
def test_all_implementations_are_needed(kata, oracle, machine, shape, missing):
    bench = oracle.VirtualBench(kata, machine())
    impls = bench.attentions()
    del impls[missing]
    with pytest.raises(ValueError, match="^impls: "):
        kata.measure(impls, [shape(512)], machine(), bench)


def test_times_above_the_roof_are_not_believed(kata, oracle, machine, shape):
    # a clock that is read before the work is done: 0.75 of the roof becomes 1.05 of it
    bench = oracle.VirtualBench(kata, machine(), clock=0.75 / 1.05)
    with pytest.raises(ValueError, match=r"^bench\.csv:3: flops_per_s: "):
        kata.measure(bench.attentions(), [shape(2048)], machine(), bench)


@pytest.mark.parametrize(
    ("broken", "told"),
    [({"clock": 0.0}, "p20_s"), ({"clock": math.nan}, "p20_s"), ({"timed": 4}, "repetitions")],
    ids=["stands still", "has no time", "loses launches"],
)
def test_a_broken_clock_is_noticed(kata, oracle, machine, shape, broken, told):
    bench = oracle.VirtualBench(kata, machine(), **broken)
    with pytest.raises(ValueError, match=rf"^bench\.csv:2: {told}: "):
        kata.measure(bench.attentions(), [shape(2048)], machine(), bench)


def test_nothing_measured_is_no_result(kata, oracle, machine):
    bench = oracle.VirtualBench(kata, machine())
    with pytest.raises(ValueError, match=r"^bench\.csv: "):
        kata.measure(bench.attentions(), [], machine(), bench)


# ---- what to do next -----------------------------------------------------------------------


def flash_rows(kata, oracle, machine, times):
    """Rows of all implementations; `times` has (shape, seconds of flash)."""
    made = []
    for one, seconds in times:
        for impl in kata.IMPLS:
            taken = seconds if impl == "flash" else 100 * seconds
            made.append(oracle.timed_row(kata, impl, one, machine, taken, taken, taken))
    return made


def test_the_next_step_is_where_most_time_is_lost(kata, oracle, machine, shape):
    # n = 256 runs at a tenth of its roof, n = 4096 at half of it, which is more time; n = 65536,
    # which takes longer still, is a clock's error above the roof
    gpu = machine()
    short, long = shape(256, causal=True), shape(4096)
    times = [(short, 10 * roof_seconds(oracle, short, gpu))]
    times += [(long, 2 * roof_seconds(oracle, long, gpu)), (shape(64), 1e-6)]
    times += [(shape(65536), roof_seconds(oracle, shape(65536), gpu) / 1.015)]
    step = kata.next_step(flash_rows(kata, oracle, gpu, times), gpu)
    found = step.n, step.causal, step.bound, step.gain
    assert found == (4096, False, "compute", pytest.approx(2.0, rel=1e-9))


def test_the_first_of_equals_is_the_next_step(kata, oracle, machine, shape):
    # twice the batch and half the heads: the same work, the same time
    gpu = machine()
    times = [(shape(512, batch=b, heads=64 // b), 1e-3) for b in (2, 4)]
    rows = [replace(row, n=row.n + row.batch) for row in flash_rows(kata, oracle, gpu, times)]
    assert kata.next_step(rows, gpu).n == 514


def test_the_ridge_bounds_by_compute(kata, oracle, machine, shape):
    # intensity of flash without statistics is n / 2 in half precision: take the ridge from a row
    one = shape(512)
    flops, moved, _ = oracle.work("flash", one)
    for below, bound in ((1.0, "compute"), (1.001, "memory")):
        gpu = replace(machine(), bandwidth=1e12, peak=flops / moved * 1e12 * below)
        step = kata.next_step(flash_rows(kata, oracle, gpu, [(one, 1.0)]), gpu)
        assert step.bound == bound, f"intensity {flops / moved}, ridge {gpu.peak / gpu.bandwidth}"


def roof_seconds(oracle, shape, machine):
    flops, moved, _ = oracle.work("flash", shape)
    return flops / oracle.roof(flops / moved, machine)


# ---- artifacts -----------------------------------------------------------------------------


def test_the_table_holds_every_row_to_the_last_digit(kata, machine, rows):
    text = kata.artifacts(rows(), machine())["bench.csv"]
    assert text == table_of(rows())


@pytest.mark.parametrize("order", [1, -1], ids=["as_measured", "reversed"])
def test_the_points_follow_from_the_rows(kata, oracle, machine, rows, order):
    gpu, made = machine(), rows()[::order]
    results = json.loads(kata.artifacts(made, gpu)["roofline.json"])
    assert results["machine"] == asdict(gpu)
    assert results["next_step"] == asdict(kata.next_step(made, gpu))
    naive = {(row.n, row.causal): row.p50_s for row in made if row.impl == "naive"}
    for row, point in zip(made, results["points"], strict=True):
        allowed = oracle.roof(row.intensity, gpu)
        assert point == {
            "impl": row.impl,
            "n": row.n,
            "causal": row.causal,
            "intensity": row.intensity,
            "flops_per_s": row.flops_per_s,
            "roof": allowed,
            "fraction": row.fraction,
            "bound": "memory" if row.intensity < 200 else "compute",
            "speedup": pytest.approx(naive[row.n, row.causal] / row.p50_s, rel=1e-12),
        }


def test_a_shape_is_more_than_its_length(kata, oracle, machine, shape, tmp_path):
    # shapes that differ in one thing each; naive takes 100 times as long as flash in all of them
    gpu, others = machine(), ({"heads": 32}, {"batch": 4}, {"d": 64}, {"itemsize": 1})
    shapes = [shape(512, **more) for more in ({}, *others, {"causal": True})]
    times = [(one, 0.01 * (i + 1)) for i, one in enumerate(shapes)]
    made = flash_rows(kata, oracle, gpu, times)
    save(kata.artifacts(made, gpu), tmp_path)
    points = json.loads((tmp_path / "roofline.json").read_text(encoding="utf-8"))["points"]
    assert [point["speedup"] for point in points] == pytest.approx([1, 1, 100] * len(shapes))
    assert_same(kata.load(tmp_path, gpu), made)


def test_the_plot_shows_the_points(kata, machine, rows):
    text = kata.artifacts(rows(), machine())["roofline.svg"]
    found = re.findall(r'<circle [^>]*data-impl="(\w+)" data-x="([^"]+)" data-y="([^"]+)"', text)
    assert [(impl, float(x), float(y)) for impl, x, y in found] == [
        (row.impl, row.intensity, row.flops_per_s) for row in rows()
    ]


def test_numbers_of_the_report_are_in_the_results(kata, machine, rows):
    made = kata.artifacts(rows(), machine())
    points = json.loads(made["roofline.json"])["points"]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in made["REPORT.md"].splitlines()
        if re.match(r"\| \d", line)
    ]
    times, places = lines[: len(points)], lines[len(points) :]
    for row, point, found in zip(rows(), points, times, strict=True):
        start = [str(row.n), str(row.causal), row.impl]
        assert found == [*start, f"{row.p50_s * 1e3:.4g}", f"{point['speedup']:.4g}"]
    for row, point, found in zip(rows(), points, places, strict=True):
        start = [str(row.n), str(row.causal), row.impl]
        numbers = [row.intensity, row.flops_per_s / 1e12, point["roof"] / 1e12, row.fraction]
        assert found == [*start, *(f"{number:.4g}" for number in numbers), point["bound"]]


def test_the_report_says_what_to_do_next(kata, machine, rows):
    report = kata.artifacts(rows(), machine())["REPORT.md"]
    step = kata.next_step(rows(), machine())
    assert report.startswith("# Attention on half\n")
    assert report.rsplit("\n## Next step\n\n", 1)[1] == (
        f"flash at n = {step.n}, causal = {step.causal}: bound by {step.bound}, "
        f"at most {step.gain:.4g} times faster.\n"
    )


# ---- what is refused -----------------------------------------------------------------------


def test_honest_artifacts_are_read_back(kata, machine, rows, folder):
    assert_same(kata.load(folder(), machine()), rows())


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_number_that_was_changed_is_refused(kata, machine, rows, folder, name):
    # of so many FLOPs that one more is less than 1e-9 of them
    value = getattr(rows()[10], name)
    place = folder()
    for wrong in [value + 1] if isinstance(value, int) else [value * (1 + 1e-6), math.nan]:
        changed = rows()
        changed[10] = replace(changed[10], **{name: wrong})
        (place / "bench.csv").write_text(table_of(changed), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"^bench\.csv:12: {name}: "):
            kata.load(place, machine())


def test_rows_may_come_in_any_order(kata, machine, rows, tmp_path):
    # flash before naive, and the shapes of one implementation after the other
    made = sorted(rows(), key=lambda row: (row.impl, row.n))
    save(kata.artifacts(made, machine()), tmp_path)
    assert_same(kata.load(tmp_path, machine()), made)


def test_digits_past_the_ninth_are_not_looked_at(kata, machine, rows, tmp_path):
    floats = ("intensity", "flops_per_s", "fraction")
    nearly = [
        replace(row, **{name: getattr(row, name) * (1 + 1e-11) for name in floats})
        for row in rows()
    ]
    save(kata.artifacts(nearly, machine()), tmp_path)
    assert len(kata.load(tmp_path, machine())) == len(nearly)


@pytest.mark.parametrize("line_end", ["\r\n", "\r"], ids=["crlf", "cr"])
def test_a_table_may_be_spelt_otherwise(kata, machine, rows, folder, line_end):
    place = folder()
    text = (place / "bench.csv").read_text(encoding="utf-8")
    (place / "bench.csv").write_bytes(text.replace("\n", line_end).encode())
    assert_same(kata.load(place, machine()), rows())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("impl", "cudnn"),
        ("heads", 0),
        ("repetitions", 4),
        ("p20_s", 0.0),
        ("p20_s", -1e-9),
        ("p50_s", 1e-12),
        ("p80_s", 1e-12),
        ("p80_s", math.inf),
        ("p80_s", math.nan),
    ],
)
def test_a_row_that_cannot_be_is_refused(kata, machine, rows, folder, name, value):
    changed = rows()
    changed[1] = replace(changed[1], **{name: value})
    place = folder()
    (place / "bench.csv").write_text(table_of(changed), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^bench\.csv:3: {name}: "):
        kata.load(place, machine())


@pytest.mark.parametrize(("share", "fits"), [(1.019, True), (1.021, False)], ids=["in", "out"])
def test_a_clock_may_err_by_two_percent(kata, oracle, machine, shape, tmp_path, share, fits):
    gpu = machine()
    made = flash_rows(kata, oracle, gpu, [(shape(64), 1.0)])
    seconds = roof_seconds(oracle, shape(64), gpu) / share
    # and five repetitions, all alike, are enough
    made[2] = oracle.timed_row(kata, "flash", shape(64), gpu, seconds, seconds, seconds, 5)
    save(kata.artifacts(made, gpu), tmp_path)
    if fits:
        assert_same(kata.load(tmp_path, gpu), made)
    else:
        with pytest.raises(ValueError, match=r"^bench\.csv:4: flops_per_s: "):
            kata.load(tmp_path, gpu)


@pytest.mark.parametrize("what", ["dropped", "doubled", "replaced", "none"])
def test_every_shape_has_each_implementation_once(kata, machine, rows, folder, what):
    made = rows()
    changed = {
        "dropped": made[:4] + made[5:],
        "doubled": [*made, made[4]],
        "replaced": made[:4] + made[5:6] + made[5:],
        "none": [],
    }[what]
    header = table_of(made).splitlines()[0] + "\n"
    place = folder()
    text = table_of(changed) if changed else header
    (place / "bench.csv").write_text(text, encoding="utf-8")
    where = r"n = 64: " if changed else ""
    with pytest.raises(ValueError, match=rf"^bench\.csv: {where}"):
        kata.load(place, machine())


@pytest.mark.parametrize(
    ("line", "old", "new", "told"),
    [
        (0, "p50_s", "median_s", "bench.csv:1: "),
        (0, "impl,batch", "batch,impl", "bench.csv:1: "),
        (2, "sdpa,2,", "sdpa,two,", "bench.csv:3: batch: "),
        (2, "False", "0", "bench.csv:3: causal: "),
        (2, "sdpa,2,", "sdpa,", "bench.csv:3: "),
        (2, "sdpa,2,", "\nsdpa,2,", "bench.csv:3: "),
        (2, "sdpa,2,", "\xff,2,", "bench.csv:3: impl: "),
    ],
    ids=["renamed", "reordered", "no_number", "no_bool", "short", "blank", "no_text"],
)
def test_a_table_that_cannot_be_read_is_refused(kata, machine, folder, line, old, new, told):
    place = folder()
    lines = (place / "bench.csv").read_text(encoding="utf-8").splitlines()
    assert old in lines[line]
    lines[line] = lines[line].replace(old, new)
    (place / "bench.csv").write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    with pytest.raises(ValueError, match="^" + re.escape(told)):
        kata.load(place, machine())


@pytest.mark.parametrize("change", ["digit", "space", "line ends", "no text"])
@pytest.mark.parametrize("name", ["roofline.json", "roofline.svg", "REPORT.md"])
def test_a_file_that_says_something_else_is_refused(kata, machine, folder, name, change):
    place = folder()
    text = (place / name).read_text(encoding="utf-8")
    last = max(i for i, sign in enumerate(text) if sign.isdigit())
    other = {
        "digit": text[:last] + str((int(text[last]) + 1) % 10) + text[last + 1 :],
        "space": text + "\n",
        "line ends": text.replace("\n", "\r\n"),
        "no text": text + "\xff",
    }[change]
    (place / name).write_bytes(other.encode("latin-1"))
    with pytest.raises(ValueError, match="^" + re.escape(name)):
        kata.load(place, machine())


def test_all_times_divided_by_two_are_noticed(kata, oracle, machine, rows, shapes, folder):
    # a faster clock: the table hangs together, but what was made of the old one does not
    halves = [
        oracle.timed_row(
            kata, row.impl, one, machine(), row.p20_s / 2, row.p50_s / 2, row.p80_s / 2
        )
        for row, one in zip(rows(), (one for one in shapes() for _ in kata.IMPLS), strict=True)
    ]
    halves = [new if new.fraction < 1 else old for new, old in zip(halves, rows(), strict=True)]
    place = folder()
    (place / "bench.csv").write_text(table_of(halves), encoding="utf-8")
    with pytest.raises(ValueError, match=r"^(roofline|REPORT)\."):
        kata.load(place, machine())


# ---- all of it, and for real ---------------------------------------------------------------


def test_everything_is_written_and_the_next_step_told(kata, oracle, machine, shapes, tmp_path):
    bench = oracle.VirtualBench(kata, machine())
    step = kata.capstone_attention_roofline(
        bench.attentions(), iter(shapes()), machine(), bench, tmp_path
    )
    rows = kata.load(tmp_path, machine())
    assert len(bench.timed) == len(rows), "expected one timing a row"
    assert step == kata.next_step(rows, machine())
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        ["bench.csv", "roofline.json", "roofline.svg", "REPORT.md"]
    )


def test_a_real_device_is_measured(kata, shape, device, tmp_path):
    # no roof is near: what is judged is that real attentions, timed for real, make honest rows
    import torch

    def naive(inputs, causal):
        q, k, v = inputs
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if causal:
            scores = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -torch.inf)
        return torch.softmax(scores, dim=-1) @ v

    def sdpa(inputs, causal):
        return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)

    gpu = kata.Machine(name=device, peak=1e18, bandwidth=1e18, l2_bytes=1_000_000)
    shapes = [shape(n, itemsize=4, d=16, heads=2, causal=n > 32) for n in (32, 64)]
    impls = {"naive": naive, "sdpa": sdpa, "flash": sdpa}
    kata.capstone_attention_roofline(impls, shapes, gpu, kata.TorchBench(device), tmp_path)
    rows = kata.load(tmp_path, gpu)
    assert [(row.impl, row.n) for row in rows] == [(i, n) for n in (32, 64) for i in kata.IMPLS]
