"""Reading a site for the `attention` lowering: which tensors one FusedAttention node can take in place of the site.

Comes in: a graph and a site from Q, K and V to the context (WholeSite). Goes out: an AttentionForm, or the reason why
there is none.
"""

from attngraft.match.attention.form import attention_form
from attngraft.match.attention.masks import MaskReading, with_masks_above

__all__ = ["MaskReading", "attention_form", "with_masks_above"]
