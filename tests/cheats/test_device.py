"""What only a device can hide; these need a GPU."""

from pathlib import Path

import pytest

from harness.hardware.environment import device_present

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not device_present(), reason="needs a GPU"),
]
MATCHES, SPEED = "test_matches_reference[7-float32]", "test_speed[vs slow]"


@pytest.fixture(scope="module")
def verdicts(judge):
    files = sorted((Path(__file__).parent / "device").glob("*.py"))
    chosen = "not allocates and not (answers_on_the_host and test_speed)"
    return judge("doubled", files, "--device=cuda", "-k", chosen)


def test_work_left_on_another_stream_is_seen(verdicts):
    words = verdicts.failed["on_another_stream"][MATCHES]
    assert "the result changed after the call had returned" in words


def test_work_left_on_another_stream_is_seen_while_timed(verdicts):
    words = verdicts.failed["on_another_stream"][SPEED]
    assert "work was left running" in words or "timed result: " in words


def test_an_answer_on_the_host_is_refused(verdicts):
    words = verdicts.failed["answers_on_the_host"][MATCHES]
    assert "expected it on cuda:0, where the inputs are, found it on cpu" in words


def test_a_cache_set_aside_is_seen(verdicts):
    words = verdicts.failed["sets_cache_aside"][SPEED]
    assert "bytes of it set aside for lines that stay" in words


def test_a_stream_that_is_waited_for_is_no_offence(verdicts):
    for honest in ("joins_its_stream", "solution"):
        assert verdicts.outcomes[honest] == {"passed"}, verdicts.words(honest)
        assert SPEED in verdicts.judged[honest]
