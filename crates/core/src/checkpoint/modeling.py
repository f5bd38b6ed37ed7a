"""A pruned BACKBONE model: linear maps where layers were removed, and layers without attention or MLP. Written by ghostlab.

Everything else is transformers' own. `config.ghostlab["operators"]` says where the maps are: `layer` counts the layers that
stayed, `at` is `before` or `after` the layer, or the norm that one of its branches ends in. `config.ghostlab["dropped"]`
lists the sublayers that these layers do not have, such as "attention 3" or "mlp 5".
"""

import torch
from torch import nn
from transformers import INNERConfig, BACKBONEForCausalLM, INNERModel
from transformers.models.FOLDER.modeling_FOLDER import BACKBONEDecoderLayer

# Names of a layer's norms, before and after the attention, before and after the MLP.
NORMS = NORM_NAMES


class InputNorm(nn.Module):
    """The weight of the norm that a map reads the stream through."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))


class Operator(nn.Module):
    """A map of the stream at every position, with a bias where it has one: x·W, a factor for each channel, nothing but the
    bias, or x + RMSNorm(x)·M."""

    def __init__(self, place, config):
        super().__init__()
        channels, form = config.hidden_size, place["form"]
        self.eps = config.rms_norm_eps if form.startswith("normed") else None
        self.input_norm = InputNorm(channels) if form == "normed" else None
        # Wᵀ or Mᵀ [channels, channels] as nn.Linear has it, or the diagonal [channels].
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
    """A layer with a map on the stream that enters it, or that leaves it."""

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
        # Before 4.54 a layer gave a tuple.
        return (self.boundary_after(out[0]), *out[1:]) if isinstance(out, tuple) else self.boundary_after(out)


class MappedNorm(nn.Module):
    """The norm that a branch ends in, with a map behind it."""

    def __init__(self, norm, place, config):
        super().__init__()
        self.norm = norm
        self.branch_map = Operator(place, config)

    def forward(self, x):
        return self.branch_map(self.norm(x))


# A name that ends in Attention would tell transformers that this file has attention of its own.
class DroppedAttn(nn.Module):
    """Replaces a dropped attention: adds nothing to the stream.

    transformers takes the length of the text from the KV cache of single layers, so the cache of this one counts the tokens,
    with one number for each.
    """

    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, hidden_states, *args, **kwargs):
        # The argument was renamed in 4.56 and in 5.24.
        caches = (kwargs.get(name) for name in ("cache", "past_key_values", "past_key_value"))
        cache = next((cache for cache in caches if cache is not None), None)
        if cache is not None:
            layers = getattr(cache, "layers", [])
            keys = layers[self.layer_idx].keys if self.layer_idx < len(layers) else None
            # A static cache may have been made for heads already.
            heads, width = (keys.shape[1], keys.shape[3]) if keys is not None and keys.dim() == 4 else (1, 1)
            token = hidden_states.new_ones(hidden_states.shape[0], heads, hidden_states.shape[1], width)
            cache.update(token, token, self.layer_idx, {"cache_position": kwargs.get("cache_position")})
        return torch.zeros_like(hidden_states), None


class DroppedMlp(nn.Module):
    """Replaces a dropped MLP: adds nothing to the stream."""

    def forward(self, hidden_states):
        return torch.zeros_like(hidden_states)


class GhostedBACKBONEConfig(INNERConfig):
    # config.json names no activation there is, so that nothing takes these weights for the whole model: what does not run
    # this file stops before it reads them. Tokenizers load without it, and nobody is asked anything.
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
    """Puts the maps into a base model whose layers are plain, and removes dropped sublayers. Returns the names of the maps,
    which stay in float32 in a model of another type."""
    config = model.config
    places = {(place["layer"], place["at"]): place for place in config.ghostlab["operators"]}
    for layer in sorted({layer for layer, at in places if at in ("before", "after")}):
        before, after = places.get((layer, "before")), places.get((layer, "after"))
        model.layers[layer] = BoundaryLayer(config, layer, before, after)
    for (layer, at), place in places.items():
        if at not in ("before", "after"):
            norm = getattr(model.layers[layer], at)
            setattr(model.layers[layer], at, MappedNorm(norm, place, config))
    for sublayer in config.ghostlab.get("dropped", []):
        kind, index = sublayer.split()
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
