"""Wrong answers that look like answers, on the tiny kata with tensors."""

HONEST = "y = torch.empty_like(x)\n    torch.mul(x, 2, out=y)\n    "

# name: how `doubled(x)` goes on once it has refused integers
ANSWERS = {
    "none": "return None",
    "another_shape": "return (2 * x)[None]",
    "another_dtype": "return (2 * x).double()",
    "a_subclass": "return torch.nn.Parameter(2 * x, requires_grad=False)",
    "the_input": "return x.mul_(2)",
    "a_view_of_the_input": "return x.mul_(2)[:]",
    "one_value_for_all": "return (2 * x[:1]).expand(x.numel())",
    "the_input_spoilt": f"{HONEST}x.zero_()\n    return y",
    "the_last_element_unwritten": (
        "y = torch.empty_like(x)\n    torch.mul(x[:-1], 2, out=y[:-1])\n    return y"
    ),
    "nothing_written": "return torch.empty_like(x)",
    "nan": "return torch.full_like(x, torch.nan)",
    "infinity": "return torch.full_like(x, torch.inf)",
    "a_stale_buffer": f"{HONEST}return KEPT.setdefault(x.numel(), y)",
}


def test_no_wrong_answer_passes(judged, tmp_path):
    files = {name: tmp_path / f"{name}.py" for name in ANSWERS}
    for name, body in ANSWERS.items():
        files[name].write_text(
            "import torch\n\nKEPT = {}\n\n\ndef doubled(x):\n"
            f"    if not x.is_floating_point():\n        raise ValueError('x')\n    {body}\n"
        )
    events = judged(*(f"--impl={path}" for path in files.values()), "--impl=solution")
    failed = {event["impl"] for event in events if event["outcome"] == "failed"}
    assert failed == {str(path) for path in files.values()}
    assert len(events) == 8 * (len(ANSWERS) + 1)
