"""The contract's own rules, and that the C++ side states the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from attngraft import contract
from attngraft.contract import CausalMode, EmptyRows, FusedAttention, Layout, MaskConfig, MaskedSoftmax, Role
from attngraft.errors import ContractError

PLUGIN = Path(__file__).resolve().parents[2] / "plugin"

FULL = MaskedSoftmax(
    operands=("bias", "keep"),
    scale=0.5,
    causal="top_left",
    window_left=3,
    window_right=0,
    softcap=30.0,
    empty_rows="uniform",
)
FUSED = FusedAttention(
    ("keep", "bias"), softcap=50.0, layout="bhsd,bhsd,bsd,bsd", heads=8, kv_heads=2, exact=1, empty_rows="unmasked"
)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"operands": ("mask",)}, "mask"),
        ({"operands": ("keep", "keep")}, "keep"),
        ({"causal": "yes"}, "yes"),
        ({"empty_rows": "nan"}, "nan"),
        ({"window_left": -2}, "window_left"),
        ({"scale": float("nan")}, "nan"),
        ({"softcap": -1.0}, "-1.0"),
    ],
)
@pytest.mark.parametrize("operator", [MaskedSoftmax, FusedAttention])
def test_illegal_values_are_named(operator: type[MaskConfig], values: dict, named: str) -> None:
    with pytest.raises(ContractError, match=re.escape(named)):
        operator(**values)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"layout": "bdhs"}, "bdhs"),
        ({"layout": "bhsd,bhsd,bhsd"}, "four words"),
        ({"layout": "bhsd,bhsd,bhsd,qkv"}, "four words"),
        ({"layout": ""}, "layout"),
        ({"layout": "bsd"}, "needs both"),
        ({"layout": "qkv", "heads": 4}, "needs both"),
        ({"layout": "bhsd,bhsd,bhsd,bsd", "kv_heads": 4}, "needs both"),
        ({"heads": 6, "kv_heads": 4}, "no multiple"),
        ({"heads": -1}, "heads"),
        ({"exact": 2}, "exact"),
    ],
)
def test_illegal_layouts_are_named(values: dict, named: str) -> None:
    with pytest.raises(ContractError, match=re.escape(named)):
        FusedAttention(**values)


def test_layout_words() -> None:
    assert FusedAttention(layout="bshd").words == ("bshd",) * 4
    assert FUSED.words == ("bhsd", "bhsd", "bsd", "bsd")
    packed = FusedAttention(layout=Layout.QKV_BY_HEAD, heads=4, kv_heads=1)
    assert packed.words == ("qkv_by_head", "qkv_by_head", "qkv_by_head", "bsd")
    assert (packed.tensor_names, FUSED.tensor_names) == (("qkv",), ("q", "k", "v"))


@pytest.mark.parametrize("config", [FULL, FUSED])
def test_attributes_and_back(config: MaskConfig) -> None:
    operator = type(config)
    assert operator.from_attributes(config.attributes()) == config
    assert operator.from_attributes({}) == operator()
    as_bytes = {k: v.encode() if isinstance(v, str) else v for k, v in config.attributes().items()}
    assert operator.from_attributes({**as_bytes, "plugin_version": b"1"}) == config


@pytest.mark.parametrize("config", [FULL, FUSED])
def test_attributes_are_complete(config: MaskConfig) -> None:
    assert list(config.attributes()) == list(type(config).__dataclass_fields__)
    assert replace(config, operands=()).attributes()["operands"] == ""


def test_operators_with_equal_masks_are_not_equal() -> None:
    assert MaskedSoftmax() != FusedAttention()


def test_all_is_complete() -> None:
    assert all(hasattr(contract, name) for name in contract.__all__)


def cpp_list(source: str, name: str) -> tuple[str, ...]:
    """The strings of a C++ array of names."""
    found = re.search(rf"{name}\{{([^}}]*)\}}", source)
    assert found is not None, f"{name} is not in the C++ source"
    return tuple(re.findall(r'"([^"]*)"', found.group(1)))


def cpp_enum(source: str, name: str) -> dict[str, int]:
    """Enumerators of a C++ enum by name."""
    found = re.search(rf"enum class {name} : int32_t\s*\{{([^}}]*)\}}", source)
    assert found is not None, f"enum {name} is not in the C++ source"
    return {key: int(value) for key, value in re.findall(r"k(\w+) = (\d+)", found.group(1))}


def cpp_fields(source: str) -> set[str]:
    return set(re.findall(r'k\w+Field = "(\w+)"', source))


def test_plugin_has_the_same_names() -> None:
    source = (PLUGIN / "tensorrt" / "config.cpp").read_text()
    assert cpp_list(source, "kRoleNames") == Role.ALL
    assert cpp_list(source, "kCausalNames") == CausalMode.ALL
    assert cpp_list(source, "kEmptyRowsNames") == EmptyRows.ALL
    assert cpp_fields(source) == set(MaskedSoftmax.__dataclass_fields__)
    source = (PLUGIN / "tensorrt" / "attention_config.cpp").read_text()
    assert cpp_list(source, "kLayoutNames") == (*Layout.SEPARATE, *Layout.PACKED)
    assert cpp_fields(source) == set(FusedAttention.__dataclass_fields__) - set(MaskedSoftmax.__dataclass_fields__)


def test_plugin_has_the_same_version_and_operator() -> None:
    source = (PLUGIN / "tensorrt" / "contract.h").read_text()
    assert int(re.search(r"kContractVersion = (\d+)", source).group(1)) == contract.CONTRACT_VERSION
    assert f'"{contract.MASKED_SOFTMAX}"' in source
    assert f'"{contract.FUSED_ATTENTION}"' in source
    assert int(re.search(r"kMaxHeadSize = (\d+)", source).group(1)) == contract.MAX_HEAD_SIZE
    assert f'"{contract.DOMAIN}"' in source
    assert f'"{contract.PLUGIN_VERSION}"' in source


def test_kernels_have_the_same_order_and_limits() -> None:
    source = (PLUGIN / "kernels" / "operands.h").read_text()
    assert [name.lower() for name in cpp_enum(source, "Causal")] == [name.replace("_", "") for name in CausalMode.ALL]
    assert [name.lower() for name in cpp_enum(source, "EmptyRows")] == list(EmptyRows.ALL)
    assert tuple(name.lower() for name in cpp_enum(source, "DataType")) == contract.SCORE_DTYPES
    assert int(re.search(r"kMaxRank = (\d+)", source).group(1)) == contract.MAX_RANK
