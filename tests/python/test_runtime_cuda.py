"""Which context is current in a session's turn, and after it."""

from __future__ import annotations

import pytest

from attngraft.errors import EngineError
from attngraft.runtime import cuda
from attngraft.runtime.cuda import call, device_scope
from fake_bench import Bench
from fake_gpu import SUCCESS, FakeDriver, FakeRuntime

PRIMARY = {0: 4096, 1: 8192}
"""Handles of the devices' primary contexts."""

OTHER = 512
"""A context that another library has made."""


class Contexts:
    """A driver that has contexts, and a log of what is made current."""

    def __init__(self, current: int) -> None:
        self.current = current
        self.log: list[tuple[str, int]] = []

    def set_device(self, index: int) -> tuple[object]:
        self.log.append(("device", index))
        self.current = PRIMARY[index]
        return (SUCCESS,)

    def set_current(self, context: int) -> tuple[int]:
        self.log.append(("context", context))
        self.current = context
        return (0,)


@pytest.fixture
def contexts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Contexts:
    made = Contexts(0)
    monkeypatch.setattr(cuda, "_primary_contexts", {})
    monkeypatch.setattr(FakeRuntime, "cudaSetDevice", lambda gpu, index: made.set_device(index))
    monkeypatch.setattr(FakeDriver, "cuCtxGetCurrent", staticmethod(lambda: (0, made.current)))
    monkeypatch.setattr(FakeDriver, "cuCtxSetCurrent", staticmethod(made.set_current), raising=False)
    return made


def test_no_context_was_current(contexts: Contexts) -> None:
    with device_scope(1):
        assert contexts.current == PRIMARY[1]
    assert contexts.log == [("device", 1)]  # and none is put back


def test_the_primary_context_is_left_as_it_is(contexts: Contexts) -> None:
    for _ in range(3):
        with device_scope(0):
            assert contexts.current == PRIMARY[0]
    assert contexts.log == [("device", 0)]  # the first time, before it was known


@pytest.mark.parametrize("former", [OTHER, PRIMARY[1]])
def test_another_context_is_put_back_each_time(contexts: Contexts, former: int) -> None:
    for index in (0, 1):
        with device_scope(index):  # both are known from here on
            pass
    contexts.log.clear()
    contexts.current = former
    for _ in range(2):
        with device_scope(0):
            assert contexts.current == PRIMARY[0]
        assert contexts.current == former
    assert contexts.log == [("device", 0), ("context", former)] * 2


def test_a_primary_context_that_is_another_one_now(contexts: Contexts, monkeypatch: pytest.MonkeyPatch) -> None:
    with device_scope(0):
        pass
    monkeypatch.setitem(PRIMARY, 0, 4099)
    contexts.current = 0
    with device_scope(0):
        assert contexts.current == 4099
    contexts.log.clear()
    with device_scope(0):
        assert contexts.current == 4099
    assert contexts.log == []


def test_errors_say_which_call_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    error = bench.gpu.cudaError_t.cudaErrorInvalidValue
    cleared: list[int] = []
    monkeypatch.setattr(bench.gpu, "cudaEventRecord", lambda *a: (error,), raising=False)
    monkeypatch.setattr(bench.gpu, "cudaGetLastError", lambda: cleared.append(1), raising=False)
    with pytest.raises(EngineError, match=r"^cudaEventRecord: cudaErrorInvalidValue \(invalid argument\)$"):
        call("cudaEventRecord", 1, 2)
    assert cleared == [1]


def test_what_calls_return(bench: Bench) -> None:
    assert call("cudaEventRecord", 1, 2) is None
    assert isinstance(call("cudaEventCreateWithFlags", 0), int)
    assert call("cudaMemGetInfo") == (1 << 30, 1 << 31)
