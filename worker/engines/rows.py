"""Joins the arguments of several calls of one module into one call, and splits its output again.

Which arguments hold one entry per row is declared by name for each class, never guessed from a shape: Flux's
`img_ids` may well have as many entries as there are rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_UNET = (
    "sample", "timestep", "encoder_hidden_states", "class_labels", "timestep_cond", "attention_mask",
    "added_cond_kwargs", "down_block_additional_residuals", "mid_block_additional_residual",
    "down_intrablock_additional_residuals", "encoder_attention_mask",
)  # fmt: skip
_CONTROLNET = (
    "sample", "timestep", "encoder_hidden_states", "controlnet_cond", "class_labels", "timestep_cond",
    "attention_mask", "added_cond_kwargs",
)  # fmt: skip
_TRANSFORMER = ("hidden_states", "timestep", "encoder_hidden_states")
_TEXT = ("input_ids", "attention_mask", "position_ids")

ROW_ARGUMENTS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("UNet2DConditionModel", "__call__"): _UNET,
    ("SD3Transformer2DModel", "__call__"): (
        *_TRANSFORMER, "pooled_projections", "block_controlnet_hidden_states",
    ),
    ("FluxTransformer2DModel", "__call__"): (
        *_TRANSFORMER, "pooled_projections", "guidance", "controlnet_block_samples",
        "controlnet_single_block_samples",
    ),
    ("PixArtTransformer2DModel", "__call__"): (
        *_TRANSFORMER, "added_cond_kwargs", "attention_mask", "encoder_attention_mask",
    ),
    ("SanaTransformer2DModel", "__call__"): (
        *_TRANSFORMER, "guidance", "attention_mask", "encoder_attention_mask", "controlnet_block_samples",
    ),
    ("AuraFlowTransformer2DModel", "__call__"): _TRANSFORMER,
    ("LTXVideoTransformer3DModel", "__call__"): (*_TRANSFORMER, "encoder_attention_mask", "video_coords"),
    ("WanTransformer3DModel", "__call__"): (*_TRANSFORMER, "encoder_hidden_states_image"),
    ("ControlNetModel", "__call__"): _CONTROLNET,
    ("CLIPTextModel", "__call__"): _TEXT,
    ("CLIPTextModelWithProjection", "__call__"): _TEXT,
    ("T5EncoderModel", "__call__"): _TEXT,
    ("UMT5EncoderModel", "__call__"): _TEXT,
    ("Gemma2Model", "__call__"): _TEXT,
    ("AutoencoderKL", "decode"): ("z",),
    ("AutoencoderKL", "encode"): ("x",),
    ("AutoencoderDC", "decode"): ("z",),
    ("AutoencoderKLWan", "decode"): ("z",),
    ("AutoencoderKLLTXVideo", "decode"): ("z", "temb"),
}  # fmt: skip
"""(class, method) -> row arguments, the one that counts the rows first. Tensors nested in them are rows too."""

UNUSED_ARGUMENTS: Mapping[tuple[str, str], tuple[str, ...]] = {("AutoencoderKL", "decode"): ("generator",)}
"""Accepted but never read: left out, or each image's own generator would keep its call from every group."""

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How calls of one method join. `names` is empty for an unknown class, whose calls would run one by one."""

    parameters: tuple[str, ...]
    names: tuple[str, ...]
    unused: tuple[str, ...] = ()

    @classmethod
    def of(cls, class_name: str, method: str, parameters: Sequence[str]) -> RowPlan:
        key = (class_name, method)
        return cls(tuple(parameters), ROW_ARGUMENTS.get(key, ()), UNUSED_ARGUMENTS.get(key, ()))

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """All arguments by name."""
        bound = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
        for name in self.unused:
            bound.pop(name, None)
        return bound

    def rows(self, arguments: Arguments) -> int:
        """The length of its first row argument; 0 when it cannot be told, so that the call runs alone."""
        first = arguments.get(self.names[0]) if self.names else None
        return first.shape[0] if isinstance(first, Tensor) and first.dim() > 0 else 0

    def signature(self, arguments: Arguments, rows: int, digests: Digests) -> Hashable:
        """Calls with equal signatures may join: same shapes past the rows, dtypes, and other arguments."""
        if not rows:
            return object()
        return tuple(
            (name, _row_form(value, rows) if name in self.names else _frozen(value, digests))
            for name, value in sorted(arguments.items())
        )

    def join(self, calls: Sequence[Arguments], counts: Sequence[int]) -> Arguments:
        """One call of sum(counts) rows. A single call passes as it is."""
        if len(calls) == 1:
            return calls[0]
        device = calls[0][self.names[0]].device
        return {
            name: _joined([call[name] for call in calls], counts, device) if name in self.names else value
            for name, value in calls[0].items()
        }

    def pad(self, arguments: Arguments, rows: int, size: int) -> Arguments:
        """The call with its last row repeated up to `size` rows, and a value in each row for what was one for all."""
        device = arguments[self.names[0]].device
        return {
            name: _padded(value, rows, size, device) if name in self.names else value
            for name, value in arguments.items()
        }


class Digests:
    """Content fingerprints of shared tensors, kept for as long as one job passes the same tensor object."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Hashable]] = {}

    def of(self, tensor: Tensor) -> Hashable:
        known = self._known.get(id(tensor))
        if known is None:
            raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            known = (tensor, (tuple(tensor.shape), tensor.dtype, hash(raw)))
            self._known[id(tensor)] = known
        return known[1]


