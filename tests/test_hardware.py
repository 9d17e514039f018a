"""Profiles are sound, times come out as by hand, an unknown device is never guessed."""

import dataclasses
import math
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.base.errors import DeviceError, MetadataError, UsageProblem
from harness.hardware.profiles import (
    Cost,
    Profile,
    bound_by,
    detect_profile,
    find_profile,
    load_profiles,
    physical_limit,
    speed_of_light,
    too_small,
)

FOLDER = Path(__file__).parents[1] / "hardware_profiles"
GIB = 1024**3


@pytest.fixture(scope="module")
def profiles() -> dict[str, Profile]:
    return load_profiles(FOLDER)


@pytest.fixture(scope="module")
def h200() -> Profile:
    return find_profile(FOLDER, "h200_sxm")


def edited(tmp_path: Path, *edits: tuple[str, str]) -> Path:
    """A folder with a copy of the H200's profile, each text replaced by another."""
    text = (FOLDER / "h200_sxm.toml").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "h200_sxm.toml").write_text(text)
    return tmp_path


def complaint(folder: Path) -> str:
    with pytest.raises(MetadataError) as caught:
        load_profiles(folder)
    return caught.value.message


class TestShippedProfiles:
    def test_every_file_loads_under_its_own_name(self, profiles):
        assert set(profiles) == {path.stem for path in FOLDER.glob("*.toml")}
        assert all(profile.id == stem for stem, profile in profiles.items())

    @pytest.mark.parametrize("profile_id", sorted(path.stem for path in FOLDER.glob("*.toml")))
    def test_peak_is_sms_times_rate_times_clock(self, profiles, profile_id):
        profile = profiles[profile_id]
        clock = tomllib.loads((FOLDER / f"{profile_id}.toml").read_text())["clock"]
        assert set(profile.peak) == set(profile.flops_per_clk_per_sm)
        for dtype, peak in profile.peak.items():
            hertz = clock.get("peak_hz_of", {}).get(dtype, clock["peak_hz"])
            product = profile.sms * profile.flops_per_clk_per_sm[dtype] * hertz
            assert product == pytest.approx(peak, rel=0.03)
            assert hertz <= profile.max_clock_hz

    def test_no_two_claim_one_device_name(self, profiles):
        names = [name for profile in profiles.values() for name in profile.device_names]
        assert len(names) == len(set(names))

    def test_geforce_tensor_rate_is_the_one_that_accumulates_in_float32(self, profiles):
        assert profiles["rtx_4090"].peak_of("float16") == 165.2e12
        assert profiles["rtx_3090"].peak_of("bfloat16") == 71e12

    def test_l2_and_last_level_cache_differ_only_with_an_infinity_cache(self, profiles):
        apart = {p.id for p in profiles.values() if p.llc_bytes != p.l2_bytes and p.vendor != "cpu"}
        assert apart == {"mi300x"}
        assert profiles["mi300x"].llc_bytes == 256 * 1024**2

    def test_cpu_is_openly_modelled(self, profiles):
        file = tomllib.loads((FOLDER / "cpu.toml").read_text())
        sections = ("memory", "limits", "clock", "flops_per_clk_per_sm", "peak_flops_per_s")
        figures = {f"{section}.{key}" for section in sections for key in file[section]}
        assert figures <= set(profiles["cpu"].unverified)


