"""Masks as the exporters of PyTorch write them: read for what they are, and equal when run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from meaning_proof import assert_mask_equals, padding_masks, view_of

from attngraft.contract import CausalMode
from attngraft.match.meaning import MaskMeaning, PaddingMask, read_mask
from attngraft.onnx_export import EXPORTERS, export_module
from attngraft.onnx_graph import GraphView

LOWEST, LOWEST_HALF = float(np.finfo(np.float32).min), float(np.finfo(np.float16).min)
INFINITY = float("inf")
PADDING = PaddingMask("attention_mask", (1, 2))
CAUSAL = CausalMode.TOP_LEFT
TOKENS = {0: "batch", 1: "sequence"}
SIZES = ((1, 1), (2, 7), (3, 8))
"""Batch and length."""


class Idioms(torch.nn.Module):
    """Masks as people write them, from a padding mask [B, S]."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(48, 48)).view(1, 1, 48, 48))

    def forward(self, padding: torch.Tensor) -> tuple[torch.Tensor, ...]:
        length = padding.shape[1]
        zeros = torch.zeros(length, length)
        j = torch.arange(length)
        i = j[:, None]
        wide = padding[:, None, None, :]
        keep = wide.bool() & (j <= i)
        return (
            torch.triu(torch.full((length, length), -INFINITY), diagonal=1),
            zeros.masked_fill(torch.ones(length, length, dtype=torch.bool).tril().logical_not(), -INFINITY),
            torch.zeros(1, 1, length, length).masked_fill(self.bias[:, :, :length, :length] == 0, LOWEST),
            zeros.masked_fill(j > i, -1e9),
            zeros.masked_fill(~((j <= i) & (i - j < 3)), -INFINITY),
            (1.0 - wide.float()) * LOWEST,
            torch.zeros_like(wide, dtype=torch.float32).masked_fill(wide == 0, -INFINITY),
            torch.where(keep, 0.0, LOWEST),
            self.assigned(padding),
        )

    @staticmethod
    def assigned(padding: torch.Tensor) -> torch.Tensor:
        """As language models did it before masks were made from positions: padding is written into a causal mask."""
        batch, length = padding.shape
        position = torch.arange(length)
        mask = torch.triu(torch.full((length, length), LOWEST), diagonal=1)
        mask = mask * (torch.arange(length) > position.reshape(-1, 1))
        mask = mask[None, None].expand(batch, 1, -1, -1).clone()
        masked = mask[:, :, :, :length] + padding[:, None, None, :] == 0
        mask[:, :, :, :length] = mask[:, :, :, :length].masked_fill(masked, LOWEST)
        return mask


IDIOMS = {
    "triu": MaskMeaning(CAUSAL),
    "tril": MaskMeaning(CAUSAL),
    "buffer": MaskMeaning(CAUSAL, fill=LOWEST),
    "positions": MaskMeaning(CAUSAL, fill=-1e9),
    "window": MaskMeaning(CAUSAL, window_left=2),
    "complement": MaskMeaning(paddings=(PaddingMask("attention_mask", (1, 2), zero_one=False),), fill=LOWEST),
    "filled": MaskMeaning(paddings=(PADDING,)),
    "both": MaskMeaning(CAUSAL, paddings=(PADDING,), fill=LOWEST),
    "assigned": MaskMeaning(CAUSAL, paddings=(PaddingMask("attention_mask", (1, 2), zero_one=False),), fill=LOWEST),
}


NAMES = [f"mask_{name}" for name in IDIOMS]


def export(
    module: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    axes: dict[str, dict[int, str]],
    folder: Path,
    exporter: str,
    outputs: list[str] | None = None,
) -> onnx.ModelProto:
    path = export_module(
        module, list(inputs.values()), folder / "model.onnx", exporter=exporter, input_names=list(inputs),
        output_names=outputs or ["out"], dynamic_axes=axes,
    )  # fmt: skip
    return onnx.load(path)


