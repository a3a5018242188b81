"""Makes the small real exports beside this file: `python tests/data/make_exports.py`.

Random weights, hidden size 32, one layer. What is of interest is how the exporters write attention, so the models are
as small as they can be. The metadata that the dynamo exporter stores with every node is dropped, except in
sdpa_boolean_dynamo.onnx.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
import transformers

HERE = Path(__file__).parent
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 30,
    "max_position_embeddings": 32,
}
TOKENS = {0: "batch", 1: "sequence"}


class FirstOutput(torch.nn.Module):
    """A transformers model as a function of its tensors alone."""

    def __init__(self, model: torch.nn.Module, names: list[str], **options: bool) -> None:
        super().__init__()
        self.model, self.names, self.options = model, names, options

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.model(**dict(zip(self.names, tensors, strict=True)), **self.options)
        attentions = result.attentions if self.options.get("output_attentions") else ()
        return (result[0], *attentions)


class BooleanSdpa(torch.nn.Module):
    """scaled_dot_product_attention with a boolean mask and nothing else."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def text_model(config: transformers.PretrainedConfig, attention: str, **options: bool) -> FirstOutput:
    config.use_cache = False
    model = transformers.AutoModel.from_config(config, attn_implementation=attention)
    return FirstOutput(model, ["input_ids", "attention_mask"], **options)


def export(
    name: str, model: torch.nn.Module, inputs: dict[str, torch.Tensor], axes: list[dict[int, str]], dynamo: bool
) -> None:
    path = HERE / f"{name}.onnx"
    names, tensors = list(inputs), tuple(inputs.values())
    with torch.no_grad():
        if dynamo:
            shapes = tuple(dict.fromkeys(axis, torch.export.Dim.AUTO) for axis in axes)
            wrapped = (shapes,) if isinstance(model, FirstOutput) else shapes
            torch.onnx.export(
                model.eval(),
                tensors,
                path,
                input_names=names,
                dynamic_shapes=wrapped,
                opset_version=18,
                external_data=False,
            )
        else:
            torch.onnx.export(
                model.eval(),
                tensors,
                path,
                input_names=names,
                dynamic_axes=dict(zip(names, axes, strict=True)),
                opset_version=17,
                dynamo=False,
            )
    drop_traces(path, keep_metadata=isinstance(model, BooleanSdpa))
    print(f"{path.name}: {path.stat().st_size} bytes")


def drop_traces(path: Path, keep_metadata: bool) -> None:
    """Stack traces name files of the machine that exported; the rest of the metadata is only large."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.ClearField("doc_string")
        kept = [entry for entry in node.metadata_props if keep_metadata and "stack_trace" not in entry.key]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    if not keep_metadata:
        del model.graph.value_info[:]
    onnx.save(model, path)


def main() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 30, (2, 8))
    text = {"input_ids": ids, "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    bert, gpt2 = (
        transformers.BertConfig(**SMALL),
        transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=30, n_positions=32),
    )
    llama = transformers.LlamaConfig(**SMALL, num_key_value_heads=2)
    export("bert_sdpa_torchscript", text_model(bert, "sdpa"), text, [TOKENS, TOKENS], dynamo=False)
    export("bert_eager_fp16_dynamo", text_model(bert, "eager").half(), text, [TOKENS, TOKENS], dynamo=True)
    export(
        "bert_attentions_dynamo", text_model(bert, "eager", output_attentions=True), text, [TOKENS, TOKENS], dynamo=True
    )
    export("gpt2_sdpa_dynamo", text_model(gpt2, "sdpa"), text, [TOKENS, TOKENS], dynamo=True)
    export("llama_eager_fp16_torchscript", text_model(llama, "eager").half(), text, [TOKENS, TOKENS], dynamo=False)
    heads = {name: torch.randn(2, 4, 8, 16) for name in ("q", "k", "v")}
    axes = [
        {0: "batch", 2: "queries"},
        {0: "batch", 2: "keys"},
        {0: "batch", 2: "keys"},
        {0: "batch", 2: "queries", 3: "keys"},
    ]
    mask = torch.ones(2, 1, 8, 8, dtype=torch.bool).tril()
    export("sdpa_boolean_dynamo", BooleanSdpa(), {**heads, "mask": mask}, axes, dynamo=True)


if __name__ == "__main__":
    main()