class TestSpeedOfLight:
    def test_matmul_is_bound_by_compute(self, h200):
        """2 x 4096^3 = 1.374e11 FLOP at 989.4e12 per second is 138.9 µs; memory needs 21."""
        n = 4096
        matmul = Cost(flops=2 * n**3, bytes=3 * n * n * 2)
        assert speed_of_light(matmul, "bfloat16", h200) == pytest.approx(138.91e-6, rel=1e-4)
        assert bound_by(matmul, "bfloat16", h200) == "compute"

    def test_copy_is_bound_by_memory(self, h200):
        """4.8 GB at 4.8e12 bytes per second is a millisecond."""
        copy = Cost(bytes=4.8e9)
        assert speed_of_light(copy, "float32", h200) == pytest.approx(1e-3)
        assert bound_by(copy, "float32", h200) == "memory"

    def test_exponentials_are_bound_by_special_functions(self, h200):
        """132 SMs x 16 x 1.83 GHz = 3.865e12 results per second."""
        assert h200.special_rate() == pytest.approx(3.865e12, rel=1e-3)
        gate = Cost(flops=4e9, bytes=4e9, special=1e10)
        assert speed_of_light(gate, "float32", h200) == pytest.approx(1e10 / 3.86496e12)
        assert bound_by(gate, "float32", h200) == "special"

    def test_nothing_is_faster_than_a_launch(self, h200):
        tiny = Cost(flops=8, bytes=12)
        assert speed_of_light(tiny, "float32", h200) == h200.launch_s
        assert bound_by(tiny, "float32", h200) == "launch"

    @pytest.mark.parametrize(
        "cost", [Cost(bytes=4.27e9), Cost(flops=788e9)], ids=["bandwidth", "peak"]
    )
    def test_calibrated_uses_what_was_measured(self, h200, cost):
        seconds = speed_of_light(cost, "bfloat16", h200, calibrated=True)
        assert seconds == pytest.approx(1e-3)

    def test_calibrated_falls_back_to_the_datasheet(self, h200):
        bare = dataclasses.replace(h200, measured={})
        copy = Cost(bytes=4.8e9)
        assert speed_of_light(copy, "float32", bare, calibrated=True) == pytest.approx(1e-3)

    def test_float8_formats_share_one_peak(self, h200):
        assert h200.peak_of("float8_e4m3fn") == h200.peak_of("float8_e5m2") == 1979e12

    def test_unsupported_dtype_is_an_error_that_names_the_supported(self, profiles):
        with pytest.raises(DeviceError, match=r"t4: .*bfloat16, found float32, float16, int8"):
            speed_of_light(Cost(flops=1e12), "bfloat16", profiles["t4"])

    def test_a_copy_may_be_of_an_unsupported_dtype(self, profiles):
        assert speed_of_light(Cost(bytes=320e6), "bfloat16", profiles["t4"]) == pytest.approx(1e-3)

    @pytest.mark.parametrize(
        ("cost", "intensity"),
        [(Cost(flops=6, bytes=12), 0.5), (Cost(flops=6), math.inf)],
    )
    def test_intensity_is_flops_per_byte(self, cost, intensity):
        assert cost.intensity == intensity


class TestPhysics:
    def test_arithmetic_runs_at_the_maximum_clock(self, h200):
        """132 SMs x 4096 FLOP/clk x 1.98 GHz = 1.0705e15 per second, not the datasheet's 0.989."""
        assert h200.hard_peak_of("bfloat16") == pytest.approx(1.0705e15, rel=1e-4)
        seconds = physical_limit(Cost(flops=1.0705e12), "bfloat16", h200)
        assert seconds == pytest.approx(1e-3, rel=1e-4)

    def test_a_datasheet_above_its_own_formula_stands(self, profiles):
        """The A100's 312 TFLOP/s are rounded up from 108 x 2048 x 1.41 GHz = 311.9."""
        assert profiles["a100_sxm_80gb"].hard_peak_of("float16") == 312e12

    def test_memory_runs_at_the_datasheets_bandwidth(self, h200):
        assert physical_limit(Cost(bytes=4.8e9), "int64", h200) == pytest.approx(1e-3)

    def test_special_functions_and_launches_can_be_worked_around(self, h200):
        assert physical_limit(Cost(bytes=48, special=1e12), "float32", h200) == 1e-11

    @pytest.mark.parametrize("dtype", ["float32", "tf32", "float16", "float8"])
    def test_no_profile_is_faster_than_its_physics(self, profiles, dtype):
        cost = Cost(flops=1e12, bytes=1e6)
        for profile in profiles.values():
            if dtype in profile.peak:
                ideal_s = speed_of_light(cost, dtype, profile)
                assert physical_limit(cost, dtype, profile) <= ideal_s


class TestSize:
    """An H200 moves 480 MB in 100 µs, and four of its caches hold 252 MB."""

    @pytest.mark.parametrize(
        ("cost", "expected"),
        [
            (Cost(bytes=481e6), None),
            (Cost(bytes=479e6), "small for this device: 99.8 µs of work, 100 wanted"),
            (Cost(flops=99e9), None),  # 100.06 µs, all of it in the cache
            (Cost(flops=98e9), "small for this device: 99 µs of work, 100 wanted"),
        ],
    )
    def test_a_launch_must_be_negligible(self, h200, cost, expected):
        assert too_small(cost, "float16", h200) == expected

    def test_twenty_launches_count_where_they_are_slow(self, h200):
        slow = dataclasses.replace(h200, launch_s=10e-6)
        assert too_small(Cost(bytes=900e6), "float16", slow) == (
            "small for this device: 188 µs of work, 200 wanted"
        )

    def test_what_memory_limits_must_not_fit_the_cache(self, profiles):
        """An MI300X moves 800 MB in 151 µs, but four of its 256 MiB caches hold more."""
        mi300x = profiles["mi300x"]
        expected = "small for this device: 800 MB moved, 1074 wanted"
        assert too_small(Cost(bytes=800e6), "float32", mi300x) == expected
        assert too_small(Cost(bytes=1075e6), "float32", mi300x) is None


