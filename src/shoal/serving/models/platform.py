"""The platform config file of a model server: session threads and batching.

Flags say the same for most deployments. The file is written only when the configuration names it, or when dense
services batch, which no flag can say in full. Called by `shoal.serving.processes.commands`.
"""

from __future__ import annotations

from google.protobuf import text_format

from shoal.serving.config.deployment import Deployment
from shoal.wire.pb.tensorflow import serving_pb2 as pb
from shoal.wire.pools import TENSORFLOW

_DEFAULT_THREADS = 16
_BATCH_SIZE = 1024
_BATCH_TIMEOUT_MICROS = 800
_MAX_BATCHES = 100_000
_BATCH_THREADS = 8


def needs_platform_file(deployment: Deployment) -> bool:
    """Whether flags are not enough."""
    settings = deployment.settings
    return settings.dense_alone and settings.enable_batching


def platform_text(deployment: Deployment) -> str:
    """The file in text form."""
    settings = deployment.settings
    limit = deployment.environment.cpu_limit
    threads = max(1, int(limit)) if limit else _DEFAULT_THREADS
    bundle = pb.SessionBundleConfig(enable_model_warmup=settings.enable_model_warmup)
    session = bundle.session_config
    session.intra_op_parallelism_threads = settings.tensorflow_intra_op_parallelism or threads
    session.inter_op_parallelism_threads = settings.tensorflow_inter_op_parallelism or threads
    session.allow_soft_placement = True
    session.gpu_options.allow_growth = settings.allow_growth
    if needs_platform_file(deployment):
        batching = bundle.batching_parameters
        batching.max_batch_size.value = _BATCH_SIZE
        batching.batch_timeout_micros.value = _BATCH_TIMEOUT_MICROS
        batching.max_enqueued_batches.value = _MAX_BATCHES
        batching.num_batch_threads.value = _BATCH_THREADS
    made = pb.PlatformConfigMap()
    adapter = pb.SavedModelBundleSourceAdapterConfig(legacy_config=bundle)
    made.platform_configs["tensorflow"].source_adapter_config.Pack(adapter)
    return text_format.MessageToString(made, descriptor_pool=TENSORFLOW)
