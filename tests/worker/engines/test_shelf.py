"""Parked weights: in few pieces, of which little is lost, with the layout that they had, and back again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.worker.engines import tiny
from worker.engines.memory import bytes_of
from worker.engines.shelf import ALIGNMENT, LEAST_SLAB, Weights, fetch, modules_of, shelve, slabs_of

CPU = torch.device("cpu")
MIB = 2**20


def rounded(size: int) -> int:
    """What torch's allocator of pinned memory takes for it."""
    return 1 << (size - 1).bit_length()


def storages(modules: list[nn.Module]) -> dict[int, int]:
    """Bytes by place."""
    tensors = [one for module in modules for one in (*module.parameters(), *module.buffers())]
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}


@given(st.lists(st.integers(0, 5_000_000), max_size=40))
def test_everything_has_a_place_of_its_own(sizes: list[int]) -> None:
    slabs = slabs_of(sizes)
    assert sorted(number for slab in slabs for number in slab.places) == list(range(len(sizes)))
    for slab in slabs:
        assert slab.size & (slab.size - 1) == 0, "the allocator would round it up"
        end = 0
        for number, begin in sorted(slab.places.items(), key=lambda one: one[1]):
            assert begin >= end
            assert begin % ALIGNMENT == 0
            end = begin + sizes[number]
        assert end <= slab.size


@pytest.mark.parametrize(
    "sizes",
    [
        [100 * MIB] * 69,
        [1280 * 1280 * 2, 1280 * 5120 * 2, 2560, 10240 * 1280 * 2] * 300,
        [4096 * 4096 * 2, 4096 * 14336 * 2, 8192] * 32 + [128_256 * 4096 * 2] * 2,
    ],
)
def test_little_is_lost_of_models_of_usual_layers(sizes: list[int]) -> None:
    held, alone = sum(slab.size for slab in slabs_of(sizes)), sum(map(rounded, sizes))
    assert held <= 1.05 * sum(sizes) + LEAST_SLAB
    assert held < min(alone, rounded(sum(sizes)))


def test_a_parked_model_lies_in_its_slabs_and_holds_what_was_told() -> None:
    modules = modules_of(tiny.stable_diffusion())
    weights, before = Weights(modules, CPU), storages(modules)
    told = weights.parked_bytes()
    weights.park()
    parked = storages(modules)
    assert sum(parked.values()) == told >= weights.bytes
    assert len(parked) == 1 < len(before)
    weights.unpark()
    assert len(storages(modules)) == len(before)
    assert not set(storages(modules)) & set(parked), "nothing holds the slabs"


def test_layouts_stay_as_they_were() -> None:
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    convolution.register_buffer("none", torch.empty(0))
    convolution.register_buffer("flag", torch.tensor(True))
    convolution.register_buffer("rows", torch.arange(6, dtype=torch.int64)[None].expand(4, 6))
    convolution.register_buffer("halves", torch.rand(5).half())
    before = {name: one.clone() for name, one in convolution.state_dict().items()}
    strides = convolution.weight.stride()
    for move in (shelve, fetch):
        move([convolution], CPU)
        assert convolution.weight.stride() == strides
        for name, one in convolution.state_dict().items():
            assert torch.equal(one, before[name]), name
            assert one.dtype == before[name].dtype


def test_tied_weights_are_parked_once_and_stay_tied() -> None:
    first, second = nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False)
    second.weight = nn.Parameter(first.weight.data)  # another parameter of the same memory
    weights = Weights([first, second], CPU)
    assert weights.parked_bytes() == bytes_of(first) == MIB
    for move in (weights.park, weights.unpark):
        move()
        assert first.weight.data_ptr() == second.weight.data_ptr()


def test_a_host_that_refuses_leaves_all_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(4, 4)
    place = module.weight.data_ptr()

    def refuse(*_given: object, **_more: object) -> torch.Tensor:
        raise RuntimeError("cannot pin")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", refuse)
        with pytest.raises(RuntimeError, match="cannot pin"):
            shelve([module], CPU)
    assert module.weight.data_ptr() == place
