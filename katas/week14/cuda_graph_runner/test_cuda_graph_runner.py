"""Steps by graphs against steps without: logits, the state, and what a call and a pool take."""

import pytest
import torch

VOCAB = 24
BUCKETS = [2, 8, 4, 1]


@pytest.fixture
def served(kata, oracle, device, seed):
    """A captured runner, its state, a twin of that, the step and the graphs."""

    def make(buckets=BUCKETS, graphs=None, sequences=11):
        if graphs is None:
            graphs = oracle.CudaGraphs() if device == "cuda" else oracle.FakeGraphs()
        step = oracle.Decoder(device=graphs.device, seed=seed)
        state = oracle.make_state(sequences=sequences, device=graphs.device, seed=seed)
        return kata.GraphRunner(step, state, buckets, graphs), state, state.twin(), step, graphs

    return make


def tokens_of(batch, seed, device="cpu"):
    return torch.randint(
        0, VOCAB, (batch,), generator=torch.Generator().manual_seed(1000 * seed + batch)
    ).to(device)


def assert_close(found, expected, what):
    assert found.shape == expected.shape, (
        f"{what}: expected the shape {[*expected.shape]}, found {[*found.shape]}"
    )
    apart = (found - expected).abs()
    row = int(apart.flatten(1).amax(dim=1).nan_to_num(9e9).argmax())
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9), (
        f"{what}: row {row}: expected {expected[row].flatten()[:3].tolist()} …, "
        f"found {found[row].flatten()[:3].tolist()} …"
    )


def assert_same_state(state, twin, what):
    found, expected = state.lengths.tolist(), twin.lengths.tolist()
    assert found == expected, f"{what}: lengths: expected {expected}, found {found}"
    for name in ("keys", "values"):
        found, expected = getattr(state, name), getattr(twin, name)
        assert_close(found.transpose(0, 1), expected.transpose(0, 1), f"{what}: {name}")


def assert_untouched(state, before, first, what):
    """Fail unless the sequences from `first` on have kept their bits."""
    for name in ("keys", "values"):
        found, expected = getattr(state, name)[:, first:], getattr(before, name)[:, first:]
        assert torch.equal(found, expected), f"{what}: {name} of sequences from {first} on changed"
    found, expected = state.lengths[first:].tolist(), before.lengths[first:].tolist()
    assert found == expected, f"{what}: lengths from {first} on: expected {expected}, found {found}"


# ---- steps ---------------------------------------------------------------------------------------


# one; an exact bucket; between two; the largest; above it
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 8, 9, 11])
def test_a_step_is_that_without_graphs(served, device, seed, batch):
    runner, state, twin, step, _ = served()
    runner.capture()
    tokens = tokens_of(batch, seed, device)
    expected = step(tokens, twin)
    assert_close(runner(tokens), expected, f"{batch} tokens, buckets {BUCKETS}: logits")
    assert_same_state(state, twin, f"{batch} tokens, buckets {BUCKETS}")


def test_many_steps_of_changing_batches(served, device, seed):
    runner, state, twin, step, _ = served()
    runner.capture()
    for call, batch in enumerate((8, 3, 4, 4, 1, 10, 7, 2, 5, 8, 6)):
        tokens = tokens_of(batch, seed + call, device)
        expected = step(tokens, twin)
        assert_close(runner(tokens), expected, f"call {call}, {batch} tokens: logits")
    assert_same_state(state, twin, "after 11 calls")


def test_rows_that_pad_leave_their_sequences_alone(served, device, seed):
    runner, state, _, _, _ = served()
    runner.capture()
    runner(tokens_of(8, seed, device))
    for batch in (5, 3, 1):
        before = state.twin()
        runner(tokens_of(batch, seed, device))
        assert_untouched(state, before, batch, f"{batch} tokens after a batch of 8")


# part of a bucket; all of one
@pytest.mark.parametrize("batch", [3, 4])
def test_earlier_results_stay_what_they_are(served, device, seed, batch):
    runner, _, _, _, _ = served()
    runner.capture()
    first = runner(tokens_of(batch, seed, device))
    kept = first.clone()
    for later in (4, 3, 8, 1):
        runner(tokens_of(later, seed + 1, device))
        assert torch.equal(first, kept), (
            f"a result of {batch} rows changed in a call with {later} tokens: "
            f"expected {kept[0, :3].tolist()} …, found {first[0, :3].tolist()} …"
        )


