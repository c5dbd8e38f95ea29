"""The processes of a run: which one this is, what they send each other over torch.distributed, and freed memory.

All processes call the functions that exchange something together and in the same order. In a run of one process these
return what they get.
"""

import ctypes
import heapq
import os
import platform
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from pfl_lightning.errors import PflError, SettingsError
from pfl_lightning.tree import Tree

Value = TypeVar("Value")
HERE = "127.0.0.1"
LARGEST_PORT = 65_535
SILENCE = 60  # s without an answer from another machine, after which a connection to it fails
KEPT_BYTES = 32 << 20  # glibc's maximum threshold: larger blocks always come from the OS and go back to it
# options of mallopt: M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD
_ALLOCATOR = {-1: (1 << 31) - 1, -2: 64 << 20, -3: KEPT_BYTES}


def count() -> int:
    """Number of processes."""
    return dist.get_world_size() if _are_several() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if _are_several() else 0


def split_by_cost(costs: Tensor, among: int | None = None) -> list[Tensor]:
    """Split pieces of work among the processes so that they finish at about the same time.

    The largest remaining piece goes to the process with the least work; a pure function of the costs.

    Args:
        costs: Cost of each piece, ``[pieces]``.
        among: Number of processes. Default: that of this run.

    Returns:
        For each process the indices of its pieces in ascending order, ``[pieces]``.

    Examples:
        >>> split_by_cost(torch.tensor([3, 2, 2]), among=2)
        [tensor([0]), tensor([1, 2])]
    """
    loads = [(0.0, process) for process in range(among or count())]
    places: list[list[int]] = [[] for _ in loads]
    for place in costs.argsort(descending=True, stable=True).tolist():
        load, process = heapq.heappop(loads)
        places[process].append(place)
        heapq.heappush(loads, (load + float(costs[place]), process))
    return [torch.tensor(sorted(pieces), dtype=torch.int64) for pieces in places]


def all_reduce(tree: Tree, some_lack: bool = False) -> Tree:
    """Sum each tensor over the processes; all of them get the same result, bit for bit.

    Real numbers are added in float64, so it hardly matters which process has which part of a sum, and integers modulo
    2^64.

    Args:
        tree: The tensors, with the same names, shapes and types in all processes.
        some_lack: Whether processes may lack tensors that the first process has.
    """
    if count() == 1:
        return tree
    if some_lack:
        forms = broadcast({name: (tensor.shape, tensor.dtype) for name, tensor in tree.items()})
        tree = {name: tree.get(name, torch.zeros(shape, dtype=dtype)) for name, (shape, dtype) in forms.items()}
    summed: Tree = {}
    for is_real in (True, False):
        # by name: methods may have put them together in any order
        kind = {name: tree[name] for name in sorted(tree) if tree[name].is_floating_point() == is_real}
        if kind:
            wide = torch.float64 if is_real else torch.int64
            flat = torch.cat([tensor.detach().flatten().to(_device(), wide) for tensor in kind.values()])
            dist.all_reduce(flat)
            parts = flat.split([tensor.numel() for tensor in kind.values()])
            for (name, tensor), part in zip(kind.items(), parts, strict=True):
                summed[name] = part.view(tensor.shape).to(tensor.device, tensor.dtype)
    return {name: summed[name] for name in tree}


def all_to_all(rows: Sequence[Tensor], arriving: Sequence[int]) -> Tensor:
    """Send rows to the processes and receive theirs.

    Args:
        rows: What each process gets, ``[rows, ...]`` each; all rows have the same shape and type.
        arriving: Number of rows from each process.

    Returns:
        The received rows, in the order of the processes that sent them, ``[rows, ...]``.
    """
    if count() == 1:
        return rows[0]
    sent = torch.cat([part.detach().to(_device()) for part in rows])
    width = sent.element_size() * prod(sent.shape[1:])
    received = sent.new_empty(sum(arriving), *sent.shape[1:])
    dist.all_to_all_single(
        received.view(-1).view(torch.uint8),
        sent.view(-1).view(torch.uint8),
        [number * width for number in arriving],
        [len(part) * width for part in rows],
    )
    return received.to(rows[0].device)


def all_gather(value: Value) -> list[Value]:
    """Gather a small picklable value from each process."""
    if count() == 1:
        return [value]
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value)
    return values


def broadcast(value: Value) -> Value:
    """Broadcast the small picklable value of the first process."""
    if count() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def is_lost(error: BaseException) -> bool:
    """Whether an error means that another process is gone; gloo raises a plain RuntimeError, with its own file."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def notice_dead_links() -> None:
    """Have this process's connections fail if another machine no longer answers; does nothing if not on Linux.

    A machine without power or network closes no connection, and gloo would wait for half an hour. Its timeout cannot
    be shorter than the longest step of a slow process, whose kernel answers all the same.
    """
    if count() == 1 or sys.platform != "linux":
        return
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # torch and gloo do not give their sockets
        with suppress(OSError):  # no socket
            connection = socket.socket(fileno=descriptor)
            try:
                _expect_answers(connection)
            finally:
                connection.detach()


def check_port() -> None:
    """Refuse a port of the environment at which processes cannot meet.

    Raises:
        SettingsError: If it is none.
    """
    port = os.environ.get("MASTER_PORT", "1")
    if not (port.isdecimal() and 1 <= int(port) <= LARGEST_PORT):
        raise SettingsError(f"MASTER_PORT: {port} is not possible; allowed: 1 to {LARGEST_PORT}")


def meet_here() -> object:
    """Have this process and those that it will start meet where no other machine reaches them.

    By itself, torch would listen on all addresses of the machine, and gloo on that of its name.

    Returns:
        Where they meet, as long as this object is kept.

    Raises:
        PflError: If ``MASTER_PORT`` is in use.
    """
    try:
        listener = socket.create_server((HERE, int(os.environ.get("MASTER_PORT", "0"))))
    except OSError as error:
        why = f"{os.environ.get('MASTER_PORT')} is not possible ({error.strerror})"
        raise PflError(f"MASTER_PORT: {why}; allowed: a free port") from error
    port = listener.getsockname()[1]
    # torch 2.6 cannot give libuv a socket
    options: dict[str, Any] = {"use_libuv": False, "master_listen_fd": listener.detach()}
    store = dist.TCPStore(HERE, port, is_master=True, wait_for_workers=False, **options)  # type: ignore[attr-defined]
    os.environ |= {"MASTER_ADDR": HERE, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    if loopback := {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback.pop())
    return store


def keep_freed_memory() -> bool:
    """Tell the C library's allocator to keep freed blocks of up to 32 MiB; does nothing without glibc.

    Otherwise the tensors of every round get new pages, which the OS has to zero first. The price is that the process
    never shrinks, and through fragmentation can hold more memory than it ever needed at once.

    Returns:
        Whether glibc accepted the settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) == 1 for option, value in _ALLOCATOR.items())


def _expect_answers(connection: socket.socket) -> None:
    if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, SILENCE // 2))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, SILENCE // 6))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE)


def _are_several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _device() -> torch.device:
    """The device from which tensors can be sent."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
