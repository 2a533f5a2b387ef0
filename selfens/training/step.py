"""One training step: batch, losses, gradients, optimizer, running means, the method's state.

`Step._body` is all of it. It can be compiled and replayed from a CUDA graph, by independent switches; the result is the same.
Rates are 0-d tensors that are filled in place, and losses stay on the device until the end of the epoch, so nothing here waits
for the device.
"""

import importlib
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from selfens.core.device import autocast, generator
from selfens.core.optim import Optimizer
from selfens.core.prior import Prior
from selfens.data.loader import Loader
from selfens.errors import ConfigError, root_cause
from selfens.methods.base import Losses, Method
from selfens.networks.layers import fuse, update_running_means
from selfens.training.distributed import Group

WARM_UP_STEPS = 3  # real steps before a graph is captured, so that every kernel is compiled and chosen


def start_compiler() -> threading.Thread:
    """Load the compiler and start its worker processes in the background; this takes seconds."""

    def load() -> None:
        with suppress(Exception):  # private modules of torch; if they are missing, the first step does the same
            importlib.import_module("torch._inductor.async_compile").maybe_warm_pool()
            importlib.import_module("torch._inductor.compile_fx")

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    return thread


def generators(device: torch.device) -> dict[str, torch.Generator]:
    """Return the random generators that training uses, by the type of their device."""
    return {each.type: generator(each) for each in (torch.device("cpu"), device)}