class TestFinding:
    def test_misspelt_id_offers_the_nearest(self):
        with pytest.raises(UsageProblem, match="Did you mean h200_sxm"):
            find_profile(FOLDER, "h200sxm")

    def test_a_path_is_not_an_id(self):
        with pytest.raises(UsageProblem, match=r"expected a profile"):
            find_profile(FOLDER / "below", "../t4")

    def test_an_empty_folder_is_an_error(self, tmp_path):
        assert "found none" in complaint(tmp_path)


class TestDetection:
    @pytest.mark.parametrize(
        ("device_name", "profile_id"),
        [("NVIDIA A10", "a10"), ("NVIDIA A10G", "a10g"), ("NVIDIA H200", "h200_sxm")],
    )
    def test_exact_name_decides(self, profiles, device_name, profile_id):
        assert detect_profile(profiles, device_name).id == profile_id

    def test_a_name_outweighs_the_number_of_sms(self, profiles):
        found = detect_profile(profiles, "NVIDIA A10", arch="sm_86", sms=80, memory_bytes=23 * GIB)
        assert found.id == "a10"

    def test_another_amount_of_memory_is_another_variant(self, profiles):
        with pytest.raises(DeviceError, match="found none"):
            detect_profile(
                profiles, "NVIDIA GeForce RTX 3060", arch="sm_86", sms=28, memory_bytes=8 * GIB
            )

    def test_unknown_name_is_matched_by_properties(self, profiles):
        found = detect_profile(
            profiles,
            "AMD Radeon Graphics",
            arch="gfx942:sramecc+:xnack-",
            sms=304,
            memory_bytes=int(1.05 * profiles["mi300x"].memory_bytes),
        )
        assert found.id == "mi300x"

    @pytest.mark.parametrize(
        "properties",
        [
            {"arch": "gfx942", "sms": 228, "memory_bytes": 192 * GIB},
            {"arch": "gfx942", "sms": 304, "memory_bytes": 256 * GIB},
            {"arch": "gfx950", "sms": 304, "memory_bytes": 192 * GIB},
            {"arch": "gfx942", "sms": 304},
        ],
        ids=["sms", "memory", "arch", "memory not read"],
    )
    def test_one_property_off_is_no_match(self, profiles, properties):
        with pytest.raises(DeviceError, match="found none"):
            detect_profile(profiles, "AMD Radeon Graphics", **properties)

    def test_several_alike_are_not_guessed_between(self, profiles):
        with pytest.raises(DeviceError, match=r"a100_pcie_80gb, a100_sxm_80gb.*device_names"):
            detect_profile(profiles, "NVIDIA A800", arch="sm_80", sms=108, memory_bytes=80 * GIB)

    def test_unknown_device_gets_a_file_to_fill_in(self, profiles, tmp_path):
        """The file offered has every key that is needed, and only the zeros are wrong."""
        with pytest.raises(DeviceError, match=r"hardware_profiles/nvidia_x1\.toml") as caught:
            detect_profile(profiles, "NVIDIA X1", arch="sm_99", sms=7, memory_bytes=9 * GIB)
        skeleton = caught.value.message.partition("\n\n")[2]
        skeleton = skeleton.replace("sources = []", 'sources = ["a datasheet"]')
        (tmp_path / "nvidia_x1.toml").write_text(skeleton)
        problems = complaint(tmp_path).splitlines()[1:]
        assert problems
        assert all(problem.endswith("expected more than 0, found 0") for problem in problems)

        (tmp_path / "nvidia_x1.toml").write_text(
            skeleton.replace("peak_hz = 0", "peak_hz = 1e9")
            .replace("max_hz = 0", "max_hz = 1e9")
            .replace("[peak_flops_per_s]\nfloat32 = 0", "[peak_flops_per_s]\nfloat32 = 7e9")
            .replace("= 0\n", "= 1\n")
        )
        added = load_profiles(tmp_path)["nvidia_x1"]
        assert (added.arch, added.sms, added.memory_bytes) == ("sm_99", 7, 9 * GIB)
        assert detect_profile({added.id: added}, "NVIDIA X1") == added


