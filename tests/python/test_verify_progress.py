"""Long work says how far it is and for how long it has been going on; short work says nothing."""

from __future__ import annotations

import pytest
from chain_models import FORMS

from attngraft.verify import progress, verify_models
from attngraft.verify.progress import Ticker


def test_short_work_says_nothing() -> None:
    messages: list[str] = []
    ticker = Ticker(messages.append, "work")
    for number in range(100):
        ticker.step(f"step {number}")
    assert messages == []


def test_long_work_says_how_many_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 3.0, 6.0, 9.0, 12.5])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    messages: list[str] = []
    ticker = Ticker(messages.append, "verify: original")
    for number in range(4):
        ticker.step(f"case {number}")
    assert messages == [
        "verify: original: 2 done in 6 s, last case 1",
        "verify: original: 4 done in 12 s, last case 3",
    ]


def test_verification_counts_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0.0)
    messages: list[str] = []
    model = FORMS["where -inf"].model()
    report = verify_models(model, model, progress=messages.append)
    done = [message for message in messages if message.startswith("verify: original: ")]
    assert len(done) >= len(report.cases)
    assert any(message.startswith(f"verify: rewritten model: {len(report.cases)} done") for message in messages)
    assert all("\n" not in message for message in messages)