@pytest.fixture(scope="module", params=EXPORTERS)
def idioms(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    folder = tmp_path_factory.mktemp("idioms")
    example = torch.tensor([[1, 1, 1, 1, 0], [1, 0, 1, 1, 1]])
    return export(Idioms(), {"attention_mask": example}, {"attention_mask": TOKENS}, folder, request.param, NAMES)


@pytest.mark.parametrize("name", IDIOMS)
def test_idiom(idioms: onnx.ModelProto, name: str) -> None:
    mask = f"mask_{name}"
    meaning = read_mask(view_of(idioms), mask, ("batch", 4, "sequence", "sequence"))
    assert meaning == IDIOMS[name]
    for batch, length in SIZES:
        for padding in padding_masks(batch, length):
            assert_mask_equals(idioms, mask, meaning, {"attention_mask": padding}, (batch, 4, length, length))


STORED = {
    "bert_attentions_dynamo": MaskMeaning(paddings=(PADDING,), fill=LOWEST),
    "bert_eager_fp16_dynamo": MaskMeaning(paddings=(PADDING,), fill=LOWEST_HALF),
    "bert_sdpa_torchscript": MaskMeaning(paddings=(PADDING,)),
    "gpt2_sdpa_dynamo": MaskMeaning(CAUSAL, paddings=(PaddingMask("view_1", (1, 2)),), fill=LOWEST),
    "llama_eager_fp16_torchscript": MaskMeaning(CAUSAL, paddings=(PADDING,), fill=LOWEST_HALF),
}


def masks(view: GraphView) -> list[str]:
    """The tensors that are added to scores right before a softmax."""
    adds = [view.maker(node.input[0]) for node in view.graph.node if node.op_type == "Softmax"]
    return list(dict.fromkeys(node.input[1] for node in adds if node is not None and node.op_type == "Add"))


def token_feeds(batch: int, length: int) -> list[dict[str, np.ndarray]]:
    ids = (np.arange(batch * length).reshape(batch, length) % 20).astype(np.int64)
    return [{"input_ids": ids, "attention_mask": padding} for padding in padding_masks(batch, length)]


def assert_reads(model: onnx.ModelProto, expected: list[MaskMeaning]) -> None:
    """Each mask of a text model, in the order of its sites, means what is expected, and does so when run."""
    view = view_of(model)
    names = masks(view)
    found = [read_mask(view, name, (None, 4, None, None)) for name in names]
    assert found == expected
    for name, meaning in zip(names, found, strict=True):
        assert meaning is not None
        for batch, length in SIZES:
            for feeds in token_feeds(batch, length):
                assert_mask_equals(model, name, meaning, feeds, (batch, 4, length, length))


@pytest.mark.parametrize("name", STORED)
def test_stored_export(name: str, data_folder: Path) -> None:
    assert_reads(onnx.load(data_folder / f"{name}.onnx"), [STORED[name]])


class Text(torch.nn.Module):
    """A transformers model as a function of ids and padding."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]


SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32, "vocab_size": 30, "use_cache": False}
MODELS = {
    "mistral": (
        lambda: transformers.MistralConfig(**SMALL, num_hidden_layers=1, num_key_value_heads=2, sliding_window=3),
        [MaskMeaning(CAUSAL, window_left=2, paddings=(PADDING,), fill=LOWEST)],
    ),
    "modernbert": (
        lambda: transformers.ModernBertConfig(
            **SMALL, num_hidden_layers=2, local_attention=4, global_attn_every_n_layers=2, pad_token_id=0
        ),
        [
            MaskMeaning(paddings=(PADDING,), fill=LOWEST),
            MaskMeaning(window_left=2, window_right=2, paddings=(PADDING,), fill=LOWEST),
        ],
    ),
    "gpt-neo": (
        lambda: transformers.GPTNeoConfig(
            hidden_size=32, num_heads=4, num_layers=1, attention_types=[[["global"], 1]], vocab_size=30, use_cache=False
        ),
        [MaskMeaning(CAUSAL, paddings=(PADDING,), fill=LOWEST)],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_transformers(name: str, tmp_path: Path) -> None:
    config, expected = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config(), attn_implementation="eager").eval()
    example = torch.ones(2, 6, dtype=torch.long)
    inputs = {"input_ids": example, "attention_mask": example}
    exported = export(Text(model), inputs, dict.fromkeys(inputs, TOKENS), tmp_path, "torchscript")
    assert_reads(exported, expected)


class CausalSdpa(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_causal_sdpa_is_causal_from_the_top_left(exporter: str, tmp_path: Path) -> None:
    tensors = {"q": torch.randn(1, 2, 5, 4), "k": torch.randn(1, 2, 7, 4), "v": torch.randn(1, 2, 7, 4)}
    axes = {"q": {2: "queries"}, "k": {2: "keys"}, "v": {2: "keys"}}
    model = export(CausalSdpa(), tensors, axes, tmp_path, exporter)
    view = view_of(model)
    (mask,) = masks(view)
    meaning = read_mask(view, mask, (1, 2, None, None))
    assert meaning == MaskMeaning(CAUSAL, fill=LOWEST if exporter == "dynamo" else -INFINITY)
    for queries, keys in ((1, 1), (1, 6), (5, 3), (4, 9)):
        feeds = {"q": np.zeros((1, 2, queries, 4), np.float32)}
        feeds |= {name: np.zeros((1, 2, keys, 4), np.float32) for name in "kv"}
        assert_mask_equals(model, mask, meaning, feeds, (1, 2, queries, keys))
