"""Build an inverted index of all identifiers in a folder of Python sources, by default the standard library.

    python examples/identifier_index.py                          the standard library
    python examples/identifier_index.py FOLDER --find os.path    another folder, another question

It shows these parts of the API:
* many small tasks: one for every few files, hundreds to thousands in all;
* a tree of tasks: `merge` takes eight references as arguments, so that this process never gets a partial index;
* `wait` drives the progress bar and fetches no value;
* the finished index stays a reference: questions are tasks that take it as an argument, and `find` has child tasks;
* errors in the input are data: a file that is not readable Python is skipped, counted and named, and ends no task.

An index is two plain values: a dict from each identifier to its postings, and the list of skipped files. Postings are
packed pairs (file number, uses) of 32-bit integers, in the order of the files, so that a partial index pickles at C speed
and merging joins bytes. An index is a plain dict because a class defined in a script travels by value with every result.
The result is checked against one process that reads all files in a single call of `index_files`, without merging.
"""

import argparse
import hashlib
import importlib
import keyword
import os
import sys
import sysconfig
import time
import tokenize
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import minray as ray

MERGE_ARITY = 8
NAMES_SHOWN = 10
FILES_SHOWN = 5
BAD_SOURCE = (OSError, SyntaxError, ValueError, LookupError, tokenize.TokenError)

Skipped = list[tuple[str, str]]  # (file, reason)
Index = tuple[dict[str, bytes], Skipped]
Uses = list[tuple[int, int]]  # (file number, uses)


class Report(NamedTuple):
    """The results of a run; `main` returns them."""

    files: int
    skipped: Skipped
    identifiers: int
    uses: int
    digest: str
    tasks: int
    seconds: float
    requests_per_task: float
    frames_per_task: float
    widest: list[tuple[str, int]]  # the identifiers used in most files, with the number of files
    found: dict[str, list[tuple[str, int]]]  # for each name asked for: (file, uses), most uses first


# -- Reading files: ordinary functions, which run both in tasks and in the single-process check --


def python_files(folder: str, *, with_packages: bool) -> list[str]:
    """Return every `.py` file below the folder, relative to it, sorted; `with_packages` includes installed packages."""
    found = []
    for directory, subdirectories, names in os.walk(folder):
        if not with_packages:
            subdirectories[:] = [name for name in subdirectories if name not in ("site-packages", "dist-packages")]
        found += [os.path.relpath(os.path.join(directory, name), folder) for name in names if name.endswith(".py")]
    return sorted(found)


def words(path: str) -> list[str]:
    """Return the names and operators of a source file, in order. Raises one of BAD_SOURCE if it is not readable Python."""
    if not os.path.isfile(path):
        raise OSError("not a regular file")  # reading a pipe would block for ever; the target of a link may be missing
    with tokenize.open(path) as source:
        tokens = tokenize.generate_tokens(source.readline)
        return [token[1] for token in tokens if token[0] == tokenize.NAME or token[0] == tokenize.OP]


def normalised(name: str) -> str:
    """Return the normal form in which Python itself compares identifiers (NFKC)."""
    return name if name.isascii() else unicodedata.normalize("NFKC", name)


def index_files(folder: str, first_number: int, files: Iterable[str]) -> Index:
    """Return the index of some files, which are numbered from `first_number`."""
    postings: dict[str, array[int]] = {}
    skipped = []
    for number, file in enumerate(files, first_number):
        try:
            counts = Counter(words(os.path.join(folder, file)))
        except BAD_SOURCE as error:
            skipped.append((file, f"{type(error).__name__}: {error}"))
            continue
        identifiers: Counter[str] = Counter()
        for word, uses in counts.items():
            if word.isidentifier() and not keyword.iskeyword(word):
                identifiers[normalised(word)] += uses
        for identifier, uses in identifiers.items():
            postings.setdefault(identifier, array("I")).extend((number, uses))
    return {identifier: pairs.tobytes() for identifier, pairs in postings.items()}, skipped


def merge(*parts: Index) -> Index:
    """Merge several indexes, given in the order of their files, into one."""
    gathered: dict[str, list[bytes]] = {}
    skipped: Skipped = []
    for postings, part_skipped in parts:
        for identifier, pairs in postings.items():
            gathered.setdefault(identifier, []).append(pairs)
        skipped += part_skipped
    return {identifier: b"".join(pieces) for identifier, pieces in gathered.items()}, skipped