def _fresh_code_object(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the bound method with a copy of its code object.

    The compiler counts how often it has compiled a code object and silently gives up after the eighth time, so the steps of
    several trainings in a process must not share one.
    """
    function: Any = method.__func__  # type: ignore[attr-defined]
    copied = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return types.MethodType(copied, method.__self__)  # type: ignore[attr-defined]


class Step:
    """A training step; call it with the rows of a batch.

    Parameters
    ----------
    compile
        Compile the losses and the update.
    kernels
        Use our GPU kernels in the network, and in networks that the method keeps.
    capture
        Capture the step as a CUDA graph, and replay it.
    warn
        Called with a message if one of these fails. The step then runs without it.
    """

    def __init__(
        self,
        *,
        network: nn.Module,
        method: Method,
        optimizer: Optimizer,
        loader: Loader,
        prior: Prior | None = None,
        group: Group | None = None,
        precision: str = "fp32",
        compile: bool = False,
        kernels: bool = False,
        capture: bool = False,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.network, self.method, self.optimizer, self.loader = network, method, optimizer, loader
        self.precision, self.group = precision, group or Group()
        self.device = loader.device
        self.weight = torch.zeros((), device=self.device)  # w(t)
        self.rates = optimizer.rates | {"weight": self.weight} | ({} if prior is None else {"prior": prior.share})
        self._current: dict[str, float] = {}
        self.sums = torch.zeros(len(method.parts) + 1, dtype=torch.float64, device=self.device)
        self.steps_done = 0
        self.warn = warn
        self._choose_mode(compile=compile, kernels=kernels)
        self._take = self._first_body if compile or kernels else self._body
        self.captured = capture
        self.graph: torch.cuda.CUDAGraph | None = None
        self.graph_rows = torch.zeros(loader.batch_size, dtype=torch.int64, device=self.device)
        self.warm_up = WARM_UP_STEPS

    def set(self, **rates: float) -> None:
        """Set the rates of the following steps: those of the optimizer, and `weight`."""
        for name, value in rates.items():
            if self._current.get(name) != value:
                self.rates[name].fill_(value)
                self._current[name] = value

    def __call__(self, rows: Tensor) -> None:
        if self.captured:
            self._replay(rows)
        else:
            self._take(rows)
        self.steps_done += 1

    def _body(self, rows: Tensor) -> None:
        losses = self.losses(rows)
        parts = [part.detach() for part in (*self._parts(losses), losses.total)]
        gradients = torch.autograd.grad(losses.total, self.optimizer.parameters, materialize_grads=True)
        self.update(rows, parts, losses.predictions, self.group.means(gradients))

    def _parts(self, losses: Any) -> list[Tensor]:
        """Return the parts of the loss that are reported; refuse losses that a step cannot use."""
        if not isinstance(losses, Losses) or not isinstance(losses.parts, dict):
            given = type(losses).__name__
            raise ConfigError(f"the method's losses are a {given}; expected Losses(total, parts, predictions).")
        total, parts, rows = losses.total, losses.parts, self.loader.batch_size
        if not isinstance(total, Tensor) or total.ndim or not total.requires_grad:
            raise ConfigError(f"`Losses.total` is a {type(total).__name__}; expected a 0-d tensor with a gradient.")
        for name in self.method.parts:
            if not isinstance(parts.get(name), Tensor) or parts[name].ndim:
                kind = f"a {type(parts[name]).__name__}" if name in parts else "missing"
                raise ConfigError(f"`Losses.parts['{name}']` is {kind}; expected a 0-d tensor, as `parts` lists it.")
        if not isinstance(losses.predictions, Tensor) or losses.predictions.shape[:1] != (rows,):
            raise ConfigError(f"`Losses.predictions` must be a tensor of {rows} rows, one for each input.")
        return [parts[name] for name in self.method.parts]

    def _losses(self, rows: Tensor) -> Losses:
        batch = self.loader.batch(rows, self.method.views)
        targets = self.method.targets(rows[batch.unlabeled])
        with autocast(self.device, self.precision):
            return self.method.losses(self.network, batch, targets, self.weight)

    def _update(self, rows: Tensor, parts: list[Tensor], predictions: Tensor, gradients: Sequence[Tensor]) -> None:
        unlabeled = slice(self.loader.num_labeled, None)
        with torch.no_grad():
            self.optimizer.step(gradients)
            update_running_means(self.network)
            self.method.after_step(self.network, rows[unlabeled], predictions[unlabeled])
            self.sums += torch.stack(parts)

    def _choose_mode(self, *, compile: bool, kernels: bool) -> None:
        self.compiled = compile
        kept = [getattr(part, "network", part) for part in self.method.kept().values()]
        for network in (self.network, *(module for module in kept if isinstance(module, nn.Module))):
            fuse(network, kernels)
        self.losses: Callable[[Tensor], Losses] = self._losses
        self.update: Callable[[Tensor, list[Tensor], Tensor, Sequence[Tensor]], None] = self._update
        if compile:
            self.losses = torch.compile(_fresh_code_object(self._losses), dynamic=False)
            self.update = torch.compile(_fresh_code_object(self._update), dynamic=False)

    def _first_body(self, rows: Tensor) -> None:
        """Run the body compiled or with kernels; if that fails, restore the state and run it plainly."""
        before = self.snapshot()
        try:
            with warnings.catch_warnings():
                if self.compiled:  # a caller may turn warnings into errors, but not the compiler's
                    warnings.simplefilter("ignore", UserWarning)
                self._body(rows)
        except torch.OutOfMemoryError:  # the plain step needs even more
            raise
        except Exception as error:
            for restore in before:
                restore()
            self._choose_mode(compile=False, kernels=False)
            self._body(rows)
            self.warn(
                f"the step runs uncompiled and without our kernels, because one of them failed ({root_cause(error)}); "
                "to keep the other, turn off the one that fails: training.compile=off or training.kernels=off."
            )
        self._take = self._body

    def snapshot(self) -> list[Callable[[], Any]]:
        """Return functions that restore the current state: random numbers, weights, everything that a step changes."""
        states = [partial(each.set_state, each.get_state()) for each in generators(self.device).values()]
        tensors = [self.optimizer.flat, self.sums, *self.network.buffers()]
        tensors += [*self.optimizer.state_dict().values(), *self.method.state_dict().values()]
        if self.method.teacher is not None:
            tensors += self.method.teacher.network.state_dict().values()
        return [*states, *(partial(tensor.copy_, tensor.clone()) for tensor in tensors)]

    def _replay(self, rows: Tensor) -> None:
        self.graph_rows.copy_(rows)
        if self.warm_up:  # on a side stream, as capturing requires
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                self._take(self.graph_rows)
            torch.cuda.current_stream(self.device).wait_stream(stream)
            self.warm_up -= 1
            return
        if self.graph is None:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self._take(self.graph_rows)

    def _capture(self) -> None:
        """Record the body without running it; if that fails, steps run without a graph."""
        graph = torch.cuda.CUDAGraph()
        source = generator(self.device)
        before = source.clone_state()  # a failed capture leaves the generator unusable
        try:
            with torch.cuda.graph(graph):
                self._body(self.graph_rows)
            self.graph = graph
        except Exception as error:
            self.captured = False
            source.graphsafe_set_state(before)
            self.warn(f"the step could not be captured as a CUDA graph and runs without one ({root_cause(error)}).")

    def take_means(self) -> dict[str, Tensor]:
        """Return the means over the epoch's steps, still on the device, and reset the sums."""
        means = (self.sums / max(self.steps_done, 1)).unbind()
        self.sums.zero_()
        self.steps_done = 0
        return dict(zip((*self.method.parts, "total"), means, strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint in the middle of an epoch needs besides the other components."""
        return {"sums": self.sums, "steps_done": torch.tensor(self.steps_done)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.sums.copy_(state["sums"])
        self.steps_done = int(state["steps_done"])