class TestBrokenFiles:
    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ("[limits]", "[limits]\nsm = 132", "limits.sm: expected one of sms, "),
            ('name = "NVIDIA', 'nam = "NVIDIA', "name: expected text, found nothing"),
            ("sms = 132\n", "", "limits.sms: expected a whole number, found nothing"),
            ("[special]", "[specials]", "special.results_per_clk_per_sm: expected a number"),
            ("sms = 132", 'sms = "132"', "limits.sms: expected a whole number, found '132'"),
            ("peak_hz = 1.83e9", "peak_hz = -1.83e9", "clock.peak_hz: expected more than 0"),
            ("max_hz = 1.98e9", "max_hz = nan", "clock.max_hz: expected more than 0, found nan"),
            ("sparse = false", "sparse = true", "sparse: expected false"),
            ('vendor = "nvidia"', 'vendor = "nvida"', "Did you mean nvidia"),
            ("tf32 = 494.7e12", "tf32 = 989.4e12", "peak_flops_per_s.tf32: expected 132 SMs x 204"),
            ("tf32 = 494.7e12", "", "tf32: expected a figure both in flops_per_clk_per_sm and in"),
            ("tf32 = 494.7e12", "tf23 = 494.7e12", "peak_flops_per_s.tf23: expected one of"),
            ("max_hz = 1.98e9", "max_hz = 1.5e9", "clock.max_hz: expected at least 1.98e+09"),
            ("4.27e12", "5.2e12", "bandwidth_bytes_per_s: expected 2.4e+12 to 4.896e+12"),
            ("788.0e12", "300.0e12", "peak_flops_per_s.bfloat16: expected 4.947e+14 to 1.092e+15"),
            ('"launch.floor_s"', '"launch.flor_s"', "Did you mean launch.floor_s"),
            ("latency_s = 2.0e-6  # modelled", "", "link.latency_s: expected a number, found"),
        ],
    )
    def test_problem_is_named_with_its_key(self, tmp_path, old, new, expected):
        assert expected in complaint(edited(tmp_path, (old, new)))

    def test_file_is_named(self, tmp_path):
        assert str(tmp_path / "h200_sxm.toml") in complaint(
            edited(tmp_path, ("sms = 132", "sms = 0"))
        )

    def test_all_problems_of_a_file_are_reported_at_once(self, tmp_path):
        folder = edited(
            tmp_path,
            ("sparse = false", "sparse = true"),
            ("sms = 132", "sms = 132\nlanes = 4"),
            ('arch = "sm_90"\n', ""),
            ("l2_bytes = 62_914_560", 'l2_bytes = "60 MB"'),
            ("tf32 = 494.7e12", "tf32 = 989.4e12"),
        )
        message = complaint(folder)
        for key in ("sparse", "limits.lanes", "arch", "memory.l2_bytes", "peak_flops_per_s.tf32"):
            assert f"  {key}" in message
        assert "5 problem(s)" in message

    def test_a_clock_of_its_own_is_what_the_formula_uses(self, tmp_path):
        folder = edited(tmp_path, ("[clock.peak_hz_of]", "[unused]"), ("float32 = 1.98e9", ""))
        assert "peak_flops_per_s.float32: expected 132 SMs x 256" in complaint(folder)

    def test_a_profile_without_any_peak_is_refused(self, tmp_path):
        text = (FOLDER / "t4.toml").read_text()
        before, _, rest = text.partition("[flops_per_clk_per_sm]")
        after = rest.partition("[special]")[2]
        (tmp_path / "t4.toml").write_text(f"{before}[special]{after}")
        assert "peak_flops_per_s: expected at least one dtype" in complaint(tmp_path)

    def test_figures_from_nowhere_are_refused(self, tmp_path):
        text = (FOLDER / "t4.toml").read_text()
        nowhere = re.sub(r"^sources = \[.*?^\]", "sources = []", text, flags=re.M | re.S)
        (tmp_path / "t4.toml").write_text(nowhere)
        assert "sources: expected at least one, found none" in complaint(tmp_path)

    def test_profile_without_a_link_has_none(self, profiles):
        assert (profiles["cpu"].link_bandwidth, profiles["cpu"].link_latency_s) == (0, 0)


def test_import_leaves_torch_and_numpy_out():
    code = (
        "import sys, harness.hardware.profiles; "
        "sys.exit(' '.join({'torch', 'numpy', 'triton', 'numba'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=FOLDER.parent, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_a_profile_goes_by_its_id_its_architecture_and_its_generation():
    assert find_profile(FOLDER, "a100_sxm_40gb").names == ("a100_sxm_40gb", "sm_80", "ampere")
    generations = {one.names[2] for one in load_profiles(FOLDER).values()}
    assert not any(name.startswith(("sm_", "gfx")) for name in generations)
