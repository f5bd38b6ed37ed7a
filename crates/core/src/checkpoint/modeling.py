"""A pruned BACKBONE model with linear maps in place of removed layers, and layers without attention or MLP.

Written by ghostlab. All other code is from transformers. `config.ghostlab["operators"]` lists the positions of the
maps: `layer` is the index among the remaining layers, and `at` is `before` or `after` the layer, or the name of the norm
at the end of a branch. `config.ghostlab["dropped"]` lists the sublayers that the remaining layers lack, such as
"attention 3" or "mlp 5". A number is the index of a layer that lacks both.
"""

import torch
from torch import nn
from transformers import INNERConfig, BACKBONEForCausalLM, INNERModel
from transformers.models.FOLDER.modeling_FOLDER import BACKBONEDecoderLayer

# Names of the norms of a layer: before and after the attention, before and after the MLP.
NORMS = NORM_NAMES


class InputNorm(nn.Module):
    """Weight of the norm that is applied to the input of a map."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))


class Operator(nn.Module):
    """Map of the stream at every position, with an optional bias: x·W, a factor per channel, only a bias, or
    x + RMSNorm(x)·M."""

    def __init__(self, place, config):
        super().__init__()
        channels, form = config.hidden_size, place["form"]
        self.eps = config.rms_norm_eps if form.startswith("normed") else None
        self.input_norm = InputNorm(channels) if form == "normed" else None
        # Wᵀ or Mᵀ [channels, channels] in the layout of nn.Linear, or the diagonal [channels].
        shape = {"diagonal": (channels,), "bias": None}.get(form, (channels, channels))
        self.weight = nn.Parameter(torch.zeros(shape)) if shape else None
        self.bias = nn.Parameter(torch.zeros(channels)) if place["bias"] else None

    def forward(self, x):
        wide = x.to((self.bias if self.weight is None else self.weight).dtype)
        if self.eps is not None:
            normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
            normed = normed if self.input_norm is None else normed * self.input_norm.weight
            wide = wide + nn.functional.linear(normed, self.weight)
        elif self.weight is not None:
            wide = wide * self.weight if self.weight.dim() == 1 else nn.functional.linear(wide, self.weight)
        return (wide if self.bias is None else wide + self.bias).to(x.dtype)


class BoundaryLayer(BACKBONEDecoderLayer):
    """Layer with a map of its input, its output, or both."""

    def __init__(self, config, layer_idx, before=None, after=None):
        super().__init__(config, layer_idx)
        self.boundary = Operator(before, config) if before else None
        self.boundary_after = Operator(after, config) if after else None

    def forward(self, hidden_states, *args, **kwargs):
        if self.boundary is not None:
            hidden_states = self.boundary(hidden_states)
        out = super().forward(hidden_states, *args, **kwargs)
        if self.boundary_after is None:
            return out
        # Before transformers 4.54, layers returned a tuple.
        return (self.boundary_after(out[0]), *out[1:]) if isinstance(out, tuple) else self.boundary_after(out)


class MappedNorm(nn.Module):
    """Norm at the end of a branch, followed by a map."""

    def __init__(self, norm, place, config):
        super().__init__()
        self.norm = norm
        self.branch_map = Operator(place, config)

    def forward(self, x):
        return self.branch_map(self.norm(x))


# The name must not end in Attention, because transformers would take this for a custom attention implementation.
class DroppedAttn(nn.Module):
    """Replaces a dropped attention: adds nothing to the stream.

    transformers reads the sequence length from the KV cache of individual layers, so this layer stores one number per
    token in its cache.
    """

    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, hidden_states, *args, **kwargs):
        # transformers renamed the argument in 4.56 and in 5.24.
        caches = (kwargs.get(name) for name in ("cache", "past_key_values", "past_key_value"))
        cache = next((cache for cache in caches if cache is not None), None)
        if cache is not None:
            layers = getattr(cache, "layers", [])
            keys = layers[self.layer_idx].keys if self.layer_idx < len(layers) else None
            # A static cache may already be allocated with the shape of attention heads.
            heads, width = (keys.shape[1], keys.shape[3]) if keys is not None and keys.dim() == 4 else (1, 1)
            token = hidden_states.new_ones(hidden_states.shape[0], heads, hidden_states.shape[1], width)
            cache.update(token, token, self.layer_idx, {"cache_position": kwargs.get("cache_position")})
        return torch.zeros_like(hidden_states), None


class DroppedMlp(nn.Module):
    """Replaces a dropped MLP: adds nothing to the stream."""

    def forward(self, hidden_states):
        return torch.zeros_like(hidden_states)


class GhostedBACKBONEConfig(INNERConfig):
    # config.json names an activation that does not exist, so that loaders that ignore this file fail instead of loading
    # an incomplete model. Tokenizers load without this file and without a prompt for remote code.
    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        return super().from_dict({**config_dict, "ACTIVATION": config_dict["ghostlab"]["activation"]}, **kwargs)

    def to_diff_dict(self):
        return {**super().to_diff_dict(), "ACTIVATION": "GUARD"}


def drop(layer, kind, index):
    """Removes the attention or the MLP of a layer, with its norms."""
    norms = NORMS[:2] if kind == "attention" else NORMS[2:]
    for name in filter(None, norms):
        setattr(layer, name, nn.Identity())
    if kind == "attention":
        layer.self_attn = DroppedAttn(index)
    else:
        layer.mlp = DroppedMlp()


def attach(model):
    """Adds the maps to a base model and removes dropped sublayers. Returns the module names of the maps, which stay in
    float32 regardless of the type of the model."""
    config = model.config
    places = {(place["layer"], place["at"]): place for place in config.ghostlab["operators"]}
    for layer in sorted({layer for layer, at in places if at in ("before", "after")}):
        before, after = places.get((layer, "before")), places.get((layer, "after"))
        model.layers[layer] = BoundaryLayer(config, layer, before, after)
    for (layer, at), place in places.items():
        if at not in ("before", "after"):
            norm = getattr(model.layers[layer], at)
            setattr(model.layers[layer], at, MappedNorm(norm, place, config))
    for dropped in config.ghostlab.get("dropped", []):
        *kinds, index = str(dropped).split()
        for kind in kinds or ("attention", "mlp"):
            drop(model.layers[int(index)], kind, int(index))
    return sorted({{"before": "boundary", "after": "boundary_after"}.get(at, "branch_map") for _, at in places})


class GhostedBACKBONEModel(INNERModel):
    config_class = GhostedBACKBONEConfig
    _no_split_modules = [*INNERModel._no_split_modules, "BoundaryLayer"]

    def __init__(self, config):
        super().__init__(config)
        self._keep_in_fp32_modules_strict = attach(self)
        self.post_init()


class GhostedBACKBONEForCausalLM(BACKBONEForCausalLM):
    config_class = GhostedBACKBONEConfig
    _no_split_modules = GhostedBACKBONEModel._no_split_modules

    def __init__(self, config):
        super().__init__(config)
        self._keep_in_fp32_modules_strict = attach(self.model)
        self.post_init()
