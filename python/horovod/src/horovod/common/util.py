"""Small helpers that scripts import from Horovod. Nothing here imports torch.

>>> split_list([1, 2, 3, 4, 5], 2)
[[1, 2, 3], [4, 5]]
>>> num_rank_is_power_2(6)
False
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from horovod.common.exceptions import HorovodVersionMismatchError, get_version_mismatch_message
from phalanx._build import ccl_built, cuda_built, ddl_built, gloo_built, mpi_built, nccl_built, rocm_built

#: The frameworks that Horovod has extensions for; here there are those of TensorFlow and torch.
EXTENSIONS = ["tensorflow", "torch", "mxnet"]
_SUPPORTED = ("tensorflow", "torch")


def get_ext_suffix() -> str:
    """The suffix of native modules."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where Horovod would keep a native module, seen from a package's file. Phalanx keeps its own in its wheel."""
    if not args:
        raise ValueError(
            "get_extension_full_path: name the module, e.g. get_extension_full_path(__file__, 'mpi_lib_v2')"
        )
    return os.path.join(os.path.dirname(pkg_path), *args[:-1], args[-1] + get_ext_suffix())


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ``ImportError`` for a framework whose part is not in Phalanx's wheel."""
    if ext_name.split(".")[-1] not in _SUPPORTED:
        path = get_extension_full_path(pkg_path, *args)
        raise ImportError(
            f"{ext_name} does not exist ({path}), and {ext_env_var} has no effect: Phalanx has horovod.tensorflow and horovod.torch"
        )


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework is supported: TensorFlow and torch are, if they are installed."""
    answer = ext_base_name in _SUPPORTED and importlib.util.find_spec(ext_base_name) is not None
    return _said(f"the extension for {ext_base_name}", answer, verbose)


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework sees a GPU. A child process checks it, so that this process does not initialize CUDA."""
    questions = {
        "tensorflow": "import sys, tensorflow as tf; sys.exit(0 if tf.config.list_physical_devices('GPU') else 1)",
        "torch": "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 1)",
    }
    asked = questions.get(ext_base_name, "import sys; sys.exit(1)")
    is_there = extension_available(ext_base_name)
    answer = is_there and subprocess.run([sys.executable, "-c", asked], capture_output=True).returncode == 0
    return _said(f"a GPU that {ext_base_name} can use", answer, verbose)


def _said(what: str, answer: Any, verbose: bool) -> Any:
    if verbose:
        print(f"horovod on Phalanx: {what}: {'yes' if answer else 'no'}")
    return answer


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables within a block; those that are ``None`` are not changed.

    >>> with env(SOME_SETTING="1"):
    ...     os.environ["SOME_SETTING"]
    '1'
    >>> "SOME_SETTING" in os.environ
    False
    """
    new = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """Returns a function of ``op`` and the old ``average`` that returns the reduction.

    >>> from phalanx import reductions
    >>> get_average_backwards_compatibility_fun(reductions)(None, False) == reductions.Sum
    True
    """

    def meant(op: Any, average: Any) -> Any:
        if average is None:
            return reduce_ops.Average if op is None else op
        if op is not None:
            raise ValueError(f"op={op!r} and average={average!r} are the same argument; leave average out")
        new = "Average" if average else "Sum"
        warnings.warn(f"average={average!r} is deprecated; write op={new}", DeprecationWarning, stacklevel=3)
        return getattr(reduce_ops, new)

    return meant


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is a power of two. Phalanx's Adasum does not need that."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Any], n: int) -> list[list[Any]]:
    """Splits a list into parts whose sizes differ by at most one, the larger ones first."""
    size, more = divmod(len(items), n)
    parts, at = [], 0
    for i in range(n):
        end = at + size + (1 if i < more else 0)
        parts.append(list(items[at:end]))
        at = end
    return parts


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Whether the framework in use is the one that is installed: a warning if not, or an error for an exception.

    Phalanx is not compiled against a framework, so any version works.
    """
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return
    if installed == version:
        return
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, installed) from exception
    warnings.warn(get_version_mismatch_message(name, version, installed), stacklevel=2)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is not older than another.

    >>> is_version_greater_equal_than("2.10.1+cpu", "2.9")
    True
    """
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions are strings such as '2.1.0', not {ver!r} and {target!r}")
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> list[int]:
    release = re.match(r"\s*v?([0-9]+(?:\.[0-9]+)*)", version)
    if release is None:
        raise ValueError(f"{version!r} does not begin with numbers as a version does, e.g. '2.1.0'")
    numbers = [int(number) for number in release[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return numbers


def is_iterable(x: Any) -> bool:
    """Whether it can be iterated over."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


__all__ = [
    "EXTENSIONS",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]
