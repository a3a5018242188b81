"""A site's one mask as what it is: a tensor [B, Sk] of the keys, where the model spreads it to [B, 1, Sq, Sk], alone or
together with causality.

Comes in: a site's masks as the model has them, and as they were read. Goes out: the one that was read, or None where it
and causality from the upper left are not proved to be all that masks the site, or where it is not proved to have the
site's own batch size and number of keys. A mask of which TensorRT does not know whether it is to be broadcast is not
fused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attngraft.contract import CausalMode, MaskedSoftmax, Role
from attngraft.match.meaning import read_dims
from attngraft.match.records import MaskPart, WholeSite
from attngraft.onnx_graph import GraphView

__all__ = ["find_key_mask"]


def find_key_mask(
    view: GraphView,
    whole: WholeSite | None,
    given: Sequence[MaskPart],
    read: Sequence[MaskPart],
    config: MaskedSoftmax | None,
) -> MaskPart | None:
    """The mask of the keys; `config` says what was read beside `read`."""
    if whole is None or config is None or len(given) != 1 or len(read) != 1:
        return None
    (spread,), (mask,) = given, read
    is_unbounded = max(config.window_left, config.window_right) < 0 and whole.causal == CausalMode.NONE
    is_aligned = config.causal in (CausalMode.NONE, CausalMode.TOP_LEFT)
    is_all = config.operands == (Role.KEEP,) and is_unbounded and is_aligned
    fills = spread.form in ("where", "add-where") and spread.fill == mask.fill == -math.inf
    is_smaller = bool(mask.unsqueeze) and not mask.taken_as_zero_one
    return mask if is_all and fills and is_smaller and _has_sizes_of(view, mask.tensors[0], whole) else None


def _has_sizes_of(view: GraphView, mask: str, whole: WholeSite) -> bool:
    """Whether the mask is [B, Sk] with the site's own sizes."""
    sizes, query, key = (read_dims(view, name) for name in (mask, whole.query, whole.key))
    if sizes is None or query is None or key is None:
        return False
    return tuple(sizes) == (query[0], key[-1 if whole.key_transposed else -2])
