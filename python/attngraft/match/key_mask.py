"""A site's one mask as what it is: a tensor [B, Sk] of the keys, where the model spreads it to [B, 1, Sq, Sk].

Comes in: a site's masks as the model has them, and as they were read. Goes out: the one that was read, or None where it
is not proved to be all that masks the site, or to have the site's own batch size and number of keys. TensorRT fuses no
mask of which it does not know whether it is to be broadcast.
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
    modes = (config.causal, whole.causal, max(config.window_left, config.window_right))
    is_all = config.operands == (Role.KEEP,) and modes == (CausalMode.NONE, CausalMode.NONE, -1)
    fills = spread.form in ("where", "add-where") and spread.fill == mask.fill == -math.inf
    is_smaller = bool(mask.unsqueeze) and not mask.taken_as_zero_one
    return mask if is_all and fills and is_smaller and _has_sizes_of(view, mask.tensors[0], whole) else None


def _has_sizes_of(view: GraphView, mask: str, whole: WholeSite) -> bool:
    """Whether the mask is [B, Sk] with the site's own sizes."""
    sizes, query, key = (read_dims(view, name) for name in (mask, whole.query, whole.key))
    if sizes is None or query is None or key is None:
        return False
    return tuple(sizes) == (query[0], key[-1 if whole.key_transposed else -2])
