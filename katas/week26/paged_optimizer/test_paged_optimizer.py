"""Pages come and go as they should, a step is AdamW's, and no copy is made that need not be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import assert_matches
from harness.meters.dispatch import alive_bytes

SHAPES = [(7, 3), (10,), (), (0,), (4, 4)]  # of 3, 2, 1, 0 and 2 pages of 64 bytes: 8 elements


def build(kata, oracle, params, capacity, *, pages=8, pool=None, **settings):
    """Memory, pool and optimizer of copies of `params`, which are returned as well."""
    memory = oracle.Memory(pages, 64, capacity)
    pool = (pool or kata.PagePool)(memory, capacity)
    own = [torch.nn.Parameter(param.clone()) for param in params]
    return memory, pool, own, kata.PagedAdamW(iter(own), pool, **settings)


def step(optimizer, own, grads):
    for param, grad in zip(own, grads, strict=True):
        param.grad = grad
    optimizer.step()


def matrix(oracle, pages, seed, steps):
    """A parameter that fills so many pages of 64 bytes."""
    return oracle.draw([(pages, 8)], steps, seed)


# ---- the pool ------------------------------------------------------------------------------


def test_what_was_written_comes_back(kata, oracle):
    memory = oracle.Memory(3, 16, 1)
    pool = kata.PagePool(memory, 1)
    for page in (0, 1, 2):
        pool.acquire(page).fill_(page + 1)
        pool.release(page, dirty=True)
    for page in (0, 1, 2):
        found = pool.acquire(page).tolist()
        assert found == [page + 1.0] * 4, f"page {page}, written and evicted: {found}"
        pool.release(page, dirty=False)


def test_only_changed_pages_are_written_back(kata, oracle):
    memory = oracle.Memory(3, 16, 1)
    pool = kata.PagePool(memory, 1)
    for page, dirty in ((0, False), (1, True), (0, False), (1, False), (2, False), (1, False)):
        pool.acquire(page)
        pool.release(page, dirty=dirty)
    stored = [page for what, page in memory.log if what == "store"]
    assert stored == [1], f"page 1 was changed once, and evicted twice; written back: {stored}"


def test_a_change_is_not_forgotten(kata, oracle):
    # two users, of whom the first wrote; then a third who did not
    memory = oracle.Memory(2, 16, 1)
    pool = kata.PagePool(memory, 1)
    pool.acquire(0).fill_(5)
    pool.acquire(0)
    pool.release(0, dirty=True)
    pool.release(0, dirty=False)
    pool.acquire(0)
    pool.release(0, dirty=False)
    pool.acquire(1)
    assert memory.host[0].tolist() == [5.0] * 4, f"page 0 after its eviction: {memory.host[0]}"


def test_a_page_on_the_device_is_not_copied_again(kata, oracle):
    memory = oracle.Memory(4, 16, 4)
    pool = kata.PagePool(memory, 4)
    for page in (0, 1, 2, 3, 3, 0, 1, 2):
        pool.acquire(page)
        pool.release(page, dirty=page == 1)
    assert memory.log == [("load", page) for page in range(4)], f"4 pages, room for 4: {memory.log}"


def test_a_page_in_use_stays(kata, oracle):
    memory = oracle.Memory(4, 16, 2)
    pool = kata.PagePool(memory, 2)
    pool.acquire(0)
    frame = pool.acquire(0)  # twice in use
    pool.release(0, dirty=False)
    for page in (1, 2, 3, 1):
        pool.acquire(page)
        pool.release(page, dirty=False)
    assert frame.tolist() == [0.0] * 4, f"page 0, released once of twice: {frame}"
    pool.acquire(3)
    with pytest.raises(RuntimeError):
        pool.acquire(2)  # 0 and 3 are in use
    with pytest.raises(ValueError, match="^page: "):
        pool.release(2, dirty=False)  # it was refused, so nobody uses it
    assert sorted(memory.frames) == [0, 3], f"frames of {sorted(memory.frames)}, expected 0 and 3"


def test_resizing_takes_effect_at_once(kata, oracle):
    memory = oracle.Memory(6, 16, 4)
    pool = kata.PagePool(memory, 4)
    for page in range(4):
        pool.acquire(page).fill_(page + 1)
        if page != 1:
            pool.release(page, dirty=True)
    pool.resize(2)
    assert len(memory.frames) == 2, f"from 4 to 2: frames of {sorted(memory.frames)}"
    assert 1 in memory.frames, f"page 1 is in use: frames of {sorted(memory.frames)}"
    for page in {0, 2, 3} - set(memory.frames):
        assert memory.host[page].tolist() == [page + 1.0] * 4, f"{page} in host memory: evicted"
    memory.limit = 2
    pool.acquire(5)
    pool.acquire(5)
    pool.resize(2)  # as many as are in use, one of them twice
    with pytest.raises(ValueError, match="^capacity: "):
        pool.resize(1)
    assert (pool.capacity, sorted(memory.frames)) == (2, [1, 5]), "changed by what was refused"
    memory.limit = 3
    pool.resize(3)
    pool.acquire(4)
    assert sorted(memory.frames) == [1, 4, 5], f"grown to 3: frames of {sorted(memory.frames)}"


# ---- the optimizer -------------------------------------------------------------------------


@given(n=st.integers(0, 9), at=st.integers(0, 5))
def test_a_scan_has_each_page_once(kata, n, at):
    found = kata.prefetch_order(n, at)
    assert type(found) is list, f"prefetch_order({n}, {at}): expected a list, found {found!r}"
    assert sorted(found) == list(range(n)), f"prefetch_order({n}, {at}): {found}"


def test_twenty_steps_are_those_of_adamw(kata, oracle, seed):
    params, grads = oracle.draw(SHAPES, 20, seed)
    for at, few in enumerate(grads):  # the first has no gradient at times, the second not at first
        few[0] = few[0] if at % 3 else None
        few[1] = few[1] if at > 4 else None
    grads[9][4] = torch.zeros(4, 4)  # which is a gradient
    settings = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
    _, _, own, optimizer = build(kata, oracle, params, 3, **settings)
    for few in grads:
        step(optimizer, own, few)
    want, states = oracle.adamw(params, grads, torch.float64, **settings)
    trusted, trusted_states = oracle.adamw(params, grads, torch.float32, **settings)
    for param, one, other in zip(own, want, trusted, strict=True):
        assert_matches(param.detach(), one, same_precision=other)
    for at, found in enumerate(optimizer.state_dict()):
        assert found["step"] == states[at]["step"], f"parameter {at}: step {found['step']}"
        for name in ("exp_avg", "exp_avg_sq"):
            assert_matches(found[name], states[at][name], same_precision=trusted_states[at][name])


def test_the_budget_changes_no_bit(kata, oracle, seed):
    params, grads = oracle.draw(SHAPES, 6, seed)
    memory, pool, plain, optimizer = build(kata, oracle, params, 8)
    for few in grads:
        step(optimizer, plain, few)
    for capacities in ([1] * 6, [2] * 6, [6, 1, 1, 3, 8, 2]):  # the last with a spike of two steps
        memory, pool, own, optimizer = build(kata, oracle, params, capacities[0])
        for few, capacity in zip(grads, capacities, strict=True):
            pool.resize(capacity)
            memory.limit = capacity
            step(optimizer, own, few)
        for at, (found, want) in enumerate(zip(own, plain, strict=True)):
            assert torch.equal(found, want), f"budgets {capacities}, parameter {at}: other bits"


def test_copies_a_step(kata, oracle, seed, cost):
    # all of 20 pages are needed, so 20 - capacity are not there, and as many others have to go
    worst = 0.0
    params, grads = matrix(oracle, 20, seed, 6)
    for capacity in (1, 2, 5, 10, 18, 19):
        memory, _, own, optimizer = build(kata, oracle, params, capacity, pages=20)
        step(optimizer, own, grads[0])
        warm = len(memory.log)
        for few in grads[1:]:
            step(optimizer, own, few)
        copies = sum(what != "free" for what, _ in memory.log[warm:])
        scan = list(range(20))
        least = oracle.least_loads((scan + scan[::-1]) * 3, capacity) - 20
        assert least == 5 * (20 - capacity)
        worst = max(worst, copies / (2 * least))
    cost.check("copies", worst)


def test_where_all_fit_nothing_moves(kata, oracle, seed):
    params, grads = oracle.draw(SHAPES, 3, seed)
    memory, _, own, optimizer = build(kata, oracle, params, 8)
    for few in grads:
        step(optimizer, own, few)
    assert memory.log == [("load", page) for _, page in memory.log], "expected nothing but loads"
    assert len(memory.log) == 8, f"8 pages, budget 8, 3 steps: {len(memory.log)} loads"


def test_pages_without_gradients_stay(kata, oracle, seed):
    params, grads = oracle.draw(SHAPES, 2, seed)
    memory, _, own, optimizer = build(kata, oracle, params, 2)
    for few in grads:
        step(optimizer, own, [None, few[1], few[2], few[3], None])
    touched = sorted({page for _, page in memory.log})
    assert touched == [3, 4, 5], f"gradients for pages 3, 4 and 5: touched {touched}"


def test_a_step_of_nothing_does_not_turn_the_order(kata, oracle, seed):
    params, grads = oracle.draw([(6, 8), (0,)], 3, seed)
    memory, _, own, optimizer = build(kata, oracle, params, 4)
    for few in grads[:2]:
        step(optimizer, own, few)
        step(optimizer, own, [None, few[1]])  # a gradient without elements has no page
    step(optimizer, own, grads[2])
    assert memory.count("load") == 6 + 2 + 2, f"6 pages, budget 4: {memory.count('load')} loads"
    found = [state["step"] for state in optimizer.state_dict()]
    assert found == [3, 3], f"three steps, and two of nothing: t of {found}, expected 3 and 3"


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_the_next_page_is_fetched_while_one_is_updated(kata, oracle, seed, capacity):
    log, seen = [], {}

    def note_updates():  # a page has a row of the parameter
        for page, row in enumerate(own[0].detach()):
            if not torch.equal(row, seen[page]):
                log.append(("update", page))
            seen[page] = row.clone()

    class Spy(kata.PagePool):
        def acquire(self, page):
            note_updates()
            log.append(("acquire", page))
            return super().acquire(page)

        def release(self, page, dirty):
            note_updates()
            log.append(("release", page))
            super().release(page, dirty)

    params, grads = matrix(oracle, 6, seed, 2)
    _, _, own, optimizer = build(kata, oracle, params, capacity, pool=Spy)
    seen.update(enumerate(params[0]))
    for few in grads:
        log.clear()
        step(optimizer, own, few)
        note_updates()
        order = [page for what, page in log if what == "acquire"]
        want = [("acquire", order[0])]
        for page, following in zip(order, [*order[1:], None], strict=True):
            coming = [] if following is None else [("acquire", following)]
            turn = [("update", page), ("release", page)]
            want += turn + coming if capacity == 1 else coming + turn
        assert log == want, f"budget {capacity}: {log}, expected {want}"


def test_states_are_read_wherever_they_are(kata, oracle, seed):
    params, grads = oracle.draw(SHAPES, 3, seed)
    memory, _, own, optimizer = build(kata, oracle, params, 4)
    step(optimizer, own, grads[0])
    step(optimizer, own, grads[1])
    found = optimizer.state_dict()
    stores = memory.count("store")
    again = optimizer.state_dict()
    optimizer.state_dict()
    assert memory.count("store") - stores <= 4, "nothing is written, so what is read stays clean"
    _, states = oracle.adamw(params, grads[:2], torch.float32)
    step(optimizer, own, grads[2])  # what was returned are copies
    for at, (one, two) in enumerate(zip(found, again, strict=True)):
        assert repr(one["step"]) == "2", f"parameter {at}: step {one['step']!r}, expected 2"
        for name in ("exp_avg", "exp_avg_sq"):
            assert one[name].shape == params[at].shape, f"{name} of {at}: {one[name].shape}"
            assert torch.equal(one[name], two[name]), f"{name} of {at} differs from call to call"
            assert_matches(one[name], states[at][name].double(), same_precision=states[at][name])


def test_second_moments_begin_in_the_middle_of_a_page(kata, oracle, seed):
    params, grads = oracle.draw([(2,)], 1, seed)
    _, pool, own, optimizer = build(kata, oracle, params, 1)
    step(optimizer, own, grads[0])
    (state,), frame = optimizer.state_dict(), pool.acquire(0).clone()
    pool.release(0, dirty=False)
    for name, at in (("exp_avg", 0), ("exp_avg_sq", 8)):
        found, want = frame[at : at + 2].tolist(), state[name].tolist()
        assert found == want, f"2 elements, a page of 16: {name} at {at}: {found}, expected {want}"


def test_moments_are_kept_in_pages_alone(kata, oracle, seed):
    params, grads = matrix(oracle, 20, seed, 3)
    memory, _, own, optimizer = build(kata, oracle, params, 4, pages=20)
    for param, grad in zip(own, grads[0], strict=True):
        param.grad = grad
    before = alive_bytes()
    optimizer.step()
    optimizer.step()
    kept = alive_bytes() - before - sum(frame.nbytes for frame in memory.frames.values())
    assert kept <= 64, f"{kept} bytes kept besides pages; the moments are {2 * params[0].nbytes}"


def test_gradients_in_any_layout(kata, oracle, seed):
    params, grads = oracle.draw([(5, 6), (9,)], 2, seed)
    _, _, plain, optimizer = build(kata, oracle, params, 2)
    _, _, own, other = build(kata, oracle, params, 2)
    for few in grads:
        step(optimizer, plain, few)
        by_columns = few[0].T.contiguous().T
        every_other = torch.stack([few[1], few[0].flatten()[:9]], -1)[:, 0]
        step(other, own, [by_columns, every_other])
        for at, (param, grad) in enumerate(zip(own, (by_columns, every_other), strict=True)):
            assert param.grad is grad, f"parameter {at}: the gradient was replaced"
            assert torch.equal(grad, few[at]), f"parameter {at}: the gradient was changed"
    for at, (found, want) in enumerate(zip(own, plain, strict=True)):
        text = f"parameter {at}, gradient not contiguous: {found}, expected {want}"
        assert torch.equal(found, want), text


def test_a_gradient_is_copied_once(kata, oracle, seed, dispatch, cost):
    """A gradient by columns, of a parameter of 20 pages."""
    params, grads = matrix(oracle, 20, seed, 1)
    gradient, copied = grads[0][0], []
    for grad in (gradient, gradient.T.contiguous().T):
        _, _, own, optimizer = build(kata, oracle, params, 4, pages=20)
        own[0].grad = grad
        with dispatch() as counted:
            optimizer.step()
        copied.append(counted.copied_bytes)
    # the pages themselves are copied as often for either
    cost.check("gradient_copies", (copied[1] - copied[0]) / gradient.nbytes)


def test_a_list_of_parameters_may_change_afterwards(kata, oracle, seed):
    params, grads = matrix(oracle, 2, seed, 1)
    own = torch.nn.Parameter(params[0].clone())
    listed = [own]
    optimizer = kata.PagedAdamW(listed, kata.PagePool(oracle.Memory(2, 64, 2), 2))
    listed.clear()
    own.grad = grads[0][0]
    optimizer.step()
    found = [state["step"] for state in optimizer.state_dict()]
    assert found == [1], f"the list was emptied after it was read: steps {found}, expected [1]"


# ---- what makes no sense -------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(kata, oracle):
    memory = oracle.Memory(3, 16)
    pool = kata.PagePool(memory, 2)
    p = torch.nn.Parameter(torch.zeros(2, 4))
    for name, call in (
        ("capacity", lambda: kata.PagePool(memory, 0)),
        ("capacity", lambda: pool.resize(0)),
        ("page", lambda: pool.acquire(-1)),
        ("page", lambda: pool.acquire(3)),
        ("page", lambda: pool.release(0, dirty=False)),
        ("params", lambda: kata.PagedAdamW(iter([p.half()]), pool)),
        ("params", lambda: kata.PagedAdamW([p.T], pool)),
        ("pool", lambda: kata.PagedAdamW([p], pool)),  # 8 elements, 2 a page
        ("page_bytes", lambda: kata.PagedAdamW([p], kata.PagePool(oracle.Memory(9, 12), 2))),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
    assert not memory.log, f"expected no copies for what is refused, found {memory.log}"
    pool.acquire(0)
    pool.release(0, dirty=False)
    with pytest.raises(ValueError, match="^page: "):
        pool.release(0, dirty=False)  # on the device, but not in use
