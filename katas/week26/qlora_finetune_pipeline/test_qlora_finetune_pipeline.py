"""Runs of three methods, killed and resumed; what is kept, what is merged, what is reported."""

import copy
import itertools
import os
import signal
import threading

import numpy as np
import pytest
import torch
import torch._dynamo  # by an optimizer, else in each fork anew

from harness.meters.dispatch import dispatch_meter
from harness.simulators.ranks import RankFailed

SHORT = {"steps": 9, "every": 2, "dropout": 0.3}


@pytest.fixture
def start(kata, oracle, tmp_path):
    """A function that runs in a folder of this test, on the same data each time."""
    data = oracle.write_data(tmp_path / "data")

    def run(folder="run", *, load=None, meter=None, then=None, clock=None, **changes):
        ticks, peaks = itertools.count(), []

        def on_step(step, loss):
            if meter is not None:
                peaks.append(meter.peak_live_bytes)
                meter.peak_live_bytes = 0
            if then is not None:
                then(step, loss)

        report = kata.run(
            kata.Config(**changes), load or oracle.loader(kata), data, oracle.held_out(),
            tmp_path / folder, clock=clock or (lambda: float(next(ticks))), on_step=on_step,
        )  # fmt: skip
        return report if meter is None else peaks[-1]

    return run


def large(kata):
    """A model whose weights are much more than its activations: 1.1 MB of them."""
    torch.manual_seed(1)
    return kata.Tiny(d=128, ffn=512)


# ---- killed: first, while no test has trained in this process, which forks -----------------


# before a checkpoint, with one, between two, at the very end
@pytest.mark.parametrize(("method", "kills"), [("full", (7,)), ("qlora", (1, 4, 7, 9))], ids=str)
def test_a_killed_run_ends_like_any_other(kata, oracle, start, ranks, tmp_path, method, kills):
    if not oracle.kept(kata):
        oracle.kept(kata).update(ranks.alone(lambda: oracle.pretrained(kata)))
    ways = {"method": method, **SHORT}
    ledger = tmp_path / "ledger"

    def run(folder, kill_at=None):
        def then(step, loss):
            with ledger.open("a") as file:
                file.write(f"{folder} {step} {loss!r}\n")
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        return start(folder, then=then, **ways)

    def resumed(_rank, _world):
        whole = run("whole")
        return whole.losses, [(one.losses, one.steps_run) for one in map(run, map(str, kills))]

    for at in kills:
        with pytest.raises(RankFailed):
            ranks(1, lambda _rank, _world, at=at: run(str(at), kill_at=at))
    ((want, found),) = ranks(1, resumed)
    losses = {}
    for line in ledger.read_text().splitlines():
        folder, step, loss = line.split()
        losses.setdefault(folder, {}).setdefault(int(step), set()).add(loss)
    # what was being written may have been lost, but not the checkpoint before
    steps = {1: (9,), 4: (5, 7), 7: (3, 5), 9: (0, 1)}
    for at, (at_the_end, steps_run) in zip(kills, found, strict=True):
        assert losses[str(at)] == losses["whole"], f"losses by step, killed after {at}"
        assert at_the_end == want, f"killed after {at}"
        assert steps_run in steps[at], f"killed after {at}: {steps_run} more steps"


