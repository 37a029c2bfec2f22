"""Everything ``mlxcel-server`` can be told, grouped as the help shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlxcel.config.adapters import AdapterConfig
from mlxcel.config.constraints import ConstraintConfig
from mlxcel.config.conversation import TemplateConfig
from mlxcel.config.embeddings import EmbeddingConfig
from mlxcel.config.memory import MemoryConfig
from mlxcel.config.model import ModelConfig
from mlxcel.config.network import EndpointConfig, NetworkConfig
from mlxcel.config.option import option, parse_int, switch
from mlxcel.config.rope import RopeConfig
from mlxcel.config.sampling import SamplingConfig
from mlxcel.config.scheduling import PromptCacheConfig, SchedulingConfig
from mlxcel.config.speculative import SpeculativeConfig
from mlxcel.config.stores import StoresConfig


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Logging"""

    verbosity: int = option(
        3,
        "-lv",
        "--verbosity",
        "--log-verbosity",
        env="LLAMA_ARG_LOG_VERBOSITY",
        parse=parse_int(0, 9),
        metavar="N",
        help="0-1 errors, 2 warnings, 3 info, 4 debug, 5 trace",
    )
    verbose: bool = switch(False, "-v", "--verbose", "--log-verbose", env="LLAMA_ARG_LOG_VERBOSE", help="log everything")
    file: str = option(
        "", "--log-file", env=("LLAMA_ARG_LOG_FILE", "LLAMA_LOG_FILE"), metavar="FILE", help="also write the log here (0600)"
    )
    disabled: bool = switch(False, "--log-disable", help="write no log")
    colors: str = option(
        "auto", "--log-colors", env="LLAMA_ARG_LOG_COLORS", choices=("auto", "on", "off"), help="colours in the log"
    )


@dataclass(frozen=True, slots=True)
class ActionConfig:
    """Do one thing and leave"""

    completion_bash: bool = switch(False, "--completion-bash", help="print a completion script for bash")
    cache_list: bool = switch(False, "-cl", "--cache-list", help="list the downloaded models")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything ``mlxcel-server`` was told."""

    model: ModelConfig = field(default_factory=ModelConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    adapters: AdapterConfig = field(default_factory=AdapterConfig)
    rope: RopeConfig = field(default_factory=RopeConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    constraints: ConstraintConfig = field(default_factory=ConstraintConfig)
    prompt_cache: PromptCacheConfig = field(default_factory=PromptCacheConfig)
    template: TemplateConfig = field(default_factory=TemplateConfig)
    embeddings: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    stores: StoresConfig = field(default_factory=StoresConfig)
    endpoints: EndpointConfig = field(default_factory=EndpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    actions: ActionConfig = field(default_factory=ActionConfig)
    given: frozenset[str] = frozenset()  # "group.field" of every value that was set, not defaulted
