"""`kata lines`: the source of kernels with what each line did."""

import pytest

from harness.base.errors import UsageProblem
from harness.reports.listing import Listing, listed


def test_lines_of_cuda_are_those_of_the_file(fresh):
    found = listed(fresh("cuda"), 2, "sm_80")
    (row,) = (row for row in found.rows if row.requests)
    assert row.text.strip() == "if (at < n) y[at] = 2 * x[at];"

    assert (row.requests, row.sectors, row.bytes_moved) == (64, 250, 8000)
    assert found.kernels == {"fresh": 1}
    assert found.hazards == ()
    assert Listing.from_json(found.as_json()) == found


def test_triton_is_compiled_and_its_code_executed(fresh):
    pytest.importorskip("triton")
    found = listed(fresh("triton"), 2, "sm_90")
    moved = {row.text.strip().partition("(")[0]: row.bytes_moved for row in found.rows}
    assert {words: count for words, count in moved.items() if count} == {
        "x = tl.load": 4000,
        "tl.store": 4000,
    }


def test_a_kata_without_kernels_has_no_lines(fresh):
    with pytest.raises(UsageProblem, match="whose backend is python"):
        listed(fresh("python"), 1, "sm_90")


def test_bytes_are_counted_on_the_simulator_of_numba(fresh):
    found = listed(fresh("numba"), 2, "sm_90")
    (row,) = (row for row in found.rows if row.requests)
    assert row.bytes_moved == 2 * 4 * 1000  # each float32 is loaded and stored


def test_a_limit_of_registers_changes_no_count(fresh):
    reference = fresh("numba")
    before = listed(reference, 2, "sm_90").rows
    source = reference.path.read_text()
    reference.path.write_text(source.replace("@cuda.jit\n", "@cuda.jit(max_registers=64)\n"))
    assert "max_registers" in reference.path.read_text()
    assert listed(reference, 2, "sm_90").rows == before
