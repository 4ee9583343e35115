# SPDX-License-Identifier: Apache-2.0
"""The precision in which a model computes, observed inside its forward pass: a program may enter
autocast only there (Accelerate wraps the module's forward), and FSDP2 gives layers parameters of
another dtype while they compute."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from presum.fingerprints.families import KIND, Families, LateValues, hash_text
from presum.fingerprints.settings import MODES_EVERY
from presum.torch_events.hooks import Hook

PLACES = 8
REFRESHED_EVERY = 25  # observations between updates of the list of layers
COMPILED = "torch compiles code of this process"
NO_LAYER = "no layer of the model is called as a module"


class LayerHook(Hook):
    """Called when a layer's forward pass has ended."""

    def __init__(self, saw: Callable[[nn.Module], None]) -> None:
        super().__init__()
        self._saw = saw

    @_disable_dynamo
    def __call__(self, layer: nn.Module, *_: Any) -> None:
        self._saw(layer)


class ForwardPrecision:
    """Observes one layer in one step of five: evenly spaced layers in turn, the same on all ranks.

    It observes nothing if torch compiles, since a hook would change the compiled code. ``tell``
    gets the result as a fingerprint; ``say`` gets it as a fact, or the reason why there is none.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        families: Families,
        *,
        tell: Callable[[LateValues], None],
        say: Callable[[dict[str, str]], None],
    ) -> None:
        self._module = weakref.ref(module)
        self._device = device.type
        self._families, self._tell, self._say = families, tell, say
        self._layers: list[weakref.ref[nn.Module]] = []
        self._looks = 0
        self._missed = 0  # observations in a row in which the layer was not called
        self._handle: Any = None

    def begin(self, turn: int) -> None:
        """A step's first training forward begins; ``turn`` counts the recorded steps. The first one
        is skipped: it shows whether the program compiles."""
        self.end()
        if turn % MODES_EVERY != 1:
            return
        if _compiles():
            self._say({"forward_unseen": COMPILED})
            return
        layer = self._layer(turn // MODES_EVERY)
        if layer is None or self._missed >= len(self._layers):
            self._say({"forward_unseen": NO_LAYER})
        if layer is not None:
            self._missed += 1
            self._handle = layer.register_forward_hook(LayerHook(self._called), prepend=True)

    def _layer(self, number: int) -> nn.Module | None:
        if self._looks % REFRESHED_EVERY == 0:
            self._layers = [weakref.ref(layer) for layer in _layers_of(self._module())]
        self._looks += 1
        return self._layers[number % len(self._layers)]() if self._layers else None

    def end(self) -> None:
        """The forward pass is over."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _called(self, layer: nn.Module) -> None:
        self._families.call("environment", self._look, layer)

    def _look(self, layer: nn.Module) -> None:
        self.end()
        self._missed = 0
        autocast = "no autocast"
        if torch.is_autocast_enabled(self._device):
            autocast = f"autocast to {_name(torch.get_autocast_dtype(self._device))}"
        own = sorted({_name(p.dtype) for p in layer.parameters(recurse=False)})
        text = f"{autocast}, {' and '.join(own)} parameters"
        self._tell([(KIND["forward_precision"], hash_text(text))])
        self._say({"forward_precision": text})


def _layers_of(module: nn.Module | None) -> list[nn.Module]:
    """Evenly spaced modules that have parameters and no submodules. The model itself is excluded:
    when its forward pass has ended, contexts that it entered have ended too."""
    parts = list(module.modules()) if module is not None else []
    # If one of its modules has a hook, this layer uses other operations.
    fused = [part for part in parts if isinstance(part, nn.TransformerEncoderLayer)]
    left_out = {module, *(inner for layer in fused for inner in layer.modules())}
    layers = [part for part in parts if part not in left_out and _is_layer(part)]
    return layers[:: -(-len(layers) // PLACES)] if layers else []


def _is_layer(part: nn.Module) -> bool:
    parameters = any(p is not None for p in part._parameters.values())
    return parameters and not part._modules and not isinstance(part, torch.jit.ScriptModule)


def _compiles() -> bool:
    """Whether torch has examined code of this process to compile it."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    return dynamo is not None and getattr(dynamo, "FRAME_COUNTER", 1) > 0


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
