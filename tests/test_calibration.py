"""Ceilings of one machine: what is measured, what is kept, what is read back; no GPU needed."""

import os
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.base.errors import DeviceError, MetadataError
from harness.hardware.environment import session_profile
from harness.hardware.profiles import Cost, find_profile, load_profiles, speed_of_light
from harness.judge.timing.calibration import Workload, as_toml, best_rates, checked, workloads

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "hardware_profiles"
H200 = find_profile(FOLDER, "h200_sxm")
MOMENT = datetime(2026, 11, 21, 14, tzinfo=UTC)
FOUND = {"launch": 2.4e-6, "bandwidth": 4.21e12, "float16": 742e12, "tf32": 390e12}
SHAPE = (32, 48, 64)


@pytest.fixture
def kept(tmp_path):
    """A folder of ceilings with this text for the H200."""

    def keep(text):
        (tmp_path / "h200_sxm.toml").write_text(text)
        return tmp_path

    return keep


class TestWorkloads:
    @pytest.fixture
    def small(self):
        before = torch.get_float32_matmul_precision()
        yield {one.name: one for one in workloads(H200, "cpu", 4096, [SHAPE])}
        torch.set_float32_matmul_precision(before)

    def test_copy_reads_and_writes_triad_reads_twice(self, small):
        assert small["copy"].work == 2 * 4096
        assert small["triad"].work == 3 * 4096

    @pytest.mark.parametrize("dtype", ["float32", "tf32", "float16", "bfloat16"])
    def test_a_matmul_does_the_flops_it_counts(self, small, dtype):
        one = small[f"{dtype} matmul 32 x 48 x 64"]
        with FlopCounterMode(display=False) as counter:
            result = one.call()
        assert counter.get_total_flops() == one.work == 2 * 32 * 48 * 64
        assert result.shape == (32, 48)
        assert one.ceiling == dtype

    def test_float8_is_a_scaled_matmul(self, small):
        one = small["float8 matmul 32 x 48 x 64"]
        assert one.call().shape == (32, 48)
        assert (one.ceiling, one.work) == ("float8", 2 * 32 * 48 * 64)

    def test_precision_is_set_while_its_workload_is_timed(self):
        before = torch.get_float32_matmul_precision()
        seen = {
            one.ceiling: torch.get_float32_matmul_precision()
            for one in workloads(H200, "cpu", 4096, [SHAPE])
        }
        torch.set_float32_matmul_precision(before)
        assert seen["float32"] == "highest"
        assert seen["tf32"] == "high"

    def test_only_what_the_device_supports_is_run(self):
        t4 = find_profile(FOLDER, "t4")
        ceilings = {one.ceiling for one in workloads(t4, "cpu", 4096, [SHAPE])}
        assert ceilings == {"bandwidth", "float32", "float16"}

    def test_the_best_of_each_ceiling_counts(self):
        calls = {name: (lambda name=name: name) for name in ("copy", "triad", "small", "large")}
        seconds = {"copy": 1.0, "triad": 0.5, "small": 1.0, "large": 4.0}
        found = [
            Workload(name="copy", ceiling="bandwidth", work=2e12, call=calls["copy"]),
            Workload(name="triad", ceiling="bandwidth", work=1.5e12, call=calls["triad"]),
            Workload(name="small", ceiling="float16", work=6e14, call=calls["small"]),
            Workload(name="large", ceiling="float16", work=20e14, call=calls["large"]),
        ]
        told = []
        rates = best_rates(found, lambda call: seconds[call()], told.append)
        assert rates == {"bandwidth": 3e12, "float16": 6e14}
        assert [re.sub(" +", " ", line) for line in told] == [
            "copy 2.00 TB/s",
            "triad 3.00 TB/s",
            "small 600.00 TFLOP/s",
            "large 500.00 TFLOP/s",
        ]


class TestFit:
    def test_what_fits_is_returned(self):
        assert checked(H200, FOUND) == FOUND

    def test_the_maximum_clock_may_be_reached(self):
        """132 x 4096 x 1.98 GHz are 1070.5 TFLOP/s, 8 % more than the datasheet's."""
        assert checked(H200, {**FOUND, "float16": 1070e12})

    def test_a_ceiling_of_another_device_is_a_mismatch(self):
        h100 = {**FOUND, "bandwidth": 2.2e12, "float16": 1100e12}
        with pytest.raises(DeviceError) as caught:
            checked(H200, h100)
        message = caught.value.message
        assert message.startswith("h200_sxm: profile mismatch, nothing was kept:")
        assert "bandwidth_bytes_per_s: expected 2.4e+12 to 4.896e+12" in message
        assert "peak_flops_per_s.float16: expected 4.947e+14 to 1.092e+15" in message
        assert "tf32" not in message


