"""Several threads of one process, where work takes one client at a time, or the clients of one network."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

import torch

Local = TypeVar("Local")
Item = TypeVar("Item")
Result = TypeVar("Result")
CALLING = threading.Lock()


def map_in_threads(
    work: Callable[[Local, Item], Result], items: Iterable[Item], make_local: Callable[[], Local], threads: int
) -> Iterator[Result]:
    """Call a function on each item, several at the same time; torch computes each with one thread.

    So the numbers do not depend on how many threads there are.

    Args:
        work: Takes what its thread has for itself, and an item. What the threads share must not change, not even in
            place: slices of one tensor count as that tensor.
        items: The items.
        make_local: Makes what a thread has for itself.
        threads: Number of threads.

    Returns:
        The results, in the order of the items. Where a call raises an error, the others end first or never begin, so
        that nothing still works on what the caller then takes down.
    """
    thread = threading.local()

    def call(item: Item) -> Result:
        if not hasattr(thread, "local"):
            thread.local = make_local()
        return work(thread.local, item)

    calls = deque(pool(threads).submit(call, item) for item in items)
    try:
        while calls:
            yield calls[0].result()
            calls.popleft()
    finally:
        for waiting in calls:
            waiting.cancel()
        wait(calls)


def with_lock(function: Callable[..., None]) -> Callable[..., None]:
    """A function that several threads may call."""

    def call(*arguments: Any) -> None:
        with CALLING:
            function(*arguments)

    return call


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """The threads, which stay: a new one would have to fetch its memory from the system again."""
    return ThreadPoolExecutor(threads, initializer=use_one_torch_thread)


def use_one_torch_thread() -> None:
    """Let torch compute with this thread alone."""
    torch.get_num_threads()  # before the setting is of this thread, torch would take over that of the process once more
    torch.set_num_threads(1)