def test_results_are_the_callers_to_change(served, device, seed):
    runner, _, twin, step, _ = served()
    runner.capture()
    for call in range(2):
        tokens = tokens_of(4, seed + call, device)
        expected, found = step(tokens, twin), runner(tokens)
        assert_close(found, expected, f"call {call}: logits")
        found.fill_(7)


# a batch for a graph; one without
@pytest.mark.parametrize("batch", [6, 11])
def test_tokens_are_left_as_they_are(served, device, seed, batch):
    runner, _, twin, step, _ = served()
    runner.capture()
    whole = tokens_of(2 * batch, seed, device)
    before, every_other = whole.clone(), whole[1::2]
    expected = step(every_other, twin)
    assert_close(runner(every_other), expected, f"every other of {2 * batch} tokens: logits")
    assert torch.equal(whole, before), f"tokens: expected {before}, found {whole}"


def test_capture_leaves_the_state_as_it_is(served):
    runner, state, before, _, _ = served()
    runner.capture()
    assert_untouched(state, before, 0, f"capture of {BUCKETS}")


# ---- graphs --------------------------------------------------------------------------------------


def test_each_bucket_is_captured_once(served, oracle):
    graphs = oracle.FakeGraphs()
    buckets = [4, 1, 8, 4, 1]
    runner, *_ = served(buckets=buckets, graphs=graphs)
    assert graphs.captured == [], "captured by the constructor"
    runner.capture()
    assert sorted(graphs.captured) == [1, 4, 8]
    assert buckets == [4, 1, 8, 4, 1], f"the list of buckets was changed: {buckets}"


def test_buckets_may_change_afterwards(served, oracle, seed):
    buckets = [2, 4]
    graphs = oracle.FakeGraphs()
    runner, *_ = served(buckets=buckets, graphs=graphs)
    buckets[:] = [1]
    runner.capture()
    runner(tokens_of(3, seed))
    assert graphs.replayed == [4]


# batches of 9 and 10 run without a graph; one and two digits
@pytest.mark.parametrize(
    ("buckets", "replayed"),
    [(BUCKETS, [1, 2, 4, 4, 8, 8, 8, 8]), ([9, 3, 10], [3, 3, 3, 9, 9, 9, 9, 9, 9, 10])],
    ids=str,
)
def test_the_smallest_bucket_that_holds_the_batch_is_replayed(
    served, oracle, seed, buckets, replayed
):
    graphs = oracle.FakeGraphs()
    runner, *_ = served(buckets=buckets, graphs=graphs)
    runner.capture()
    for batch in range(1, 11):
        runner(tokens_of(batch, seed))
    assert graphs.replayed == replayed, (
        f"batches of 1 to 10, buckets {buckets}: expected {replayed}, found {graphs.replayed}"
    )


def test_each_bucket_is_warmed_up(oracle, kata, seed):
    class Fused(oracle.Decoder):
        """Launches kernels of its own for one token, and for two."""

        def __call__(self, tokens, state):
            logits = super().__call__(tokens, state)
            return {1: torch.neg, 2: torch.abs}.get(len(tokens), torch.clone)(logits)

    step = Fused(device="cpu", seed=seed)
    state = oracle.make_state(sequences=4, device="cpu", seed=seed)
    twin = state.twin()
    runner = kata.GraphRunner(step, state, [2, 1, 4], oracle.FakeGraphs())
    runner.capture()
    for batch in (1, 2, 4):
        tokens = tokens_of(batch, seed)
        expected = step(tokens, twin)
        assert_close(runner(tokens), expected, f"{batch} tokens, buckets [2, 1, 4]: logits")


def test_what_a_capture_raises_goes_through(served, oracle, kata, seed):
    class Impatient(oracle.Decoder):
        def __call__(self, tokens, state):
            if tokens.max().item() > VOCAB:
                raise AssertionError
            return super().__call__(tokens, state)

    state = oracle.make_state(sequences=4, device="cpu", seed=seed)
    step = Impatient(device="cpu", seed=seed)
    runner = kata.GraphRunner(step, state, [2], oracle.FakeGraphs())
    with pytest.raises(RuntimeError, match="aten._local_scalar_dense"):
        runner.capture()


