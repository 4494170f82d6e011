"""What a worker is told of its device and host."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import SettingsFactory
from worker.engines import devices
from worker.engines.base import Device
from worker.sizes import host_budget_bytes

GIB = 2**30


@pytest.fixture
def one_gpu_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA_VISIBLE_DEVICES=3 leaves it to torch."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (70 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 8)
    monkeypatch.setattr(devices, "_host_bytes", lambda: 160 * GIB)


@pytest.mark.usefixtures("one_gpu_of_eight")
def test_gpus_that_are_hidden_from_a_worker_have_workers_too(make_settings: SettingsFactory) -> None:
    device = devices.find_device("cuda")
    assert device == Device("a GPU", 80 * GIB, 80 * GIB, host_devices=8, dtype="float16")
    assert host_budget_bytes(make_settings(), device) == 10 * GIB


@pytest.mark.parametrize("fault", [OSError("no NVML"), AttributeError("an old one")])
@pytest.mark.usefixtures("one_gpu_of_eight")
def test_without_nvml_those_that_torch_sees_count(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise fault

    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", fail)
    assert devices.find_device("cuda").host_devices == 1


@pytest.mark.parametrize(
    ("settings", "gib"), [({"workers_per_host": 4}, 20), ({"host_memory_gib": 7, "workers_per_host": 4}, 7)]
)
def test_the_settings_say_how_many_share_the_host(
    settings: dict[str, float], gib: int, make_settings: SettingsFactory
) -> None:
    device = Device("a GPU", 80 * GIB, 80 * GIB, host_devices=8)
    assert host_budget_bytes(make_settings(**settings), device) == gib * GIB
