"""What an error of a model means, told by names and words, for rooms without torch."""

from __future__ import annotations


def lacks_memory(error: BaseException | None) -> bool:
    """The device, or the host, had no room, here or in what the error comes from. CUDA has a class for it; the CPU
    allocator only has words."""
    if error is None:
        return False
    is_named = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return is_named or "can't allocate memory" in str(error) or lacks_memory(error.__cause__)
