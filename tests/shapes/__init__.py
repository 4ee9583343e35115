# SPDX-License-Identifier: Apache-2.0
"""Small programs, as people write them: every way to train that presum is to understand."""

from __future__ import annotations

from shapes import (
    accumulation,
    loaders,
    loops,
    models,
    passes,
    setups,
    several_forwards,
    several_models,
    sharded,
    unreduced,
)

SHAPES = {
    shape.name: shape
    for module in (
        accumulation,
        several_forwards,
        several_models,
        models,
        passes,
        loops,
        unreduced,
        setups,
        sharded,
        loaders,
    )
    for shape in module.SHAPES
}