def _row_form(value: Any, rows: int) -> Hashable:
    if isinstance(value, Tensor):  # nearly all of them, in each step of each image
        shape = value.shape
        if not shape:
            return "scalar"
        return (shape[1:], value.dtype) if shape[0] == rows else object()
    match value:
        case None:
            return None
        case bool() | int() | float():
            return "scalar"
        case dict():
            return tuple((name, _row_form(part, rows)) for name, part in sorted(value.items()))
        case list() | tuple():
            return tuple(_row_form(part, rows) for part in value)
    return object()  # equal to nothing: whatever this is, it runs alone


def _frozen(value: Any, digests: Digests) -> Hashable:
    match value:
        case None | bool() | int() | float() | str() | torch.dtype():
            return (type(value), value)
        case Tensor():
            return digests.of(value)
        case dict():
            return tuple((name, _frozen(part, digests)) for name, part in sorted(value.items()))
        case list() | tuple():
            return tuple(_frozen(part, digests) for part in value)
    return id(value)


def _joined(values: Sequence[Any], counts: Sequence[int], device: torch.device) -> Any:
    first = values[0]
    match first:
        case None:
            return None
        case Tensor() if first.dim() > 0:
            return torch.cat(list(values))
        case dict():
            return {name: _joined([value[name] for value in values], counts, device) for name in first}
        case list() | tuple():
            return type(first)(_joined(parts, counts, device) for parts in zip(*values, strict=True))
    return _spread(values, counts, device)


def _padded(value: Any, rows: int, size: int, device: torch.device) -> Any:
    match value:
        case None:
            return None
        case Tensor() if value.dim() > 0:
            return torch.cat([value, value[-1:].expand(size - rows, *value.shape[1:])])
        case dict():
            return {name: _padded(part, rows, size, device) for name, part in value.items()}
        case list() | tuple():
            return type(value)(_padded(part, rows, size, device) for part in value)
    return _spread([value], [size], device)


def _spread(values: Sequence[Any], counts: Sequence[int], device: torch.device) -> Tensor:
    """Scalars as one float32 entry per row. Denoisers turn timesteps into float32 anyway, and schedulers differ
    in whether theirs are int64 or float32: their calls must join."""
    if device.type == "cpu":
        flat = torch.tensor([float(value) for value in values], dtype=torch.float32)
        return flat.repeat_interleave(torch.tensor(counts))
    # reading a value would wait for the device, so that each scalar is spread where it is
    parts = [torch.as_tensor(value, dtype=torch.float32, device=device).reshape(1) for value in values]
    return torch.cat([part.expand(count) for part, count in zip(parts, counts, strict=True)])


def take(output: Any, start: int, stop: int, *, is_copy: bool = False) -> Any:
    """Rows start..stop of an output: tensors, tuples, diffusers' and transformers' output classes."""
    match output:
        case Tensor():
            return output[start:stop].clone() if is_copy else output[start:stop]
        case dict():  # both output classes are ordered dicts and dataclasses
            return type(output)(**{name: take(part, start, stop, is_copy=is_copy) for name, part in output.items()})
        case tuple() | list():
            return type(output)(take(part, start, stop, is_copy=is_copy) for part in output)
    if hasattr(output, "parameters") and isinstance(output.parameters, Tensor):
        return type(output)(output.parameters[start:stop])  # DiagonalGaussianDistribution
    return output
