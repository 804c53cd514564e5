"""The memory node of a GPU: its PCI id is found without initialising CUDA, and a wrong one harms nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from feedline.device import pci_id

torch = pytest.importorskip("torch")


def test_the_pci_id_of_a_device(monkeypatch) -> None:
    asked = []

    def properties(number: int) -> SimpleNamespace:
        asked.append(number)
        if number > 3:
            raise AssertionError("Invalid device id")
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=number)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert pci_id("cuda:2", False) is None
    assert not asked, "asking would initialise CUDA"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert pci_id("cuda:2", False) == "0000:3b:02.0"
    assert pci_id("cuda", False) == "0000:3b:01.0"
    assert pci_id(None, True) == "0000:3b:01.0"
    assert pci_id(None, False) is None
    assert pci_id("cuda:7", False) is None
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    assert pci_id("cuda", False) is None, "a torch that does not tell"


def test_a_device_that_the_system_does_not_know(load) -> None:
    loader = load()
    loader._job.spec["device_pci"] = "ffff:ff:1f.7"
    assert sum(len(batch.sample_keys) for batch in loader) == 100
    other = load()
    other._job.spec["device_pci"] = "../../../etc/passwd"
    with pytest.raises(ValueError, match="is no PCI id"):
        list(other)
