"""Several profiles, from options and files, and builder flags."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from attngraft.engine import ShapeRange, build_engine, profiles_of_options, read_profiles
from attngraft.engine import flags as flags_module
from attngraft.engine import plan as plan_module
from attngraft.engine.backends import Backend, load_backend
from attngraft.engine.flags import FLAGS, HARDWARE_COMPATIBLE, REFIT, VERSION_COMPATIBLE, WEIGHT_STREAMING, check_flags
from attngraft.engine.logger import MessageLog
from attngraft.engine.plan import BuildRequest, NetworkFacts, build_plan
from attngraft.engine.progress import BuildProgress
from attngraft.engine.sidecar import read_card
from attngraft.errors import BuildError
from test_engine_build import KEEP_CONFIG, KEEP_OPERANDS, KEEP_PROFILE, attention_model, save

parse = ShapeRange.parse


def test_options_given_again_are_further_profiles() -> None:
    assert profiles_of_options([]) == ({},)
    assert profiles_of_options(["x=1x2"]) == ({"x": parse("1x2")},)
    found = profiles_of_options(["x=1x8:1x8:4x8", "m=3", "x=1x16:2x16:8x16", "y=1", "y=2"])
    assert found == (
        {"x": parse("1x8:1x8:4x8"), "m": parse("3"), "y": parse("1")},
        {"x": parse("1x16:2x16:8x16"), "m": parse("3"), "y": parse("2")},
    )
    with pytest.raises(BuildError, match="shapes of 'x' are given 3 times, those of 'y' 2 times"):
        profiles_of_options(["x=1", "x=2", "x=3", "y=1", "y=2"])


def test_profiles_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps([{"x": "1x8:2x8:4x8"}, {"x": "16x8"}]))
    assert read_profiles(path) == ({"x": parse("1x8:2x8:4x8")}, {"x": parse("16x8")})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not JSON", "is not JSON"),
        ("{}", "holds no list of profiles"),
        ("[]", "holds no list of profiles"),
        ('[{"x": 3}]', "is no profile; write a list"),
        ("[3]", "is no profile"),
        ('[{"x": "4x8:2x8:1x8"}]', "min <= opt <= max"),
    ],
)
def test_a_file_without_profiles_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(text)
    with pytest.raises(BuildError, match=reason) as raised:
        read_profiles(path)
    assert str(raised.value).startswith(f"profiles {path}: ")
    assert "\n" not in str(raised.value)
    with pytest.raises(BuildError, match="cannot be read"):
        read_profiles(tmp_path / "absent.json")


def test_an_engine_with_two_profiles(tmp_path: Path) -> None:
    model = save(attention_model(KEEP_CONFIG, KEEP_OPERANDS), tmp_path)
    second = {"x": parse("1x1x32:8x16x32:8x16x32"), "keep": parse("1x1x1:8x1x16:8x1x16")}
    result = build_engine(
        model, tmp_path / "m.engine", backend="rtx", shapes=[KEEP_PROFILE, second], embed_plugins=False,
        flags=[WEIGHT_STREAMING],
    )  # fmt: skip
    assert result.profiles == (KEEP_PROFILE, second)
    card = read_card(result.engine_path)
    assert card.profiles == (KEEP_PROFILE, second)
    assert card.flags == (WEIGHT_STREAMING,)
    with pytest.raises(BuildError, match="input 'keep' is .* dynamic dimensions"):
        build_engine(model, tmp_path / "m.engine", backend="rtx", shapes=[KEEP_PROFILE, {"x": KEEP_PROFILE["x"]}])


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        (VERSION_COMPATIBLE, "--version-compatible: TensorRT-RTX .* cannot do it: its packages hold no lean runtime"),
        (HARDWARE_COMPATIBLE, "--hardware-compatible: TensorRT-RTX .* leave --hardware-compatible out"),
        (REFIT, "--refit: TensorRT-RTX .* on a GPU only"),
        ("fast", "flag 'fast': not one of version_compatible, hardware_compatible, weight_streaming, refit"),
    ],
)
def test_flags_that_rtx_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, reason: str) -> None:
    monkeypatch.setattr(flags_module, "describe_device", lambda: None)
    model = save(attention_model(KEEP_CONFIG, KEEP_OPERANDS), tmp_path)
    with pytest.raises(BuildError, match=reason) as raised:
        build_engine(model, tmp_path / "m.engine", backend="rtx", shapes=KEEP_PROFILE, flags=[flag])
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == [model]


def test_flags_reach_the_configuration() -> None:
    """TensorRT itself has all of them; the real enums stand for it here."""
    real = load_backend("rtx")
    tensorrt = Backend("tensorrt", "TensorRT", real.module)
    names = check_flags(tensorrt, reversed(FLAGS))
    assert names == FLAGS
    seen: list[object] = []
    config = SimpleNamespace(set_flag=seen.append)
    flags_module.set_flags(tensorrt, config, names)
    member = real.module.BuilderFlag
    assert seen == [member.VERSION_COMPATIBLE, member.WEIGHT_STREAMING, member.REFIT]
    assert config.hardware_compatibility_level == real.module.HardwareCompatibilityLevel.AMPERE_PLUS


def test_a_flag_that_an_older_tensorrt_does_not_know() -> None:
    old = SimpleNamespace(__version__="10.6.0", BuilderFlag=SimpleNamespace(REFIT=1))
    with pytest.raises(
        BuildError, match="--weight-streaming: TensorRT 10.6.0 cannot do it: it does not know this flag"
    ):
        check_flags(Backend("tensorrt", "TensorRT", old), [WEIGHT_STREAMING])


def test_the_timing_cache_is_written_after_a_failed_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT's objects are stand-ins: TensorRT-RTX has no timing cache."""
    config = SimpleNamespace(get_timing_cache=lambda: SimpleNamespace(serialize=lambda: b"timings"))
    builder = SimpleNamespace(build_serialized_network=lambda network, config: None)
    monkeypatch.setattr(plan_module, "_make_builder", lambda *_: builder)
    monkeypatch.setattr(plan_module, "parse_network", lambda *_: None)
    monkeypatch.setattr(plan_module, "_network_facts", lambda *_: NetworkFacts(1, 0, (), ()))
    monkeypatch.setattr(plan_module, "_make_config", lambda *_: config)
    request = BuildRequest(
        load_backend("rtx"), attention_model(KEEP_CONFIG, KEEP_OPERANDS), Path("m.onnx"), (KEEP_PROFILE,), None,
        timing_cache=tmp_path / "timing.cache",
    )  # fmt: skip
    report = BuildProgress(None)
    monkeypatch.setattr(report, "attach", lambda *_: None)
    with MessageLog() as messages, pytest.raises(BuildError, match="cannot build it"):
        build_plan(request, messages, report)
    assert (tmp_path / "timing.cache").read_bytes() == b"timings"