# ---- what it takes -------------------------------------------------------------------------------


def test_a_call_is_one_replay_and_few_copies(served, oracle, dispatch, cost, seed):
    graphs = oracle.FakeGraphs()
    runner, _, _, step, _ = served(graphs=graphs)
    runner.capture()
    worst = 0
    for batch in (3, 8, 1):
        tokens, runs, replays = tokens_of(batch, seed), step.runs, len(graphs.replayed)
        with oracle.Launches() as counted:
            runner(tokens)
        assert len(graphs.replayed) == replays + 1, f"{batch} tokens: expected one replay"
        assert step.runs == runs, f"{batch} tokens: the step itself was called"
        worst = max(worst, len(counted.names) + 1)
    cost.check("launches", worst)
    with dispatch() as counted:
        runner(tokens_of(3, seed))
    cost.check("host_syncs", counted.host_syncs)


def test_all_buckets_share_the_memory_of_the_largest(served, oracle, cost):
    shares = []
    for buckets in ([1, 2, 4, 8], [8, 4, 2, 1], [3, 10, 6]):
        graphs = oracle.FakeGraphs()
        runner, _, _, step, _ = served(buckets=buckets, graphs=graphs)
        runner.capture()
        shares.append(graphs.pool_bytes / oracle.captured_bytes(step, max(buckets)))
    cost.check("pool_bytes", max(shares))


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("buckets", [[], [0], [4, -1, 2]], ids=str)
def test_buckets_that_cannot_be_are_refused(kata, oracle, seed, buckets):
    step = oracle.Decoder(device="cpu", seed=seed)
    state = oracle.make_state(sequences=4, device="cpu", seed=seed)
    with pytest.raises(ValueError, match="^buckets: "):
        kata.GraphRunner(step, state, buckets, oracle.FakeGraphs())


# a batch for a graph, one without, and none
@pytest.mark.parametrize("batch", [2, 9, 0])
def test_a_step_before_capture_is_refused(served, oracle, seed, batch):
    runner, state, before, _, _ = served(graphs=oracle.FakeGraphs())
    with pytest.raises(RuntimeError, match="capture"):
        runner(tokens_of(batch, seed))
    assert_untouched(state, before, 0, "a step that was refused")


def test_a_batch_without_tokens_is_refused(served, oracle):
    runner, *_ = served(graphs=oracle.FakeGraphs())
    runner.capture()
    with pytest.raises(ValueError, match="^tokens: "):
        runner(torch.zeros(0, dtype=torch.int64))


# ---- time ----------------------------------------------------------------------------------------


def test_kernels_wait_for_the_host_or_for_each_other(kata, oracle):
    for n, kernel_us, launch_us in ((1, 3, 5), (100, 2, 5), (100, 5, 2), (60, 4, 4), (7, 0.5, 0)):
        found = kata.step_time_us(n, kernel_us, launch_us, False)
        assert found == pytest.approx(oracle.eager_time(n, kernel_us, launch_us)), (
            f"{n} kernels of {kernel_us} us, {launch_us} us to launch each: found {found}"
        )


def test_a_graph_is_launched_once(kata, oracle):
    for n, kernel_us, gap_us in ((1, 3, 1), (100, 2, 0), (1000, 1.5, 0.7)):
        found = kata.step_time_us(n, kernel_us, 5.0, True, gap_us)
        assert found == pytest.approx(oracle.graph_time(n, kernel_us, gap_us)), (
            f"a graph of {n} kernels of {kernel_us} us, gaps of {gap_us} us: found {found}"
        )
    assert kata.step_time_us(100, 2.0, 5.0, graph=True) == pytest.approx(202.6)
    assert kata.step_time_us(100, 2.0, 5.0, graph=False, node_gap_us=9.0) == pytest.approx(502)


@pytest.mark.parametrize("n", [0, -3])
def test_no_kernels_are_refused(kata, n):
    for graph in (False, True):
        with pytest.raises(ValueError, match="^n: "):
            kata.step_time_us(n, 2.0, 5.0, graph)
