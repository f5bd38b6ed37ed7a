"""A pruned BACKBONE model with linear maps where layers were removed. Written by ghostlab.

The maps stand in the base model; everything else is transformers' own. `config.ghostlab["operators"]` says where: `layer`
counts the layers that stayed, `at` is `before` or `after` the layer, or the norm that one of its branches ends in.
"""

import torch
from torch import nn
from transformers import BACKBONEConfig, BACKBONEForCausalLM, BACKBONEModel
from transformers.models.MODEL_TYPE.modeling_MODEL_TYPE import BACKBONEDecoderLayer

# Stored and applied in float32, whatever the model's own type is.
WIDE = ["boundary", "boundary_after", "branch_map"]


class Operator(nn.Module):
    """x·W at every position: a linear map without bias, or a factor for each channel."""

    def __init__(self, form, channels):
        super().__init__()
        # Wᵀ [channels, channels] as nn.Linear has it, or the diagonal [channels].
        self.weight = nn.Parameter(torch.ones(channels) if form == "diagonal" else torch.eye(channels))

    def forward(self, x):
        wide = x.to(self.weight.dtype)
        wide = wide * self.weight if self.weight.dim() == 1 else nn.functional.linear(wide, self.weight)
        return wide.to(x.dtype)


class BoundaryLayer(BACKBONEDecoderLayer):
    """A layer with a map on the stream that enters it, or that leaves it."""

    def __init__(self, config, layer_idx, before=None, after=None):
        super().__init__(config, layer_idx)
        self.boundary = Operator(before, config.hidden_size) if before else None
        self.boundary_after = Operator(after, config.hidden_size) if after else None

    def forward(self, hidden_states, *args, **kwargs):
        if self.boundary is not None:
            hidden_states = self.boundary(hidden_states)
        out = super().forward(hidden_states, *args, **kwargs)
        if self.boundary_after is None:
            return out
        # Before 4.54 a layer gave a tuple.
        return (self.boundary_after(out[0]), *out[1:]) if isinstance(out, tuple) else self.boundary_after(out)


class MappedNorm(nn.Module):
    """The norm that a branch ends in, with a map behind it."""

    def __init__(self, norm, form, channels):
        super().__init__()
        self.norm = norm
        self.branch_map = Operator(form, channels)

    def forward(self, x):
        return self.branch_map(self.norm(x))


class GhostedBACKBONEConfig(BACKBONEConfig):
    model_type = "ghostlab_MODEL_TYPE"


class GhostedBACKBONEModel(BACKBONEModel):
    config_class = GhostedBACKBONEConfig
    _no_split_modules = [*BACKBONEModel._no_split_modules, "BoundaryLayer"]
    _keep_in_fp32_modules_strict = WIDE

    def __init__(self, config):
        super().__init__(config)
        forms = {(place["layer"], place["at"]): place["form"] for place in config.ghostlab["operators"]}
        for layer in sorted({layer for layer, at in forms if at in ("before", "after")}):
            before, after = forms.get((layer, "before")), forms.get((layer, "after"))
            self.layers[layer] = BoundaryLayer(config, layer, before, after)
        for (layer, at), form in forms.items():
            if at not in ("before", "after"):
                norm = getattr(self.layers[layer], at)
                setattr(self.layers[layer], at, MappedNorm(norm, form, config.hidden_size))


class GhostedBACKBONEForCausalLM(BACKBONEForCausalLM):
    config_class = GhostedBACKBONEConfig
    _no_split_modules = GhostedBACKBONEModel._no_split_modules
    _keep_in_fp32_modules_strict = WIDE

    def __init__(self, config):
        super().__init__(config)
        self.model = GhostedBACKBONEModel(config)
        self.post_init()
