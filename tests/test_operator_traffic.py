"""What PyTorch's operators are said to move, against numbers worked out by hand."""

import pytest
import torch

from harness.meters.operator_traffic import OperatorTraffic

N = 10  # float32 elements of the vectors below: 40 bytes


def traffic_of(call, *args):
    with OperatorTraffic() as t:
        call(*args)
    return t.read_bytes, t.written_bytes


@pytest.mark.parametrize(
    ("call", "moved"),
    [
        (lambda x: x * 2, (40, 40)),
        (lambda x: x + x[:1], (44, 40)),  # one element, broadcast
        (lambda x: x.add_(x), (80, 40)),  # in place: the old value is read, too
        (lambda x: torch.mul(x, 2, out=torch.empty_like(x)), (40, 40)),
        (lambda x: x.sum(), (40, 4)),
        (lambda x: x[0].item(), (4, 0)),
        (lambda x: x.half(), (40, 20)),
        (lambda x: x[::2].contiguous(), (20, 20)),
        (lambda x: x.contiguous(), (0, 0)),
        (lambda x: x.copy_(torch.zeros(()).expand(N)), (4, 4 + 40)),  # zeros are written first
        (lambda x: x.fill_(1), (0, 40)),
        (lambda x: torch.zeros(N), (0, 40)),
        (lambda x: x.new_empty(7), (0, 0)),
        (lambda x: x.view(2, 5).t()[1:].unsqueeze(0).detach(), (0, 0)),
        (lambda x: x.split(3), (0, 0)),
        (lambda x: x.clone().squeeze_(), (40, 40)),
        (lambda x: x @ x, (80, 4)),
        (lambda x: x.isnan().any(), (40 + 10, 10 + 1)),
    ],
)
def test_an_operator_moves_what_it_is_given_and_what_it_makes(call, moved):
    assert traffic_of(call, torch.ones(N)) == moved


def test_a_look_up_reads_what_it_looks_up():
    table, rows = torch.ones(100, 8), torch.tensor([3, 5])
    assert traffic_of(lambda: table[rows]) == (2 * 32 + 16, 2 * 32)
    assert traffic_of(lambda: torch.nn.functional.embedding(rows, table)) == (2 * 32 + 16, 2 * 32)


def test_a_partial_write_writes_its_part():
    table, rows, new = torch.ones(100, 8), torch.tensor([3, 5]), torch.zeros(2, 8)
    assert traffic_of(lambda: table.index_copy_(0, rows, new)) == (16 + 64, 64)


def test_nothing_is_counted_aside():
    x = torch.ones(N)
    with OperatorTraffic() as t:
        with t.aside(), t.aside():
            x.add_(1)
        x.add_(1)
    assert (t.read_bytes, t.written_bytes) == (40, 40)
