"""Softmaxes that are no attention, beside some that are: none of the former is to be touched."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.building import TOKENS, USUAL_VARIANTS, Call
from benchmarks.zoo.entry import NO_CHOICE, Entry, Model, Size

__all__ = ["ENTRIES"]

FAMILY = "negatives"
CLASSES = 10
EXPERTS = 4


class _Classifier(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(size.hidden, size.inner), nn.Linear(size.inner, CLASSES)

    def forward(self, states: Tensor) -> Tensor:
        return self.outer(self.inner(states.mean(1)).relu()).softmax(-1)


class _LogClassifier(_Classifier):
    def forward(self, states: Tensor) -> Tensor:
        return functional.log_softmax(self.outer(self.inner(states.mean(1)).relu()), -1)


class _Mixture(nn.Module):
    """Every token weighs the outputs of all experts: a softmax whose result multiplies activations."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate = nn.Linear(size.hidden, EXPERTS)
        self.experts = nn.Parameter(torch.randn(EXPERTS, size.hidden, size.hidden) * 0.1)

    def forward(self, states: Tensor) -> Tensor:
        weights = self.gate(states).softmax(-1)
        outputs = torch.einsum("bsd,edh->bseh", states, self.experts)
        return (weights.unsqueeze(-2) @ outputs).squeeze(-2)


class _Pooling(nn.Module):
    """One score a token, from a learned vector; the pooled state is the weighted sum."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.score = nn.Linear(size.hidden, 1)

    def forward(self, states: Tensor) -> Tensor:
        return (self.score(states).softmax(1) * states).sum(1)


class _SquaredPooling(_Pooling):
    """The same as a matrix product."""

    def forward(self, states: Tensor) -> Tensor:
        return (self.score(states).softmax(1).transpose(1, 2) @ states).squeeze(1)


class _LinearAttention(nn.Module):
    """Factorised: the keys' softmax stands for attention's, the queries' is a normalisation. There are no scores."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.projection = nn.Linear(size.hidden, 3 * size.hidden)

    def forward(self, states: Tensor) -> Tensor:
        query, key, value = self.projection(states).chunk(3, -1)
        return query.softmax(-1) @ (key.softmax(1).transpose(1, 2) @ value)


class _Retrieval(nn.Module):
    """Similarities of two batches as probabilities, which multiply nothing."""

    def forward(self, texts: Tensor, images: Tensor) -> Tensor:
        return (functional.normalize(texts, dim=-1) @ functional.normalize(images, dim=-1).transpose(0, 1)).softmax(-1)


def _entry(name: str, module: type[nn.Module], others: int) -> Entry:
    def build(size: Size, attention: str) -> Model:
        inputs = {"states": torch.randn(2, size.tokens, size.hidden)}
        return Model(Call(module(size)), inputs, {"states": TOKENS}, others=others)

    return Entry(name, FAMILY, build, NO_CHOICE, USUAL_VARIANTS)


def _retrieval(size: Size, attention: str) -> Model:
    inputs = {"texts": torch.randn(3, size.hidden), "images": torch.randn(5, size.hidden)}
    return Model(Call(_Retrieval()), inputs, {"texts": {0: "texts"}, "images": {0: "images"}}, others=1)


ENTRIES = (
    _entry("not_classifier", _Classifier, 1),
    _entry("not_logsoftmax", _LogClassifier, 1),
    _entry("not_mixture", _Mixture, 1),
    _entry("not_pooling", _Pooling, 1),
    _entry("not_pooling_product", _SquaredPooling, 1),
    _entry("factorised", _LinearAttention, 1),
    Entry("not_retrieval", FAMILY, _retrieval, NO_CHOICE, USUAL_VARIANTS),
)
