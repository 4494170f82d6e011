"""What all benchmarks write: figures, samples, the machine, the command; as JSON, and the figures on stdout."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """Where it was measured. To be asked before the measuring starts, for the load."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_before": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write(out: Path, module: str, figures: Mapping[str, float], about: Mapping[str, Any], **parts: Any) -> None:
    """`parts` are whatever else the report holds, samples above all."""
    report = {
        "figures": {name: round(value, 6) for name, value in figures.items()},
        **parts,
        "machine": dict(about),
        "command": " ".join(["python", "-m", module, *sys.argv[1:]]),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report["figures"], indent=2))
