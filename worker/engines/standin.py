"""A module's double that parks calls at the hub instead of running them, and else is the module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

_HOOKS = ("_diffusers_hook", "_hf_hook")
Intercept = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def stand_in(real: nn.Module, intercepts: Mapping[str, Intercept]) -> nn.Module:
    """An object of a subclass of `real`'s class that shares its `__dict__`: config, dtype, device, weights and later
    changes to them are the real ones, `isinstance` holds. The named methods go to their intercept; `modules` shows
    those that have hooks."""
    cls = type(real)
    methods: dict[str, Any] = {name: _method(intercept) for name, intercept in intercepts.items()}
    # pipelines look for offloading hooks in all submodules several times per call, a microsecond for each without any
    hooked = tuple(module for module in real.modules() if any(hasattr(module, name) for name in _HOOKS))
    methods["modules"] = lambda _self, **_: iter(hooked)
    methods["to"] = lambda self, *_, **__: self  # a pipeline that casts it for its own call would cast it for all
    first = next(real.parameters(), None)
    if first is not None:  # moving a module changes its parameters' data, not the parameters
        methods["device"] = property(lambda _self: first.device)
    typical = next((one for one in real.parameters() if one.dtype == getattr(real, "dtype", None)), None)
    if typical is not None:
        methods["dtype"] = property(lambda _self: typical.dtype)
    if hasattr(cls, "cache_context"):
        methods["cache_context"] = _cache_context
    methods |= {"__module__": cls.__module__, "__doc__": cls.__doc__}
    double_class = type(cls.__name__, (cls,), methods)
    double: nn.Module = object.__new__(double_class)
    object.__setattr__(double, "__dict__", real.__dict__)
    return double


def _method(intercept: Intercept) -> Callable[..., Any]:
    def call(_self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return intercept(args, kwargs)

    return call


def _cache_context(self: Any, name: str, **kwargs: Any) -> AbstractContextManager[None]:
    """Without a cache there is no context to set; the original walks over all submodules to find that out."""
    if getattr(self, "is_cache_enabled", False):
        context: AbstractContextManager[None] = super(type(self), self).cache_context(name, **kwargs)
        return context
    return nullcontext()
