"""Hugging Face models on attngraft's attention: a model goes in, the same model comes out, computing the same.

register_attention()   makes attn_implementation="attngraft" known to transformers
patch(model)           switches a loaded model, with all its parts
unpatch(model)         the way back
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, TypeVar

from torch import nn

from attngraft.errors import ContractError, MissingDependency

__all__ = ["IMPLEMENTATION", "patch", "register_attention", "unpatch"]

IMPLEMENTATION = "attngraft"
"""The name under which transformers knows attngraft's attention."""

OLDEST_TRANSFORMERS = "5.4"
"""4.51 has an interface for attention, 4.53 one for masks; from 5.4 on masks are asked for by lengths and offsets."""

_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""The table in which the models of transformers look up their attention function."""

_OWN_ATTENTION = frozenset({"softmax", "scaled_dot_product_attention"})
"""Names in the code of a layer that computes attention by itself."""

_GENERAL = ("torch.nn", "transformers.modeling_utils")
"""Modules whose classes are no layers of a certain model."""

_SUPPORT_FLAGS = ("_supports_sdpa", "_supports_attention_backend")
"""Attributes in which a model says that it does with other attention functions, given boolean masks or any."""

_BEFORE = "_attngraft_before"
"""Attribute of a patched model: its configurations, each with the implementation that it had."""

Model = TypeVar("Model", bound=nn.Module)


def register_attention() -> None:
    """Makes `attn_implementation="attngraft"` known to transformers, for `from_pretrained` and
    `set_attn_implementation`. Models without an attention interface ignore that name; `patch` refuses them.

    Raises MissingDependency where transformers is absent or has no interfaces to register with.
    """
    transformers = _transformers()
    from attngraft.torch.transformers_attention import attention_forward
    from attngraft.torch.transformers_mask import compact_mask

    transformers.AttentionInterface.register(IMPLEMENTATION, attention_forward)
    transformers.AttentionMaskInterface.register(IMPLEMENTATION, compact_mask)


def patch(model: Model) -> Model:
    """Switches the attention of a Hugging Face model, with all its sub-models, to attngraft's, and returns the model.

    Outputs, gradients and attention weights remain those of eager attention, within the rounding of the type; see
    docs/pytorch.md for the rows in which they differ. Other models that share a configuration object are switched too.

    Raises ContractError, leaving the model as it is, if a layer computes attention by itself instead of asking
    transformers' attention interface; MissingDependency as `register_attention` does.
    """
    register_attention()
    if why_not := _cannot(model):
        raise ContractError(f"{type(model).__name__}: {why_not}; it is left as it is")
    switched = [config for config in _configs(model) if config._attn_implementation != IMPLEMENTATION]
    before = getattr(model, _BEFORE, []) + [(config, config._attn_implementation) for config in switched]
    setattr(model, _BEFORE, before)
    for config in switched:
        config._attn_implementation_internal = IMPLEMENTATION  # the other setter goes on to nested configurations
    return model


def unpatch(model: Model) -> Model:
    """Gives a model that `patch` has switched the attention that it had before, and returns it.

    Raises ContractError for a model that `patch` has not switched.
    """
    if not hasattr(model, _BEFORE):
        raise ContractError(f"{type(model).__name__}: is not patched; give the model that was given to patch")
    for config, implementation in getattr(model, _BEFORE):
        config._attn_implementation_internal = implementation
    delattr(model, _BEFORE)
    return model


def _transformers() -> ModuleType:
    try:
        import transformers
        from packaging.version import Version  # which transformers needs itself
    except ImportError as error:
        raise MissingDependency(
            f"attngraft.torch.patch needs transformers, which cannot be imported ({error}); "
            "pip install 'attngraft[transformers]'"
        ) from error
    if Version(transformers.__version__) < Version(OLDEST_TRANSFORMERS):
        raise MissingDependency(
            f"attngraft.torch.patch needs transformers>={OLDEST_TRANSFORMERS}, whose mask interface tells where the "
            f"queries start; {transformers.__version__} does not; pip install 'transformers>={OLDEST_TRANSFORMERS}'"
        )
    return transformers


def _cannot(model: nn.Module) -> str | None:
    """Why the model cannot be switched as a whole; None if it can."""
    from transformers import PreTrainedModel

    if not any(isinstance(module, PreTrainedModel) for module in model.modules()):
        return "is no Hugging Face model; give a transformers.PreTrainedModel, or a module that has one"
    kinds = {type(module) for module in model.modules()}
    asking = {kind for kind in kinds if _INTERFACE in _names_in(kind)}
    alone = sorted(kind.__name__ for kind in kinds - asking if _computes_attention(kind))
    if alone:
        return f"{', '.join(alone)} computes attention by itself, not through transformers' attention interface"
    if not asking:
        return "has no layer that asks transformers' attention interface"
    for part in model.modules():
        asks = isinstance(part, PreTrainedModel) and any(type(module) in asking for module in part.modules())
        if asks and not any(getattr(part, flag, True) for flag in _SUPPORT_FLAGS):
            return f"{type(part).__name__} declares that it supports no attention but its own"
    return None


def _computes_attention(kind: type[nn.Module]) -> bool:
    return "Attention" in kind.__name__ and not _OWN_ATTENTION.isdisjoint(_names_in(kind))


def _names_in(kind: type[nn.Module]) -> set[str]:
    """The global names and attributes that the methods of a class use, those of its general base classes left out."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith(_GENERAL):
            continue
        for method in vars(base).values():
            if inspect.isfunction(method):
                names.update(inspect.unwrap(method).__code__.co_names)
    return names


def _configs(model: nn.Module) -> list[Any]:
    """The configurations in which the modules of the model look their attention up, once each."""
    from transformers import PretrainedConfig

    configs = [getattr(module, "config", None) for module in model.modules()]
    return list({id(config): config for config in configs if isinstance(config, PretrainedConfig)}.values())
