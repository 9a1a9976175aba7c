"""Names that public programs import from Horovod."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import horovod.torch as hvd
import pytest
import torch
from horovod.common import util
from horovod.common.basics import HorovodBasics
from horovod.runner.common.util import hosts

import horovod

NAMES = {
    "horovod": "run __version__",
    "horovod.common.basics": "HorovodBasics",
    "horovod.common.elastic": "ObjectState State run_fn",
    "horovod.common.exceptions": """
        HorovodInternalError HorovodVersionMismatchError HostsUpdatedInterrupt get_version_mismatch_message
    """,
    "horovod.common.process_sets": "ProcessSet add_process_set global_process_set remove_process_set",
    "horovod.common.util": """
        EXTENSIONS check_extension check_installed_version env extension_available gpu_available
        get_ext_suffix get_average_backwards_compatibility_fun get_extension_full_path is_iterable
        is_version_greater_equal_than num_rank_is_power_2 split_list mpi_built gloo_built nccl_built
        ddl_built ccl_built cuda_built rocm_built
    """,
    "horovod.data": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.data.data_loader_base": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.ray": "ElasticRayExecutor RayExecutor",
    "horovod.ray.runner": "MiniSettings RayExecutor",
    "horovod.runner": "run",
    "horovod.runner.common.util.hosts": """
        HostInfo SlotInfo INVALID_SLOT_INFO parse_hosts parse_host_files parse_hosts_and_slots
        get_host_assignments
    """,
    "horovod.runner.launch": "run_commandline main",
    "horovod.torch": """
        _DistributedOptimizer DistributedOptimizer HorovodInternalError Compression SyncBatchNorm elastic
        mpi_ops join
    """,
    "horovod.torch.compression": "Compression Compressor NoneCompressor FP16Compressor",
    "horovod.torch.functions": "allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters",
    "horovod.torch.mpi_ops": """
        HorovodInternalError handle_average_backwards_compatibility _basics allreduce_async_ synchronize
        poll is_homogeneous init shutdown rank size local_rank mpi_threads_supported Average Sum Adasum
    """,
    "horovod.torch.optimizer": "_DistributedOptimizer DistributedOptimizer",
}


@pytest.mark.parametrize("module", NAMES)
def test_what_programs_import_is_there(module: str) -> None:
    found = importlib.import_module(module)
    missing = [name for name in NAMES[module].split() if not hasattr(found, name)]
    assert missing == []


def test_what_frameworks_have_in_common_does_not_import_torch() -> None:
    modules = [m for m in NAMES if not m.startswith("horovod.torch")]
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_an_optimizer_shows_that_it_is_wrapped() -> None:
    hvd.init()
    model = torch.nn.Linear(2, 1)
    bare = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(bare, named_parameters=model.named_parameters())
    assert "horovod" in str(type(optimizer)) and "horovod" not in str(type(bare))
    assert isinstance(optimizer, hvd._DistributedOptimizer) and isinstance(optimizer, torch.optim.SGD)
    assert optimizer.__module__ == hvd.DistributedOptimizer.__module__ == "horovod.torch.optimizer"


def test_questions_about_the_build_have_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    hvd.init()
    basics = HorovodBasics(__file__, "mpi_lib_v2")
    for gloo_built in (hvd.gloo_built, util.gloo_built, basics.gloo_built, hvd.mpi_ops.gloo_built):
        assert gloo_built() is True
    assert hvd.gloo_enabled() and basics.gloo_enabled()
    assert (hvd.mpi_built(verbose=True), util.nccl_built(verbose=True), hvd.mpi_enabled()) == (False, 0, False)
    assert "phalanx: no: mpirun may start ranks" in capsys.readouterr().err
    for ask in (hvd.mpi_threads_supported, basics.mpi_threads_supported, hvd.mpi_ops.mpi_threads_supported):
        assert ask() is False
    assert (basics.rank(), basics.size(), basics.Sum) == (0, 1, hvd.Sum)
    with pytest.raises(AttributeError, match="open libphalanx"):
        _ = basics.MPI_LIB_CTYPES


def test_the_old_word_for_a_reduction() -> None:
    meant = hvd.mpi_ops.handle_average_backwards_compatibility
    assert (meant(None, None), meant(hvd.Max, None)) == (hvd.Average, hvd.Max)
    with pytest.warns(DeprecationWarning, match="write op=Sum"):
        assert meant(None, False) == hvd.Sum
    with pytest.raises(ValueError, match="leave average out"):
        meant(hvd.Sum, True)


def test_helpers_mean_what_they_say(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"has horovod\.tensorflow and horovod\.torch"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", horovod.__file__, "mpi_lib_v2")
    assert util.extension_available("torch") and not util.extension_available("mxnet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        util.check_installed_version("torch", torch.__version__.split("+")[0])
    assert util.is_version_greater_equal_than("1.10", "1.9") and not util.is_version_greater_equal_than(
        "1.9.1", "1.10.0"
    )
    file = tmp_path / "hosts"
    file.write_text("a slots=2 # one\n\nb slots=1\n")
    assert hosts.parse_host_files(file) == "a:2,b:1"
    slots = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:3"), 3, 4)
    assert [s.to_response_string() for s in slots] == ["0,4,0,2,0,2", "1,4,1,2,0,2", "2,4,0,2,1,2", "3,4,1,2,1,2"]
    for bad in ("a", "a:", "a:x", ""):
        with pytest.raises(ValueError, match=r"write e\.g\. node1:4"):
            hosts.parse_hosts(bad)
    with pytest.raises(ValueError, match="5 ranks do not fit into the 2 slots"):
        hosts.get_host_assignments(hosts.parse_hosts("a:2"), 5)