# -- Questions to a finished index --


def unpacked(pairs: bytes) -> Uses:
    numbers = array("I", pairs)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def summarise(index: Index) -> tuple[int, int, str, Skipped]:
    """Return the number of identifiers, the number of uses, a digest of all postings, and the skipped files."""
    postings, skipped = index
    digest = hashlib.sha256()
    for identifier in sorted(postings):
        digest.update(identifier.encode("utf-8", "surrogatepass") + b"\0" + postings[identifier])
    uses = sum(sum(array("I", pairs)[1::2]) for pairs in postings.values())
    return len(postings), uses, digest.hexdigest(), skipped


def most_widely_used(index: Index, limit: int) -> list[tuple[str, int]]:
    """Return the identifiers that occur in most files, with the number of files."""
    pair_bytes = 2 * array("I").itemsize
    files = {identifier: len(pairs) // pair_bytes for identifier, pairs in index[0].items()}
    return sorted(files.items(), key=lambda item: (-item[1], item[0]))[:limit]


def count_dotted(path: str, parts: list[str]) -> int:
    """Return how often a dotted name occurs in one file."""
    wanted = [word for part in parts for word in (".", part)][1:]
    written = [normalised(word) for word in words(path)]
    starts = range(len(written) - len(wanted) + 1)
    return sum(written[start] == parts[0] and written[start : start + len(wanted)] == wanted for start in starts)


def find(index: Index, folder: str, files: list[str], name: str) -> list[tuple[str, int]]:
    """Return the files that use a name, with the number of uses, most uses first.

    The index answers for a single identifier. For a dotted name it gives the files that have every part; a task for each of
    these files reads it again.
    """
    parts = [normalised(part) for part in name.split(".")]
    postings = [dict(unpacked(index[0].get(part, b""))) for part in parts]
    numbers = set(postings[0]).intersection(*postings[1:])
    uses = {files[number]: postings[0][number] for number in sorted(numbers)}
    if len(parts) > 1:
        count = ray.remote(count_dotted)
        uses = dict(zip(uses, ray.get([count.remote(os.path.join(folder, file), parts) for file in uses]), strict=True))
    return sorted(((file, count) for file, count in uses.items() if count), key=lambda item: (-item[1], item[0]))


# -- Running it --


def submit(folder: str, files: list[str], files_per_task: int) -> list[Any]:
    """Submit all tasks of the index, groups of files first; the last reference is the finished index."""
    index_group, merge_parts = ray.remote(index_files), ray.remote(merge)
    starts = range(0, len(files), files_per_task)
    level = [index_group.remote(folder, start, files[start : start + files_per_task]) for start in starts]
    references = level
    while len(level) > 1:
        starts = range(0, len(level), MERGE_ARITY)
        level = [merge_parts.remote(*level[start : start + MERGE_ARITY]) for start in starts]
        references = references + level
    return references


def completed(references: list[Any]) -> Iterator[Any]:
    """Yield each reference when its task is done. Each `wait` is for at most 32 tasks or a tenth of a second."""
    pending = references
    while pending:
        ready, pending = ray.wait(pending, num_returns=min(32, len(pending)), timeout=0.1, fetch_local=False)
        yield from ready


def progress(items: Iterable[Any], total: int, title: str) -> Iterator[Any]:
    """Yield the items and show on stderr how many have passed: with tqdm if it is installed, else as plain text."""
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        return plain_progress(items, total, title)
    return iter(tqdm(items, total=total, desc=title, unit=" items", file=sys.stderr))


def plain_progress(items: Iterable[Any], total: int, title: str) -> Iterator[Any]:
    for done, item in enumerate(items, 1):
        yield item
        if done * 100 // total > (done - 1) * 100 // total and (sys.stderr.isatty() or done == total):
            print(f"\r{title}: {done:,}/{total:,}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def printable(path: str) -> str:
    """Return a path as text; bytes of a file name that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def build(folder: str, files: list[str], options: argparse.Namespace) -> Report:
    """Build the index on the running cluster, ask it questions, and print the answers."""
    before = ray.get_runtime_context().rpc_counters()
    started = time.perf_counter()
    references = submit(folder, files, options.files_per_task)
    for _ in progress(completed(references), len(references), "tasks"):
        pass
    seconds = time.perf_counter() - started
    after = ray.get_runtime_context().rpc_counters()
    tasks, index = len(references), references[-1]
    submitted = after["tasks"] - before["tasks"]
    requests = (after["requests"] - before["requests"]) / submitted
    frames = (after["frames"] - before["frames"]) / submitted

    searches = {name: ray.remote(find).remote(index, folder, files, name) for name in options.find}
    widest = ray.get(ray.remote(most_widely_used).remote(index, NAMES_SHOWN))
    identifiers, uses, digest, skipped = ray.get(ray.remote(summarise).remote(index))
    found = {name: ray.get(reference) for name, reference in searches.items()}

    print(f"{len(files):,} files, {identifiers:,} identifiers, {uses:,} uses; {len(skipped):,} files skipped")
    for file, reason in skipped[:FILES_SHOWN]:
        print(f"    skipped {printable(file)}: {printable(reason)}")
    if len(skipped) > FILES_SHOWN:
        print(f"    ... and {len(skipped) - FILES_SHOWN:,} more")
    print(f"{tasks:,} tasks in {seconds:.2f} s: {tasks / seconds:,.0f} tasks per second, ", end="")
    print(f"{requests:.2f} requests and {frames:.2f} frames per task")
    print("most widely used:", ", ".join(f"{name} ({count:,} files)" for name, count in widest))
    for name, places in found.items():
        print(f"{name}: {sum(count for _, count in places):,} uses in {len(places):,} files")
        for file, count in places[:FILES_SHOWN]:
            print(f"    {printable(file)}: {count:,}")
    return Report(len(files), skipped, identifiers, uses, digest, tasks, seconds, requests, frames, widest, found)


def check(report: Report, folder: str, files: list[str]) -> None:
    """Index all files again in this process, and exit with code 1 unless the results are equal."""
    started = time.perf_counter()
    index = index_files(folder, 0, progress(files, len(files), "single-process check"))
    identifiers, uses, digest, skipped = summarise(index)
    seconds = time.perf_counter() - started
    if (identifiers, uses, digest, skipped) != (report.identifiers, report.uses, report.digest, report.skipped):
        sys.exit(f"the index differs from a single-process run: digest {report.digest}, expected {digest}")
    print(f"a single process gives the same index (sha256 {digest[:16]}...) in {seconds:.2f} s: ", end="")
    print(f"the tasks were {seconds / report.seconds:.2f} times as fast")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main(arguments: Sequence[str] | None = None) -> Report:
    parser = argparse.ArgumentParser(description="An inverted index of every identifier in a folder of Python sources.")
    parser.add_argument("folder", nargs="?", help="a folder of Python sources (default: the standard library)")
    parser.add_argument("--find", metavar="NAME", action="append", help="a name to look up, perhaps dotted; repeatable")
    parser.add_argument("--files-per-task", type=positive, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N files")
    parser.add_argument("--num-cpus", type=positive, metavar="N", help="default: all CPUs of this machine")
    parser.add_argument("--no-check", dest="check", action="store_false", help="skip the single-process run")
    options = parser.parse_args(arguments)
    options.find = options.find or ["Queue", "asyncio.Queue"]
    folder = os.path.abspath(sysconfig.get_path("stdlib") if options.folder is None else options.folder)
    if not os.path.isdir(folder):
        parser.error(f"{printable(folder)} is not a folder")
    files = python_files(folder, with_packages=options.folder is not None)[: options.limit]
    if not files:
        parser.error(f"no readable .py files in {printable(folder)}")
    for name in options.find:
        if not all(part.isidentifier() for part in name.split(".")):
            parser.error(f"{name!r} is not a name")

    print(f"indexing {len(files):,} files of {printable(folder)}", flush=True)
    with ray.init(num_cpus=options.num_cpus):
        report = build(folder, files, options)
    if options.check:
        check(report, folder, files)
    return report


if __name__ == "__main__":
    main()
