"""How much memory a model's weights will take, told from their files before anything is loaded."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path

from genmill.registry import ModelSpec

_LOADED = re.compile(r"(diffusion_pytorch_model|model|pytorch_model)(-\d{5}-of-\d{5})?\.(safetensors|bin)")
"""Names that are loaded by default; others beside them are variants of the same weights."""
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_LONGEST_HEADER = 100_000_000
"""Of a safetensors file, as its format has it."""


def weights_bytes(spec: ModelSpec, default_dtype: str) -> int | None:
    """Bytes of a model's weights and its ControlNets' in its dtype; adapters come later. None where their files are
    not on this machine yet, or do not tell."""
    number_bytes = number_bytes_of(spec, default_dtype)
    try:
        own = folder_of(spec.source, None if spec.revision == "1" else spec.revision)
        controls = [folder_of(control.source, control.revision) for control in spec.controlnets.values()]
        return sum(_bytes_in(part, number_bytes) for part in [*_parts_of(own), *controls]) or None
    except (OSError, ValueError, LookupError, TypeError, struct.error):  # whatever is wrong with it, loading tells
        return None


def dtype_of(spec: ModelSpec, default_dtype: str) -> str:
    """What the model's numbers are on a device where "auto" means the default one."""
    return default_dtype if spec.dtype == "auto" else spec.dtype


def number_bytes_of(spec: ModelSpec, default_dtype: str) -> int:
    """Bytes of one of the model's numbers."""
    return _BYTES[dtype_of(spec, default_dtype)]


def folder_of(source: str, revision: str | None) -> Path:
    """The source, or what the hub's library has kept of it. Raises OSError or ValueError where that is nothing."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download  # noqa: PLC0415  # slow to import

    return Path(snapshot_download(source, revision=revision, local_files_only=True))


def _parts_of(folder: Path) -> Iterator[Path]:
    """The folders of a pipeline's components, or the one folder of a plain model."""
    index = folder / "model_index.json"
    if not index.exists():
        yield folder
        return
    for name in json.loads(index.read_text(encoding="utf-8")):
        if (folder / name).is_dir():
            yield folder / name


def _bytes_in(folder: Path, number_bytes: int) -> int:
    """Of safetensors where there are some: other files are then the same once more. Those do not tell their dtype."""
    files = [path for path in folder.iterdir() if _LOADED.fullmatch(path.name)]
    tensors = [path for path in files if path.suffix == ".safetensors"]
    if tensors:
        return sum(_tensors_bytes(path, number_bytes) for path in tensors)
    return sum(path.stat().st_size for path in files)


def _tensors_bytes(path: Path, number_bytes: int) -> int:
    """Floating point numbers are loaded as the model's dtype, others as they are."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _LONGEST_HEADER:
            raise ValueError(f"{path.name}: a header of {length} bytes")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise TypeError(f"{path.name}: its header is no table")
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            is_float = "F" in tensor["dtype"]  # F32, F16, BF16, F8_E4M3
            total += prod(tensor["shape"]) * number_bytes if is_float else end - begin
    return total