# ---- stream --------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [1, 8, 50, 200])  # 128 rows an epoch: 200 cross two of its ends
def test_batches_come_in_order_from_anywhere(kata, oracle, tmp_path, b):
    data = oracle.write_data(tmp_path / "data")
    count = max(4, 300 // b)
    want = oracle.order(data, b, 3, count)
    position, stream = (0, 0), kata.batches(data, b, 3)
    places = [position]
    for truth in want:
        rows, position = next(stream)
        places.append(position)
        assert rows.dtype == torch.int64
        assert torch.equal(rows, truth)
    for at in sorted({0, 1, 2, count // 2, count - 1}):
        rows, after = next(kata.batches(data, b, 3, places[at]))
        assert torch.equal(rows, want[at]), f"batch {at}, resumed from {places[at]}"
        assert after == places[at + 1]


def test_a_batch_is_read_when_it_is_asked_for(kata, oracle, tmp_path):
    data = oracle.write_data(tmp_path / "data", (4, 4))
    first, second = (sorted(data.glob("*"))[at] for at in (0, 1))
    np.save(first, np.load(first) * 0)
    stream = kata.batches(data, 4, 0)
    next(stream)
    next(stream)
    for file in (first, second):
        np.save(file, np.full((4, 17), 2**53 + 1))  # which no float holds
    assert next(stream)[0].unique().tolist() == [2**53 + 1]
    for file in (first, second):
        np.save(file, np.full((4, 17), 65535, dtype=np.uint16))
    next(stream)
    assert next(stream)[0].unique().tolist() == [65535]


def test_nothing_to_read_is_refused(kata, oracle, tmp_path):
    with pytest.raises(ValueError, match="^data: "):
        next(kata.batches(oracle.write_data(tmp_path / "none", (0, 0)), 0, 0))
    with pytest.raises(ValueError, match="^data: "):
        next(kata.batches(tmp_path, 1, 0))
    with pytest.raises(ValueError, match="^b: "):
        next(kata.batches(oracle.write_data(tmp_path / "some"), 0, 0))


# ---- model ---------------------------------------------------------------------------------


def test_what_is_trained(kata, oracle):
    names = [
        f"blocks.{at}.{one}.{part}" for at in (0, 1) for one in ("up", "down") for part in "ab"
    ]
    for method in kata.METHODS:
        model = oracle.loader(kata)()
        given = model.state_dict()
        cfg = kata.Config(method=method, r=3, alpha=6.0, dropout=0.25)
        assert kata.prepare(model, cfg) is model
        trained = [name for name, one in model.named_parameters() if one.requires_grad]
        assert trained == (list(given) if method == "full" else names)
        if method == "full":
            continue
        layers = [one for one in model.modules() if type(one) is kata.LoraLinear]
        assert [(one.s, one.drop.p, len(one.a)) for one in layers] == [(2.0, 0.25, 3)] * 4
        kinds = {type(one.weight) for one in layers}
        assert kinds == ({torch.Tensor} if method == "lora" else {kata.Packed})


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_merged_models_are_those_that_were_trained(kata, oracle, method):
    model = kata.prepare(oracle.loader(kata)(), kata.Config(method=method)).eval()
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith(".b"):
                one.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.1)
    rows = oracle.held_out()
    sums = {}
    for at, name in itertools.product((0, 1), ("up", "down")):
        layer = getattr(model.blocks[at], name)
        base = layer.weight if method == "lora" else layer.weight.dequant()
        sums[f"blocks.{at}.{name}.weight"] = base + layer.s * layer.b.detach() @ layer.a.detach()
    before = model(rows).detach()
    for requantise in (False, True):
        merged = copy.deepcopy(model)
        assert kata.merge(merged, requantise) is merged
        assert list(merged.state_dict()) == list(kata.Tiny().state_dict())
        assert type(merged.blocks[0].up) is torch.nn.Linear
        for name, want in sums.items():
            found = merged.state_dict()[name]
            if requantise:
                want = kata.Packed(want).dequant()
            assert (found - want).abs().max() <= 1e-6, f"{name}, requantised: {requantise}"
        if not requantise:
            assert (merged(rows) - before).abs().max() <= 1e-4
        with pytest.raises(ValueError, match="^model: "):
            kata.merge(merged, requantise)


def test_every_token_counts_once(kata, oracle):
    model = kata.prepare(oracle.loader(kata)(), kata.Config(method="lora", dropout=0.9))
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith(".b"):
                one.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.3)
    rows = oracle.held_out()
    want = oracle.loss(copy.deepcopy(model).eval(), rows)
    for b in (1, 8, 36, 37, 100):  # 37 rows: a last batch of one
        for training in (True, False):
            model.train(training)
            model.blocks[0].train(not training)
            modes = [one.training for one in model.modules()]
            assert kata.evaluate(model, rows, b) == pytest.approx(want, rel=1e-5)
            found = [one.training for one in model.modules()]
            assert found == modes, f"modes of the modules: expected {modes}, found {found}"


# ---- checkpoints ---------------------------------------------------------------------------


def test_saving_returns_before_it_is_written(kata, tmp_path):
    go, begun = threading.Event(), []

    def write(state, path):
        begun.append(go.wait(2))
        torch.save(state, path)

    checkpoints = kata.Checkpoints(tmp_path / "runs" / "run", write)
    weights = torch.arange(4.0)
    checkpoints.save(7, {"weights": weights, "step": 7, "deep": [({0: weights},)]})
    weights.add_(1)  # the training goes on
    assert checkpoints.latest() is None
    go.set()
    checkpoints.wait()
    assert begun == [True], "expected save to return while it is written, it waited"
    found = checkpoints.latest()
    assert found["weights"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert found["deep"][0][0][0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_torn_file_is_not_seen(kata, tmp_path):
    torn = []

    def write(state, path):
        if not torn and state["step"] == 20:
            torn.append(path)
            path.write_bytes(b"half of it")
            raise OSError("disk full")
        torch.save(state, path)

    checkpoints = kata.Checkpoints(tmp_path / "run", write)
    checkpoints.save(9, {"step": 9})
    checkpoints.save(20, {"step": 20})
    with pytest.raises(OSError, match="disk full"):
        checkpoints.wait()
    checkpoints.wait()  # said once
    assert checkpoints.latest() == {"step": 9}
    torn[0].write_bytes(b"half of it")  # whatever was done about it
    again = kata.Checkpoints(tmp_path / "run", write)
    assert again.latest() == {"step": 9}
    again.save(100, {"step": 100})
    again.wait()
    assert again.latest() == {"step": 100}
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert len(files) == 1, f"expected the last checkpoint alone, found {files}"


def test_an_error_shows_at_the_next_save(kata, tmp_path):
    def write(state, path):
        raise OSError("disk full")

    checkpoints = kata.Checkpoints(tmp_path / "run", write)
    checkpoints.save(1, {})
    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(2, {})
    assert checkpoints.latest() is None


# ---- runs ----------------------------------------------------------------------------------


def test_three_methods_learn(start, oracle, cost):
    reports = {method: start(method, method=method) for method in ("full", "lora", "qlora")}
    base = reports["full"].losses["base"]
    gained = {}
    for method, report in reports.items():
        losses = report.losses
        names = ["base", "adapter"] + (["merged", "requantised"] if method != "full" else [])
        assert list(losses) == names
        assert losses["base"] == base
        gained[method] = base - losses["adapter"]
        assert gained[method] >= 0.6 * base
        if method != "full":
            assert losses["merged"] == pytest.approx(losses["adapter"], abs=1e-4)
            assert losses["requantised"] != losses["merged"]
            assert losses["requantised"] <= losses["merged"] + 0.2
    cost.check("qlora_gains", gained["qlora"] / gained["full"])


def test_two_runs_share_nothing(start):
    first = start("first", **SHORT)
    torch.rand(5)
    second = start("second", **SHORT)
    assert first.losses == second.losses
    other = start("third", **{**SHORT, "seed": 1})
    assert other.losses != first.losses


def test_a_finished_run_trains_no_more(start):
    first = start(**SHORT)
    again = start(**SHORT)
    assert again.steps_run == 0
    assert again.losses == first.losses
    assert again.stages["train"].tokens == 0


def test_a_run_hears_of_its_last_write(start, tmp_path):
    def then(step, _loss):
        if step == 8:  # nothing was written yet, and nothing can be written now
            (tmp_path / "run").rename(tmp_path / "gone")
            (tmp_path / "run").write_text("no folder")

    heard = None
    try:
        start(then=then, **{**SHORT, "every": 9})
    except NotImplementedError:
        raise
    except (OSError, RuntimeError) as error:
        heard = error
    assert heard is not None, "expected the error of the last write, found a report"


def test_another_config_is_refused(start):
    start(**SHORT)
    for changes in ({"lr": 0.01}, {"steps": 10}, {"method": "ia3"}, {"seed": 2}):
        with pytest.raises(ValueError, match="^config: "):
            start(**{**SHORT, **changes})
    with pytest.raises(ValueError, match="^method: "):
        start("other", method="ia3")


def test_the_report_adds_up(start, oracle):
    report = start(**SHORT)
    held = oracle.held_out()[:, 1:].numel()
    tokens = {name: stage.tokens for name, stage in report.stages.items()}
    assert tokens == {
        "stream": 0, "train": 9 * 8 * 16, "checkpoint": 0, "merge": 0, "evaluate": 4 * held,
    }  # fmt: skip
    # each look at the clock of this test is a second later than the one before
    seconds = {name: stage.seconds for name, stage in report.stages.items()}
    assert all(value > 0 for value in seconds.values()), f"found {seconds}"
    assert sum(seconds.values()) < 300
    assert report.steps_run == 9


def test_a_second_belongs_to_one_stage(kata, oracle, start):
    passed = [0.0]

    def forward(module, _inputs):
        passed[0] += 1000 if module.training else 1

    def load():
        model = oracle.loader(kata)()
        model.embed.register_forward_pre_hook(forward)
        return model.eval()  # run has to switch it

    report = start(load=load, clock=lambda: passed[0], **SHORT)
    # a forward pass takes 1 s in eval mode and 1000 s in training mode, everything else nothing:
    # 9 steps; 4 evaluations of 37 rows, 8 at a time
    seconds = {name: stage.seconds for name, stage in report.stages.items()}
    assert seconds == {
        "stream": 0, "train": 9 * 1000, "checkpoint": 0, "merge": 0, "evaluate": 4 * 5,
    }  # fmt: skip


def test_the_base_does_not_change(kata, oracle, start):
    made = []

    def load():
        made.append(oracle.loader(kata)())
        return made[-1]

    start(load=load, **SHORT)
    given = oracle.loader(kata)().state_dict()
    for name, one in made[0].state_dict().items():
        if name in given:
            assert torch.equal(one, given[name]), f"{name} has changed"


def test_four_bits_need_little_memory_and_disk(kata, start, tmp_path, cost):
    size = sum(one.nbytes for one in large(kata).state_dict().values())
    peaks, on_disk = {}, 0
    for method in kata.METHODS:
        changes = {"method": method, "steps": 2, "every": 1, "b": 1, "r": 1}
        with dispatch_meter() as counted:
            peaks[method] = start(method, load=lambda: large(kata), meter=counted, **changes)
        files = [file for file in (tmp_path / method).rglob("*") if file.is_file()]
        on_disk = sum(file.stat().st_size for file in files)
    cost.check("lora_of_full", peaks["lora"] / peaks["full"])
    cost.check("qlora_of_full", peaks["qlora"] / peaks["full"])
    cost.check("checkpoint_of_base", on_disk / size)