class TestKeeping:
    def test_what_is_kept_is_what_is_read(self, kept):
        folder = kept(as_toml("h200_sxm", "NVIDIA H200", FOUND, MOMENT))
        text = tomllib.loads((folder / "h200_sxm.toml").read_text())
        assert text["device"] == "NVIDIA H200"
        assert text["measured_at"] == "2026-11-21T14:00:00+00:00"
        profile = find_profile(FOLDER, "h200_sxm", calibrated=folder)
        assert {name: profile.measured[name] for name in FOUND} == FOUND

    def test_only_measured_ceilings_are_replaced(self, kept):
        folder = kept(as_toml("h200_sxm", "NVIDIA H200", FOUND, MOMENT))
        profile = find_profile(FOLDER, "h200_sxm", calibrated=folder)
        assert profile.measured["bfloat16"] == H200.measured["bfloat16"] == 788e12
        assert (profile.bandwidth, profile.peak) == (H200.bandwidth, H200.peak)

    def test_speed_of_light_follows_the_calibrated_ceilings(self, kept):
        folder = kept(as_toml("h200_sxm", "NVIDIA H200", FOUND, MOMENT))
        profile = load_profiles(FOLDER, calibrated=folder)["h200_sxm"]
        for cost, seconds in [
            (Cost(bytes=4.21e9), 1e-3),
            (Cost(flops=742e9), 1e-3),
            (Cost(bytes=8), 2.4e-6),
        ]:
            calibrated_s = speed_of_light(cost, "float16", profile, calibrated=True)
            assert calibrated_s == pytest.approx(seconds)
            datasheet_s = speed_of_light(cost, "float16", profile)
            assert datasheet_s == speed_of_light(cost, "float16", H200)

    def test_without_a_file_the_profile_is_as_shipped(self, tmp_path):
        assert find_profile(FOLDER, "h200_sxm", calibrated=tmp_path / "none") == H200

    def test_other_profiles_are_untouched(self, kept):
        folder = kept(as_toml("h200_sxm", "NVIDIA H200", FOUND, MOMENT))
        assert load_profiles(FOLDER, calibrated=folder)["t4"] == find_profile(FOLDER, "t4")

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ('profile = "h200_sxm"', 'profile = "h100_sxm"', "profile: expected one of h200_sxm"),
            ("launch_floor_s = 2.400e-06", "", "launch_floor_s: expected a number, found nothing"),
            ("4.2100e+12", "9.9e12", "bandwidth_bytes_per_s: expected 2.4e+12 to 4.896e+12"),
            ("4.2100e+12", "-4.2e12", "bandwidth_bytes_per_s: expected more than 0"),
            ("tf32", "tf23", "peak_flops_per_s.tf23: expected one of"),
        ],
    )
    def test_a_file_that_was_changed_is_checked_again(self, kept, old, new, expected):
        text = as_toml("h200_sxm", "NVIDIA H200", FOUND, MOMENT)
        assert old in text
        folder = kept(text.replace(old, new))
        with pytest.raises(MetadataError) as caught:
            find_profile(FOLDER, "h200_sxm", calibrated=folder)
        assert str(folder / "h200_sxm.toml") in caught.value.message
        assert expected in caught.value.message
        assert "Delete the file, then: kata profile calibrate" in caught.value.message

    def test_a_session_judges_with_them(self, tmp_path, monkeypatch):
        (tmp_path / "calibrated").mkdir()
        text = as_toml("h200_sxm", "NVIDIA H200", FOUND, MOMENT)
        (tmp_path / "calibrated" / "h200_sxm.toml").write_text(text)
        monkeypatch.setenv("KATA_HOME", str(tmp_path))
        profile = session_profile(ROOT, "h200_sxm", "cpu", None)
        assert profile.measured["float16"] == 742e12


class TestCommand:
    def test_without_a_gpu_it_says_the_way_out(self, kata_command, tmp_path):
        done = kata_command("profile", "calibrate", CUDA_VISIBLE_DEVICES="")
        assert done.returncode == 4
        assert "expected a GPU, found none. Run it on a machine with one." in done.stderr
        assert not (tmp_path / "home" / "calibrated").exists()

    def test_the_child_says_so_too_when_pytorch_has_no_gpu(self, tmp_path):
        command = [
            sys.executable,
            "-m",
            "harness.judge.timing.calibration",
            str(ROOT),
            str(tmp_path),
        ]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
        )
        assert done.returncode == 4
        assert "expected a GPU that PyTorch can use, found none" in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_show_tells_what_was_measured_here(self, kata_command, tmp_path):
        folder = tmp_path / "home" / "calibrated"
        folder.mkdir(parents=True)
        (folder / "h200_sxm.toml").write_text(as_toml("h200_sxm", "X", FOUND, MOMENT))
        shown = kata_command("profile", "show", "h200_sxm").stdout
        assert re.search(r"measured.float16 +742 TFLOP/s$", shown, re.M)
