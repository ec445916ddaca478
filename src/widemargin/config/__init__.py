"""A run as frozen dataclasses."""

from widemargin.config.parts import (
    AveragingConfig,
    DataConfig,
    EvaluationConfig,
    OptimizerConfig,
    StoppingConfig,
    WatchConfig,
)
from widemargin.config.penalties import EMRConfig, IGRConfig
from widemargin.config.run import RunConfig, kinds

__all__ = [
    "AveragingConfig",
    "DataConfig",
    "EMRConfig",
    "EvaluationConfig",
    "IGRConfig",
    "OptimizerConfig",
    "RunConfig",
    "StoppingConfig",
    "WatchConfig",
    "kinds",
]
