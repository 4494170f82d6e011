"""transformers' continuous batching, stepped by its caller instead of by a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList

from worker.engines.kv_cache import sizes_on
from worker.engines.sampling import SeededSampler


class PagedBatch:
    """The running batch of one causal language model. All methods are called from one thread."""

    def __init__(self, model: Any, *, max_requests: int, context: int) -> None:
        self._model = model
        self.sampler = SeededSampler()
        config = _config(model.device, max_requests, context)
        # do_sample is off because the sampler has already chosen: argmax finds the one token that it left
        generation = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=context)
        self._manager = model.init_continuous_batching(generation, config)
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self.sampler]))
        processors.tensors_required = 1
        self._manager.logit_processor = processors
        self._manager.warmup()  # creates the batch processor; captures graphs only where they are enabled
        self._processor = self._manager.batch_processor

    @property
    def bytes(self) -> int:
        """What the cache and the tables of a forward take of the device."""
        tensors = [*_tensors_of(self._processor.cache), *_tensors_of(self._processor.inputs_and_outputs)]
        storages = [tensor.untyped_storage() for tensor in tensors]  # most are slices of a few
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def add(self, request_id: str, tokens: Sequence[int], max_new_tokens: int, eos: Sequence[int]) -> None:
        self._manager.add_request(
            list(tokens),
            request_id=request_id,
            max_new_tokens=max_new_tokens,
            streaming=True,
            eos_token_id=list(eos),
        )

    def cancel(self, request_id: str) -> None:
        """Takes effect with the next step."""
        self._manager.cancel_request(request_id)

    def step(self) -> list[Any]:
        """One forward. Returns the outputs of requests that got a token.

        Raises what the model raises; then no request of the batch may be used again (see `reset`)."""
        with torch.inference_mode():
            if not self._processor.prepare_next_batch():
                return []
            # what the library's own thread does between prepare and update; it offers no public name for it
            self._processor._generation_step(self._model)
            self._processor.update_batch()
        return self._drained()

    def reset(self) -> None:
        """Forget all requests."""
        self._processor.reset()
        self._drained()

    def drop(self) -> None:
        """Free the cache; the batch is not used again."""
        self._model = self._manager = self._processor = None

    def _drained(self) -> list[Any]:
        outputs, waiting = [], self._manager.output_router.output_queue
        while not waiting.empty():
            outputs.append(waiting.get_nowait())
        return outputs


def _config(device: torch.device, max_requests: int, context: int) -> Any:
    sizes = sizes_on(device.type)
    return ContinuousBatchingConfig(
        page_size=sizes.page,
        num_blocks=sizes.blocks(max_requests, context),
        max_batch_tokens=sizes.forward_tokens(max_requests),
        max_requests_per_batch=max_requests,
        max_blocks_per_request=0,
        allow_block_sharing=False,
        use_async_batching=False,  # the sampler needs each step's rows before the next step is made up
        use_cuda_graph=False,
        auto_switch_to_flash=False,
    )


def _tensors_of(part: object) -> list[torch.Tensor]:
    """What it holds itself, or in tables."""
    values = [one for value in vars(part).values() for one in (value.values() if isinstance(value, dict) else [value])]
    return [value for value in values if isinstance(value, torch.Tensor)]
