"""What several threads do at once."""

import threading
from collections.abc import Callable, Iterable


def run_in_threads(work: Callable[[int], None], numbers: Iterable[int]) -> None:
    """Call ``work`` with each of the numbers, each in a thread of its own, and raise what one of them raised."""
    failures: list[BaseException] = []

    def attempt(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
